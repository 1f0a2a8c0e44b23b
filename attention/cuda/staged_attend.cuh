// Partial attention over whole chunks of codes that come by way of shared memory
// (staged_chunks.cuh). What stands where: tensor_attend.cuh.
#pragma once

#include "attention/cuda/staged_chunks.cuh"
#include "attention/cuda/tensor_state.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kMaxDim>
struct StagedAttend : TensorState<kEncoding, kMaxDim> {
  using State = TensorState<kEncoding, kMaxDim>;
  using Traits = typename State::Traits;
  using Cell = typename State::Cell;
  using Staged = StagedChunks<kEncoding, kMaxDim>;
  using State::a, State::r, State::c, State::queries, State::out;
  using State::AddWeights, State::MultiplyCells, State::ScaleBy;

  Staged staged;

  /// The whole chunks from the run's first slot on. Returns where they end.
  __device__ int AttendStaged(const DecodeRun& run) {
    const int chunks = (run.end - run.begin) / kChunkSlots;
    if (chunks == 0) return run.begin;
    staged.Begin(a.cache, *run.segment, run.head, run.begin, chunks);
    PartSums constants = {};
    for (int i = 0; i < chunks; ++i) {
      staged.Await(a.cache);
      float scores[2][4] = {};
      AddStagedScores(scores);
      float key_factors[4], value_factors[4], shrink[2];
      staged.Factors(key_factors, value_factors);
      uint32_t weights[4];
      if (AddWeights(4, key_factors, value_factors, scores, weights, shrink)) {
        ScaleBy(shrink, out[0]);
        ScaleBy(shrink, constants.of_part);
      }
      if constexpr (Staged::kTransposes) {
        MultiplyValueMatrices(weights, constants);
      } else {
        MultiplyStagedValues(weights);
      }
      staged.Leave();
    }
    if constexpr (Staged::kTransposes) Rearrange(constants);
    return run.begin + chunks * kChunkSlots;
  }

  /// Of codes in groups, the scale multiplies the query and not the 32 keys that have it, and codes
  /// stay as they come, plus 128. With m in the middle of codes
  ///   sum (code scale + zero) q
  ///     = sum (128 + code) (scale q) - (128 + m) sum (scale q) + sum (zero + m scale) q,
  /// where scale q is rounded once and is the same in both sums, so that 128 cancels in f32.
  __device__ void AddStagedScores(float (&scores)[2][4]) {
    constexpr int kPairs = Cell::kPairs;
    float base[4] = {};
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const uint4 keys = staged.Keys(load);
      const uint32_t of_slots[4] = {keys.x, keys.y, keys.z, keys.w};
      uint32_t scale_words[kPairs], zero_words[kPairs];
      if constexpr (IsGrouped(kEncoding)) staged.KeyScales(load, scale_words, zero_words);
      ZIGGURAT_UNROLL
      for (int pair = 0; pair < kPairs; pair += 2) {
        const int index = load * kPairs + pair;
        uint32_t q[2] = {queries[index], queries[index + 1]}, x[2][4];
        if constexpr (IsGrouped(kEncoding)) {
          uint32_t middles[2], scaled[2];
          ZIGGURAT_UNROLL
          for (int half = 0; half < 2; ++half) {
            const uint32_t scale = PairOfChannels<kEncoding>(scale_words, pair + half);
            middles[half] = FusedBf16(scale, kMiddlePair<kEncoding>,
                                      PairOfChannels<kEncoding>(zero_words, pair + half));
            scaled[half] = FusedBf16(q[half], scale, kMinusZeroPair);
          }
          MultiplyAdd({middles[0], Anything(), middles[1], Anything()}, q[0], q[1], base);
          q[0] = scaled[0], q[1] = scaled[1];
          AddShifts(q[0], q[1], base);
        }
        ZIGGURAT_UNROLL
        for (int half = 0; half < 2; ++half) {
          ZIGGURAT_UNROLL
          for (int slot = 0; slot < 4; ++slot) {
            if constexpr (IsGrouped(kEncoding)) {
              x[half][slot] = BiasedPairOfCell<kEncoding>(of_slots[slot], pair + half);
            } else {
              x[half][slot] = PairOfCell<kEncoding>(of_slots[slot], pair + half);
            }
          }
        }
        ZIGGURAT_UNROLL
        for (int i = 0; i < 2; ++i) {
          const uint32_t fragment[4] = {x[0][2 * i], x[0][2 * i + 1], x[1][2 * i], x[1][2 * i + 1]};
          MultiplyAdd(fragment, q[0], q[1], scores[i]);
        }
      }
    }
    if constexpr (IsGrouped(kEncoding)) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[0][i] += base[i % 2];
        scores[1][i] += base[i % 2];
      }
    }
  }

  /// What biased codes have too much, of all that is multiplied by b: - (128 + m) sum b.
  __device__ static void AddShifts(uint32_t b0, uint32_t b1, float (&d)[4]) {
    constexpr uint32_t kShift = kMinusBiasedMiddlePair<kEncoding>;
    const uint32_t shifts[4] = {kShift, kShift, kShift, kShift};
    MultiplyAdd(shifts, b0, b1, d);
  }

  /// Of 32 channels that share a scale: what all of them have; the first two are of any meaning.
  struct PartSums {
    float of_part[Traits::kParts][4];
  };

  /// As with keys: scales multiply the weights, and codes stay as they come, plus 128. A matrix has
  /// channels of one group, so that one weight serves them all.
  __device__ void MultiplyValueMatrices(const uint32_t (&weights)[4], PartSums& constants) {
    uint32_t scales[2][4], zeros[2][4];
    ZIGGURAT_UNROLL
    for (int part = 0; part < Traits::kParts; ++part) {
      if (part % 2 == 0) staged.ValueScalesOfParts(part / 2, scales, zeros);
      uint32_t codes[4], scaled[4], middles[4];
      staged.ValueMatrices(part, codes);
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t scale = scales[part % 2][i];
        middles[i] = FusedBf16(scale, kMiddlePair<kEncoding>, zeros[part % 2][i]);
        scaled[i] = FusedBf16(weights[i], scale, kMinusZeroPair);
      }
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; i += 2) {
        MultiplyAdd({middles[i], Anything(), middles[i + 1], Anything()}, weights[i],
                    weights[i + 1], constants.of_part[part]);
        AddShifts(scaled[i], scaled[i + 1], constants.of_part[part]);
        ZIGGURAT_UNROLL
        for (int j = 0; j < 4; j += 2) {  // channels 32 part + 4 r + j and the next
          const uint32_t fragment[4] = {BiasedPairOfCell<kEncoding>(codes[i], j),
                                        BiasedPairOfCell<kEncoding>(codes[i], j + 1),
                                        BiasedPairOfCell<kEncoding>(codes[i + 1], j),
                                        BiasedPairOfCell<kEncoding>(codes[i + 1], j + 1)};
          MultiplyAdd(fragment, scaled[i], scaled[i + 1], out[0][2 * part + j / 2]);
        }
      }
    }
  }

  /// The output of MultiplyValueMatrices to where the other values have theirs.
  __device__ void Rearrange(const PartSums& constants) {
    auto* of_heads = reinterpret_cast<float2*>(staged.memory()) + c;  // [channel][4]
    __syncwarp();
    ZIGGURAT_UNROLL
    for (int tile = 0; tile < Traits::kTiles; ++tile) {
      const int channel = 32 * (tile / 2) + 4 * r + tile % 2 * 2;
      const float(&of_all)[4] = constants.of_part[tile / 2];
      for (int i = 0; i < 2; ++i) {
        of_heads[4 * (channel + i)] =
            make_float2(out[0][tile][2 * i] + of_all[0], out[0][tile][2 * i + 1] + of_all[1]);
      }
    }
    __syncwarp();
    ZIGGURAT_UNROLL
    for (int tile = 0; tile < Traits::kTiles; ++tile) {
      const int channel = r * Traits::kPieceChannels + 2 * tile;
      for (int i = 0; i < 2; ++i) {
        const float2 two = of_heads[4 * (channel + i)];
        out[0][tile][2 * i] = two.x, out[0][tile][2 * i + 1] = two.y;
      }
    }
  }

  __device__ void MultiplyStagedValues(const uint32_t (&weights)[4]) {
    uint32_t cells[8][Traits::kPieceCells];
    ZIGGURAT_UNROLL
    for (int i = 0; i < 8; ++i) staged.Values(i, cells[i]);
    uint32_t scales[4] = {}, zeros[4] = {};
    if constexpr (IsGrouped(kEncoding))
      staged.ValueScales(r * Traits::kPieceChannels, scales, zeros);
    ZIGGURAT_UNROLL
    for (int cell = 0; cell < Traits::kPieceCells; ++cell) {
      uint32_t of_slots[8];
      ZIGGURAT_UNROLL
      for (int i = 0; i < 8; ++i) of_slots[i] = cells[i][cell];
      MultiplyCells(of_slots, scales, zeros, weights, &out[0][cell * Cell::kPairs]);
    }
  }
};

}  // namespace ziggurat::cuda
