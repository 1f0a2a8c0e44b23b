// Partial attention on tensor cores: 32 slots of one KV head at a time, for eight query heads.
//
// Blocks keep keys as [D / x][S] cells (docs/block_layout.md). That is what a register of a matrix
// fragment is: neighbouring channels of one token. So fragments are loaded straight from memory, 16
// bytes to a lane, with nothing in between: lane 4 r + c takes the cells of slots 4 r .. 4 r + 3 in
// rows c, c + 4, ...; a warp's load covers whole runs of 64 bytes. In which order channels and
// slots come does not matter to a sum, as long as queries and values follow. Scores are
//   S[slot, head] = K[slot, channel] Q[channel, head],
// two fragments of 16 slots; lane 4 r + c then has those of its four slots for heads 2 c, 2 c + 1.
// The output is O[channel, head] = V[channel, slot] P[slot, head]: the weights are transposed
// inside the warp, lane 4 r + c loads 16 bytes of the rows of slots 8 c .. 8 c + 7, and pairs of
// slots are put together by byte permutation.
//
// Whole chunks of codes come by way of shared memory, some chunks ahead (staged_chunks.cuh).
#pragma once

#include "attention/cuda/decode_share.cuh"
#include "attention/cuda/packed_codes.cuh"
#include "attention/cuda/run_plane.cuh"
#include "attention/cuda/staged_chunks.cuh"

namespace ziggurat::cuda {

/// What the loads of one format and (largest) head size look like.
template <Encoding kEncoding, int kMaxDim>
struct TensorShape {
  using Cell = CellTraits<kEncoding>;
  static constexpr int kCells = kMaxDim / Cell::kChannels;  ///< of a slot
  static constexpr int kKeyLoads = (kCells + 3) / 4;
  static constexpr int kKeyPairs = kKeyLoads * Cell::kPairs;  ///< even: two make a step of 16
  /// Keys that are under way at the same time, in loads.
  static constexpr int kKeyBatch = kKeyLoads < 16 ? kKeyLoads : 16;

  static constexpr int kRowBytes = kCells * 4;
  static constexpr int kPieceBytes = ValuePieceBytes(kEncoding, kMaxDim);
  static constexpr int kPieceCells = kPieceBytes / 4;
  static constexpr int kPieceChannels = kPieceCells * Cell::kChannels;
  static constexpr int kPasses = (kRowBytes / kPieceBytes + 7) / 8;
  static constexpr int kTiles = kPieceChannels / 2;  ///< of 16 channels, in a pass
  static constexpr int kParts = kMaxDim / 32;
};

template <Encoding kEncoding, int kMaxDim>
struct TensorAttend {
  using Traits = TensorShape<kEncoding, kMaxDim>;
  using Cell = typename Traits::Cell;
  using Staged = StagedChunks<kEncoding, kMaxDim>;
  using Plane = RunPlane;

  const DecodeArguments& a;
  const DecodePlan& plan;
  Staged staged;
  const int r = LaneOfThread() / 4;
  const int c = LaneOfThread() % 4;
  uint32_t queries[Traits::kKeyPairs] = {};
  float out[Traits::kPasses][Traits::kTiles][4] = {};
  float highest[2] = {};  ///< of heads 2 c and 2 c + 1; of scores times log2(e)
  float sum[2] = {};

  __device__ void operator()(const DecodeRun& run) {
    if (LeftOut(a, plan, run)) return;
    LoadQueries(run);
    __syncwarp();  // lanes left the last run one by one
    ZIGGURAT_UNROLL
    for (int pass = 0; pass < Traits::kPasses; ++pass) {
      ZIGGURAT_UNROLL
      for (int tile = 0; tile < Traits::kTiles; ++tile) {
        for (int i = 0; i < 4; ++i) out[pass][tile][i] = 0;
      }
    }
    highest[0] = highest[1] = -INFINITY;
    sum[0] = sum[1] = 0;
    int begin = run.begin;
    if constexpr (Staged::kExists) {
      if (FitsStages(*run.segment, a.shape.head_dim)) begin = AttendStaged(run);
    }
    if (begin < run.end) AttendDirectly(run, begin);
    Store(run);
  }

  /// From `begin` on, whatever the segment.
  __device__ void AttendDirectly(const DecodeRun& run, int begin) {
    const DeviceSegment& s = *run.segment;
    const Plane keys(a.cache, s.keys, run.head), rows(a.cache, s.values, run.head);
    const bool has_factors =
        IsPerToken(kEncoding) || s.key_norms.exists() || s.value_norms.exists();
    for (; begin < run.end; begin += kChunkSlots) {
      // Where they fit the registers, values are under way while scores are computed.
      Values values;
      if constexpr (Traits::kPasses == 1) LoadValues(run, rows, begin, 0, values);
      float scores[2][4] = {};
      AddScores(run, keys, begin, scores);
      const int slot = begin + 4 * r, live = run.end - slot;
      float key_factors[4] = {1, 1, 1, 1}, value_factors[4] = {1, 1, 1, 1};
      if (has_factors) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (i >= live) continue;
          key_factors[i] = SlotFactor(a.cache, s, Side::kKeys, run.head, slot + i);
          value_factors[i] = SlotFactor(a.cache, s, Side::kValues, run.head, slot + i);
        }
        __syncwarp();
      }
      uint32_t weights[4];
      float shrink[2];
      if (AddWeights(live, key_factors, value_factors, scores, weights, shrink)) {
        ZIGGURAT_UNROLL
        for (int pass = 0; pass < Traits::kPasses; ++pass) ScaleBy(shrink, out[pass]);
      }
      ZIGGURAT_UNROLL
      for (int pass = 0; pass < Traits::kPasses; ++pass) {
        if constexpr (Traits::kPasses > 1) LoadValues(run, rows, begin, pass, values);
        MultiplyValues(run, pass, values, weights);
      }
    }
  }

  // ---- Queries and keys -------------------------------------------------------------------------

  /// Of head r, the channels that this lane's cells of keys have.
  __device__ void LoadQueries(const DecodeRun& run) {
    const int dim = a.shape.head_dim;
    const float* row = QueriesOf(a, run) + static_cast<size_t>(r) * dim;
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const int first = (4 * load + c) * Cell::kChannels;
      float channels[Cell::kChannels] = {};
      if (r < run.heads && first < dim) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < Cell::kChannels; i += 2) {
          const float2 two = *reinterpret_cast<const float2*>(row + first + i);
          channels[i] = two.x, channels[i + 1] = two.y;
        }
      }
      ZIGGURAT_UNROLL
      for (int pair = 0; pair < Cell::kPairs; ++pair) {
        queries[load * Cell::kPairs + pair] =
            PackBf16(channels[Cell::ChannelOf(pair, 0)], channels[Cell::ChannelOf(pair, 1)]);
      }
    }
  }

  __device__ void AddScores(const DecodeRun& run, const Plane& plane, int begin,
                            float (&scores)[2][4]) {
    const DeviceSegment& s = *run.segment;
    const int cells = a.shape.head_dim / Cell::kChannels, slot = begin + 4 * r;
    const bool is_live = slot < run.end;
    const unsigned char* area = nullptr;
    if (is_live) {
      const Plane::Place place = plane.PlaceOf(a.cache, slot);
      area = place.area + 4 * place.in_block;
    }
    const uint16_t* scales = nullptr;
    if (IsGrouped(kEncoding) && is_live && s.group % 4 == 0) {
      scales = GroupEntryOf(a.cache, s, Side::kKeys, run.head, slot, 0, a.shape.head_dim);
    }
    const size_t stride = size_t{4} * plane.slots_per_block();  // bytes from cell to cell
    ZIGGURAT_UNROLL
    for (int first = 0; first < Traits::kKeyLoads; first += Traits::kKeyBatch) {
      uint4 keys[Traits::kKeyBatch];
      ZIGGURAT_UNROLL
      for (int i = 0; i < Traits::kKeyBatch; ++i) {
        const int cell = 4 * (first + i) + c;
        keys[i] = make_uint4(0, 0, 0, 0);
        if (is_live && cell < cells) {
          keys[i] = *reinterpret_cast<const uint4*>(area + cell * stride);
        }
      }
      MultiplyKeys(keys, scales, first, cells, scores);
    }
  }

  __device__ void MultiplyKeys(const uint4 (&keys)[Traits::kKeyBatch], const uint16_t* scales,
                               int first, int cells, float (&scores)[2][4]) {
    // A step of 16 channels takes two pairs, which may be of two loads.
    uint32_t a0[4] = {}, a1[4] = {};
    ZIGGURAT_UNROLL
    for (int i = 0; i < Traits::kKeyBatch; ++i) {
      const uint32_t of_slots[4] = {keys[i].x, keys[i].y, keys[i].z, keys[i].w};
      uint32_t scale_words[Cell::kPairs] = {}, zero_words[Cell::kPairs] = {};
      if (IsGrouped(kEncoding) && scales != nullptr && 4 * (first + i) + c < cells) {
        const auto* of_cell =
            reinterpret_cast<const uint32_t*>(scales + (4 * (first + i) + c) * Cell::kChannels);
        ZIGGURAT_UNROLL
        for (int word = 0; word < Cell::kPairs; ++word) {
          scale_words[word] = of_cell[word];
          zero_words[word] = of_cell[a.shape.head_dim / 2 + word];
        }
      }
      ZIGGURAT_UNROLL
      for (int pair = 0; pair < Cell::kPairs; ++pair) {
        const int index = (first + i) * Cell::kPairs + pair, half = index % 2;
        uint32_t x[4];
        for (int slot = 0; slot < 4; ++slot) {
          x[slot] = PairOfCell<kEncoding>(of_slots[slot], pair);
          if constexpr (IsGrouped(kEncoding)) {
            x[slot] = FusedBf16(x[slot], PairOfChannels<kEncoding>(scale_words, pair),
                                PairOfChannels<kEncoding>(zero_words, pair));
          }
        }
        a0[2 * half] = x[0];
        a0[2 * half + 1] = x[1];
        a1[2 * half] = x[2];
        a1[2 * half + 1] = x[3];
        if (half == 0) continue;
        MultiplyAdd(a0, queries[index - 1], queries[index], scores[0]);
        MultiplyAdd(a1, queries[index - 1], queries[index], scores[1]);
      }
    }
  }

  // ---- Softmax ----------------------------------------------------------------------------------

  /// Scores become weights relative to the highest so far. `weights[i]`: of head r, those of slots
  /// 8 c + i and 8 c + 4 + i.
  ///   live      how many of this lane's slots 4 r .. 4 r + 3 live
  ///   factors   what their keys and values are multiplied by besides
  ///   shrink    what is to become of sums so far, of heads 2 c and 2 c + 1
  /// Returns whether any lane's shrinks: after the first chunks a new highest score is rare.
  __device__ bool AddWeights(int live, const float (&key_factors)[4],
                             const float (&value_factors)[4], float (&scores)[2][4],
                             uint32_t (&weights)[4], float (&shrink)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
    const float scale = a.shape.scale * kLog2E;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {  // slot 4 r + i: row r or r + 8 of fragment i / 2
      const float factor = scale * key_factors[i];
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        float& score = scores[i / 2][2 * (i % 2) + head];
        score = i < live ? score * factor : -INFINITY;
        top[head] = fmaxf(top[head], score);
      }
    }
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) {
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        top[head] = fmaxf(top[head], __shfl_xor_sync(kAllLanes, top[head], lanes));
      }
      top[head] = fmaxf(top[head], highest[head]);
      shrink[head] = Exp2(highest[head] - top[head]);
      highest[head] = top[head];
    }
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) sum[head] *= shrink[head];
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      float weight[2];
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        weight[head] = Exp2(scores[i / 2][2 * (i % 2) + head] - top[head]);
        sum[head] += weight[head];
        weight[head] *= value_factors[i];
      }
      weights[i] = Transpose(PackBf16(weight[0], weight[1]));
    }
    return __any_sync(kAllLanes, shrink[0] != 1 || shrink[1] != 1) != 0;
  }

  template <int kCount>
  __device__ static void ScaleBy(const float (&shrink)[2], float (&tiles)[kCount][4]) {
    ZIGGURAT_UNROLL
    for (int tile = 0; tile < kCount; ++tile) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) tiles[tile][i] *= shrink[i % 2];
    }
  }

  // ---- Values -----------------------------------------------------------------------------------

  struct Piece {
    uint32_t cells[Traits::kPieceCells];
  };
  __device__ static Piece LoadPiece(const unsigned char* from) {
    Piece piece;
    if constexpr (Traits::kPieceBytes == 16) {
      const uint4 x = *reinterpret_cast<const uint4*>(from);
      piece.cells[0] = x.x, piece.cells[1] = x.y, piece.cells[2] = x.z, piece.cells[3] = x.w;
    } else if constexpr (Traits::kPieceBytes == 8) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      piece.cells[0] = x.x, piece.cells[1] = x.y;
    } else {
      piece.cells[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return piece;
  }

  /// Of slots first .. first + 7, those that live, the eighth of their rows that is this lane's; 0
  /// for others.
  struct Values {
    Piece pieces[8];
    int first;
    int channel;                   ///< of the model: the first of the piece
    const uint16_t* group_scales;  ///< of slot `first`, for channel 0
    uint32_t scales[4];            ///< of slots first + i and first + 4 + i, for the first channel
    uint32_t zeros[4];
  };

  __device__ void LoadValues(const DecodeRun& run, const Plane& plane, int begin, int pass,
                             Values& values) {
    const DeviceSegment& s = *run.segment;
    const int row_bytes = a.shape.head_dim / Cell::kChannels * 4;
    const int at = (8 * pass + r) * Traits::kPieceBytes, first = begin + 8 * c;
    const bool is_live = at < row_bytes && first < run.end;
    values.first = first;
    values.channel = at / 4 * Cell::kChannels;
    values.group_scales = nullptr;
    const unsigned char* rows = nullptr;
    if (is_live) {
      const Plane::Place place = plane.PlaceOf(a.cache, first);
      rows = place.area + at + place.in_block * row_bytes;
      if constexpr (IsGrouped(kEncoding)) {
        values.group_scales =
            GroupEntryOf(a.cache, s, Side::kValues, run.head, first, 0, a.shape.head_dim);
      }
    }
    ZIGGURAT_UNROLL
    for (int i = 0; i < 8; ++i) {
      values.pieces[i] = {};
      if (is_live && first + i < run.end) values.pieces[i] = LoadPiece(rows + i * row_bytes);
    }
    if constexpr (IsGrouped(kEncoding)) LoadValueScales(run, values.channel, values);
  }

  /// Scales and zeros of the group that holds `channel`. Eight slots from a multiple of eight stand
  /// in one unit, one behind the other, since a group is a multiple of eight.
  __device__ void LoadValueScales(const DecodeRun& run, int channel, Values& values) {
    const int group = run.segment->group, stride = a.shape.head_dim / group;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) values.scales[i] = values.zeros[i] = 0;
    if (values.group_scales == nullptr) return;
    const uint16_t* entry = values.group_scales + channel / group;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (values.first + i >= run.end) break;
      values.scales[i % 4] |= static_cast<uint32_t>(entry[i * stride]) << (i / 4 * 16);
      values.zeros[i % 4] |= static_cast<uint32_t>(entry[i * stride + a.shape.head_dim])
                             << (i / 4 * 16);
    }
  }

  __device__ void MultiplyValues(const DecodeRun& run, int pass, Values& values,
                                 const uint32_t (&weights)[4]) {
    ZIGGURAT_UNROLL
    for (int cell = 0; cell < Traits::kPieceCells; ++cell) {
      if (IsGrouped(kEncoding) && cell > 0 && run.segment->group < Traits::kPieceChannels) {
        LoadValueScales(run, values.channel + cell * Cell::kChannels, values);
        __syncwarp();  // lanes that have nothing to load are ahead
      }
      uint32_t cells[8];
      ZIGGURAT_UNROLL
      for (int i = 0; i < 8; ++i) cells[i] = values.pieces[i].cells[cell];
      MultiplyCells(cells, values.scales, values.zeros, weights, &out[pass][cell * Cell::kPairs]);
    }
  }

  /// `cells[i]`: of slot 8 c + i. `to`: the tiles of their channels.
  __device__ static void MultiplyCells(const uint32_t (&cells)[8], const uint32_t (&scales)[4],
                                       const uint32_t (&zeros)[4], const uint32_t (&weights)[4],
                                       float (*to)[4]) {
    ZIGGURAT_UNROLL
    for (int j = 0; j < Cell::kPairs; ++j) {  // channels 2 j and 2 j + 1 of the cell
      uint32_t x[2][4];
      ZIGGURAT_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < 4; ++i) {
          x[odd][i] = PairOfSlots<kEncoding>(cells[i], cells[i + 4], 2 * j + odd);
          if constexpr (IsGrouped(kEncoding)) x[odd][i] = FusedBf16(x[odd][i], scales[i], zeros[i]);
        }
      }
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const uint32_t fragment[4] = {x[0][i], x[1][i], x[0][i + 1], x[1][i + 1]};
        MultiplyAdd(fragment, weights[i], weights[i + 1], to[j]);
      }
    }
  }

  // ---- Whole chunks by way of shared memory -----------------------------------------------------

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

  // ---- Result -----------------------------------------------------------------------------------

  __device__ void Store(const DecodeRun& run) {
    const int dim = a.shape.head_dim;
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) {
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        sum[head] += __shfl_xor_sync(kAllLanes, sum[head], lanes);
      }
      if (2 * c + head >= run.heads) continue;
      const size_t row = static_cast<size_t>(run.partial) * HeadsOfPass(a.shape) + 2 * c + head;
      if (r == 0) plan.lse[row] = highest[head] * kLn2 + __logf(sum[head]);
      const float inverse = 1 / sum[head];
      ZIGGURAT_UNROLL
      for (int pass = 0; pass < Traits::kPasses; ++pass) {
        const int first = (8 * pass + r) * Traits::kPieceChannels;
        if (first >= dim) break;
        float* to = plan.out + row * dim + first;
        ZIGGURAT_UNROLL
        for (int tile = 0; tile < Traits::kTiles; ++tile) {
          *reinterpret_cast<float2*>(to + 2 * tile) =
              make_float2(out[pass][tile][head] * inverse, out[pass][tile][2 + head] * inverse);
        }
      }
    }
  }
};

}  // namespace ziggurat::cuda
