// Partial attention over chunks of codes that come by way of shared memory (staged_chunks.cuh).
// What stands where: tensor_attend.cuh.
#pragma once

#include "attention/cuda/staged_chunks.cuh"
#include "attention/cuda/tensor_state.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kDim>
struct StagedAttend : TensorState<kEncoding, kDim> {
  using State = TensorState<kEncoding, kDim>;
  using Traits = typename State::Traits;
  using Cell = typename State::Cell;
  using Staged = StagedChunks<kEncoding, kDim>;
  using State::a, State::r, State::c, State::queries, State::out, State::sum;
  using State::Clear, State::MultiplyCells, State::ScaleBy, State::Store;

  /// Of codes that meet the weights as TinyPairOfCell, weights have this power of two in them.
  static constexpr int kWeightPower = Staged::kTransposes ? kPowerForTiny : 0;

  Staged staged;

  __device__ void operator()(const DecodeRun& run) {
    __syncwarp();  // lanes left the last run one by one
    const int chunks = (run.end - run.begin + kChunkSlots - 1) / kChunkSlots;
    staged.Begin(a.cache, *run.segment, run.head, run.begin, chunks);
    this->template LoadQueries<IsGrouped(kEncoding)>(run);
    Clear();
    float zeros[1][4] = {};  // of MultiplyValueMatrices
    for (int i = 0; i < chunks; ++i) {
      staged.Await(a.cache);
      const int live = run.end - run.begin - i * kChunkSlots;  // slots of the chunk, and more
      if (live < kChunkSlots) staged.Silence(live);
      float scores[2][4] = {};
      if constexpr (IsGrouped(kEncoding)) {
        AddScoresOfGroups(scores);
      } else {
        AddScoresOfTokens(scores);
      }
      float key_factors[4], value_factors[4], shrink[2];
      staged.Factors(key_factors, value_factors);
      uint32_t weights[4];
      if (this->template AddWeights<kWeightPower>(live - 4 * r, key_factors, value_factors, scores,
                                                  weights, shrink)) {
        ScaleBy(shrink, out[0]);
        ScaleBy(shrink, zeros);
      }
      if constexpr (Staged::kTransposes) {
        MultiplyValueMatrices(weights, zeros[0]);
      } else {
        MultiplyStagedValues(weights);
      }
      staged.Leave();
    }
    if constexpr (Staged::kTransposes) Rearrange(zeros[0]);
    Store(run);
  }

  __device__ void AddScoresOfTokens(float (&scores)[2][4]) {
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const uint4 keys = staged.Keys(load);
      ZIGGURAT_UNROLL
      for (int at = 0; at < Cell::kPairs; at += 2) {
        uint32_t x[2][4];
        ZIGGURAT_UNROLL
        for (int half = 0; half < 2; ++half) {
          PairsOfCells<PairOfCell<kEncoding>>(keys, Cell::PairAt(at + half), x[half]);
        }
        const int index = load * Cell::kPairs + at;
        MultiplyKeys(x, queries[index], queries[index + 1], scores);
      }
    }
  }

  /// The scale multiplies the query and not the 32 keys that have it, and codes stay as they come,
  ///   sum (code scale + zero) q = sum code (scale q) + sum zero q,
  /// one sum of zeros for each place in a byte, since the queries have its power of two.
  __device__ void AddScoresOfGroups(float (&scores)[2][4]) {
    constexpr int kSteps = Cell::kPairs / 2;
    float zeros[kSteps][4] = {};
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const uint4 keys = staged.Keys(load);
      uint32_t scale_words[Cell::kPairs], zero_words[Cell::kPairs];
      staged.KeyScales(load, scale_words, zero_words);
      ZIGGURAT_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t* q = queries + load * Cell::kPairs + 2 * step;
        uint32_t zero[2], scaled[2], x[2][4];
        ZIGGURAT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int pair = Cell::PairAt(2 * step + half);
          zero[half] = PairOfChannels<kEncoding>(zero_words, pair);
          scaled[half] =
              FusedBf16(q[half], PairOfChannels<kEncoding>(scale_words, pair), kMinusZeroPair);
          PairsOfCells<TinyPairOfCell<kEncoding>>(keys, pair, x[half]);
        }
        MultiplyAdd({zero[0], Anything(), zero[1], Anything()}, q[0], q[1], zeros[step]);
        MultiplyKeys(x, scaled[0], scaled[1], scores);
      }
    }
    float of_all[2] = {};  // of heads 2 c and 2 c + 1
    ZIGGURAT_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const float power = PowerOfTwo(TinyShift<kEncoding>(Cell::PairAt(2 * step)) - kPowerForTiny);
      for (int head = 0; head < 2; ++head) of_all[head] += zeros[step][head] * power;
    }
    ZIGGURAT_UNROLL
    for (int i = 0; i < 2; ++i) {
      ZIGGURAT_UNROLL
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = scores[i][j] * PowerOfTwo(-kTinyExponent - kPowerForTiny) + of_all[j % 2];
      }
    }
  }

  /// pairs[slot]: pair `pair` of the cell of slot 4 r + slot.
  template <uint32_t (*kPairOf)(uint32_t cell, int pair)>
  __device__ static void PairsOfCells(const uint4& cells, int pair, uint32_t (&pairs)[4]) {
    pairs[0] = kPairOf(cells.x, pair), pairs[1] = kPairOf(cells.y, pair);
    pairs[2] = kPairOf(cells.z, pair), pairs[3] = kPairOf(cells.w, pair);
  }
  /// x[half][slot]: 16 channels of the keys.
  __device__ static void MultiplyKeys(const uint32_t (&x)[2][4], uint32_t q0, uint32_t q1,
                                      float (&scores)[2][4]) {
    ZIGGURAT_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t fragment[4] = {x[0][2 * i], x[0][2 * i + 1], x[1][2 * i], x[1][2 * i + 1]};
      MultiplyAdd(fragment, q0, q1, scores[i]);
    }
  }

  /// As with keys: scales multiply the weights, and codes stay as they come. A matrix has channels
  /// of one group, so that one weight serves them all.
  ///   zeros   what all channels 32 r .. 32 r + 31 have, of heads 2 c and 2 c + 1
  __device__ void MultiplyValueMatrices(const uint32_t (&weights)[4], float (&zeros)[4]) {
    uint32_t zero_pairs[4], scale_words[8] = {};
    staged.ValueZeros(zero_pairs);
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; i += 2) {
      MultiplyAdd({zero_pairs[i], Anything(), zero_pairs[i + 1], Anything()}, weights[i],
                  weights[i + 1], zeros);
    }
    ZIGGURAT_UNROLL
    for (int part = 0; part < Traits::kParts; ++part) {
      if (part % 2 == 0) staged.ValueScales(part / 2, scale_words);
      uint32_t codes[4], scaled[4];
      staged.ValueMatrices(part, codes);
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t scale =
            __byte_perm(scale_words[i], scale_words[i + 4], part % 2 == 0 ? 0x5410 : 0x7632);
        scaled[i] = FusedBf16(weights[i], scale, kMinusZeroPair);
      }
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; i += 2) {
        ZIGGURAT_UNROLL
        for (int j = 0; j < 4; j += 2) {  // channels 32 part + 4 r + j and the next
          const uint32_t fragment[4] = {TinyPairOfCell<kEncoding>(codes[i], j),
                                        TinyPairOfCell<kEncoding>(codes[i], j + 1),
                                        TinyPairOfCell<kEncoding>(codes[i + 1], j),
                                        TinyPairOfCell<kEncoding>(codes[i + 1], j + 1)};
          MultiplyAdd(fragment, scaled[i], scaled[i + 1], out[0][2 * part + j / 2]);
        }
      }
    }
  }

  /// Sums as MultiplyValueMatrices leaves them become those of Store: a lane's channels side by
  /// side, zeros added, and no powers of two.
  __device__ void Rearrange(const float (&zeros)[4]) {
    const float power = PowerOfTwo(-kWeightPower);
    sum[0] *= power, sum[1] *= power;
    auto* of_heads = reinterpret_cast<float2*>(staged.memory()) + c;  // [channel][4]
    __syncwarp();
    ZIGGURAT_UNROLL
    for (int part = 0; part < Traits::kParts; ++part) {
      float of_all[2];  // row `part` of the sums of zeros
      for (int head = 0; head < 2; ++head) {
        of_all[head] = __shfl_sync(kAllLanes, zeros[head], 4 * part + c) * power;
      }
      ZIGGURAT_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float(&tile)[4] = out[0][2 * part + j / 2];
        const float of_code = PowerOfTwo(-kTinyExponent - TinyShift<kEncoding>(j) - kWeightPower);
        of_heads[4 * (32 * part + 4 * r + j)] = make_float2(
            tile[j % 2 * 2] * of_code + of_all[0], tile[j % 2 * 2 + 1] * of_code + of_all[1]);
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
      staged.ValueScalesOfChannel(r * Traits::kPieceChannels, scales, zeros);
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
