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
#pragma once

#include "attention/cuda/decode_share.cuh"
#include "attention/cuda/packed_codes.cuh"

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
};

template <Encoding kEncoding, int kMaxDim>
struct TensorAttend {
  using Traits = TensorShape<kEncoding, kMaxDim>;
  using Cell = typename Traits::Cell;

  const DecodeArguments& a;
  const DecodePlan& plan;
  const int r = LaneOfThread() / 4;
  const int c = LaneOfThread() % 4;
  uint32_t queries[Traits::kKeyPairs] = {};
  float out[Traits::kPasses][Traits::kTiles][4] = {};
  float highest[2] = {};  ///< of heads 2 c and 2 c + 1
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
    for (int begin = run.begin; begin < run.end; begin += kChunkSlots) {
      // Where they fit the registers, values are under way while scores are computed.
      Values values;
      if constexpr (Traits::kPasses == 1) LoadValues(run, begin, 0, values);
      float scores[2][4] = {};
      AddScores(run, begin, scores);
      uint32_t weights[4];
      AddWeights(run, begin, scores, weights);
      ZIGGURAT_UNROLL
      for (int pass = 0; pass < Traits::kPasses; ++pass) {
        if constexpr (Traits::kPasses > 1) LoadValues(run, begin, pass, values);
        MultiplyValues(run, pass, values, weights);
      }
    }
    Store(run);
  }

  // ---- Queries and keys -------------------------------------------------------------------------

  /// Of head r, the channels that this lane's cells of keys have.
  __device__ void LoadQueries(const DecodeRun& run) {
    const int dim = a.shape.head_dim;
    const float* row = QueriesOf(a, run) + static_cast<size_t>(r) * dim;
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const int first = (4 * load + c) * Cell::kChannels;
      ZIGGURAT_UNROLL
      for (int pair = 0; pair < Cell::kPairs; ++pair) {
        const int low = first + Cell::ChannelOf(pair, 0), high = first + Cell::ChannelOf(pair, 1);
        const bool is_live = r < run.heads && first < dim;
        queries[load * Cell::kPairs + pair] = is_live ? PackBf16(row[low], row[high]) : 0;
      }
    }
  }

  __device__ void AddScores(const DecodeRun& run, int begin, float (&scores)[2][4]) {
    const DeviceSegment& s = *run.segment;
    const int cells = a.shape.head_dim / Cell::kChannels, slot = begin + 4 * r;
    const uint32_t stride = s.keys.slots_per_block;
    const bool is_live = slot < run.end;
    const unsigned char* area = nullptr;
    if (is_live) area = AreaOf(a.cache, s.keys, run.head, slot) + 4 * (slot % stride);
    const uint16_t* scales = nullptr;
    if (IsGrouped(kEncoding) && is_live && s.group % 4 == 0) {
      scales = GroupEntryOf(a.cache, s, Side::kKeys, run.head, slot, 0, a.shape.head_dim);
    }
    ZIGGURAT_UNROLL
    for (int first = 0; first < Traits::kKeyLoads; first += Traits::kKeyBatch) {
      uint4 keys[Traits::kKeyBatch];
      ZIGGURAT_UNROLL
      for (int i = 0; i < Traits::kKeyBatch; ++i) {
        const int cell = 4 * (first + i) + c;
        keys[i] = make_uint4(0, 0, 0, 0);
        if (is_live && cell < cells) {
          keys[i] = __ldg(reinterpret_cast<const uint4*>(area + size_t{4} * cell * stride));
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
      const bool is_live = scales != nullptr && 4 * (first + i) + c < cells;
      ZIGGURAT_UNROLL
      for (int pair = 0; pair < Cell::kPairs; ++pair) {
        const int index = (first + i) * Cell::kPairs + pair, half = index % 2;
        uint32_t scale = 0, zero = 0;
        if (IsGrouped(kEncoding) && is_live) {
          const int channel = (4 * (first + i) + c) * Cell::kChannels;
          scale = ScalePair(scales + channel, pair);
          zero = ScalePair(scales + a.shape.head_dim + channel, pair);
        }
        uint32_t x[4];
        for (int slot = 0; slot < 4; ++slot) {
          x[slot] = PairOfCell<kEncoding>(of_slots[slot], pair);
          if (IsGrouped(kEncoding)) x[slot] = FusedBf16(x[slot], scale, zero);
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

  /// The bf16 of channels (pair, pair + kPairs) of a cell, out of the words of all its channels.
  __device__ static uint32_t ScalePair(const uint16_t* of_cell, int pair) {
    const auto* words = reinterpret_cast<const uint32_t*>(of_cell);
    return __byte_perm(__ldg(words + pair / 2), __ldg(words + (pair + Cell::kPairs) / 2),
                       pair % 2 == 0 ? 0x5410 : 0x7632);
  }

  // ---- Softmax ----------------------------------------------------------------------------------

  /// Scores become weights relative to the highest so far. `weights[i]`: of head r, those of slots
  /// 8 c + i and 8 c + 4 + i.
  __device__ void AddWeights(const DecodeRun& run, int begin, float (&scores)[2][4],
                             uint32_t (&weights)[4]) {
    float top[2] = {-INFINITY, -INFINITY}, factors[4] = {};
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {  // slot 4 r + i: row r or r + 8 of fragment i / 2
      const int slot = begin + 4 * r + i;
      const bool is_live = slot < run.end;
      float factor = a.shape.scale;
      if (is_live) {
        factor *= SlotFactor(a.cache, *run.segment, Side::kKeys, run.head, slot);
        factors[i] = SlotFactor(a.cache, *run.segment, Side::kValues, run.head, slot);
      }
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        float& score = scores[i / 2][2 * (i % 2) + head];
        score = is_live ? score * factor : -INFINITY;
        top[head] = fmaxf(top[head], score);
      }
    }
    float shrink[2];
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) {
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        top[head] = fmaxf(top[head], __shfl_xor_sync(kAllLanes, top[head], lanes));
      }
      top[head] = fmaxf(top[head], highest[head]);
      shrink[head] = __expf(highest[head] - top[head]);
      highest[head] = top[head];
      sum[head] *= shrink[head];
    }
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      float weight[2];
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        weight[head] = __expf(scores[i / 2][2 * (i % 2) + head] - top[head]);
        sum[head] += weight[head];
      }
      weights[i] = Transpose(PackBf16(weight[0] * factors[i], weight[1] * factors[i]));
    }
    ZIGGURAT_UNROLL
    for (int pass = 0; pass < Traits::kPasses; ++pass) {
      ZIGGURAT_UNROLL
      for (int tile = 0; tile < Traits::kTiles; ++tile) {
        for (int i = 0; i < 4; ++i) out[pass][tile][i] *= shrink[i % 2];
      }
    }
  }

  // ---- Values -----------------------------------------------------------------------------------

  struct Piece {
    uint32_t cells[Traits::kPieceCells];
  };
  __device__ static Piece LoadPiece(const unsigned char* from) {
    Piece piece;
    if constexpr (Traits::kPieceBytes == 16) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(from));
      piece.cells[0] = x.x, piece.cells[1] = x.y, piece.cells[2] = x.z, piece.cells[3] = x.w;
    } else if constexpr (Traits::kPieceBytes == 8) {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(from));
      piece.cells[0] = x.x, piece.cells[1] = x.y;
    } else {
      piece.cells[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
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

  __device__ void LoadValues(const DecodeRun& run, int begin, int pass, Values& values) {
    const DeviceSegment& s = *run.segment;
    const int row_bytes = a.shape.head_dim / Cell::kChannels * 4;
    const int at = (8 * pass + r) * Traits::kPieceBytes, first = begin + 8 * c;
    const bool is_live = at < row_bytes && first < run.end;
    values.first = first;
    values.channel = at / 4 * Cell::kChannels;
    values.group_scales = nullptr;
    const unsigned char* rows = nullptr;
    if (is_live) {
      rows = AreaOf(a.cache, s.values, run.head, first) + at +
             first % s.values.slots_per_block * row_bytes;
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
      values.scales[i % 4] |= static_cast<uint32_t>(__ldg(entry + i * stride)) << (i / 4 * 16);
      values.zeros[i % 4] |= static_cast<uint32_t>(__ldg(entry + i * stride + a.shape.head_dim))
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
      ZIGGURAT_UNROLL
      for (int j = 0; j < Cell::kPairs; ++j) {  // channels 2 j and 2 j + 1 of the cell
        uint32_t x[2][4];
        ZIGGURAT_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          ZIGGURAT_UNROLL
          for (int i = 0; i < 4; ++i) {
            x[odd][i] = PairOfSlots<kEncoding>(values.pieces[i].cells[cell],
                                               values.pieces[i + 4].cells[cell], 2 * j + odd);
            if (IsGrouped(kEncoding)) {
              x[odd][i] = FusedBf16(x[odd][i], values.scales[i], values.zeros[i]);
            }
          }
        }
        float(&tile)[4] = out[pass][cell * Cell::kPairs + j];
        ZIGGURAT_UNROLL
        for (int i = 0; i < 4; i += 2) {
          const uint32_t fragment[4] = {x[0][i], x[1][i], x[0][i + 1], x[1][i + 1]};
          MultiplyAdd(fragment, weights[i], weights[i + 1], tile);
        }
      }
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
      if (r == 0) plan.lse[row] = highest[head] + __logf(sum[head]);
      ZIGGURAT_UNROLL
      for (int pass = 0; pass < Traits::kPasses; ++pass) {
        const int first = (8 * pass + r) * Traits::kPieceChannels;
        if (first >= dim) break;
        float* to = plan.out + row * dim + first;
        ZIGGURAT_UNROLL
        for (int tile = 0; tile < Traits::kTiles; ++tile) {
          *reinterpret_cast<float2*>(to + 2 * tile) =
              make_float2(out[pass][tile][head] / sum[head], out[pass][tile][2 + head] / sum[head]);
        }
      }
    }
  }
};

}  // namespace ziggurat::cuda
