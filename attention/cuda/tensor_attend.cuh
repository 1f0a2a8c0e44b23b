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
// Codes come by way of shared memory where they can (staged_attend.cuh).
#pragma once

#include "attention/cuda/run_plane.cuh"
#include "attention/cuda/tensor_state.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kMaxDim>
struct TensorAttend : TensorState<kEncoding, kMaxDim> {
  using Base = TensorState<kEncoding, kMaxDim>;
  using Traits = typename Base::Traits;
  using Cell = typename Base::Cell;
  using Plane = RunPlane;
  using Base::a, Base::plan, Base::r, Base::c, Base::queries, Base::out;
  using Base::AddWeights, Base::Clear, Base::LoadQueries, Base::MultiplyCells;
  using Base::ScaleBy, Base::Store;

  __device__ void operator()(const DecodeRun& run) {
    if (LeftOut(a, plan, run)) return;
    LoadQueries(run);
    __syncwarp();  // lanes left the last run one by one
    Clear();
    const DeviceSegment& s = *run.segment;
    const Plane keys(a.cache, s.keys, run.head), rows(a.cache, s.values, run.head);
    const bool has_factors =
        IsPerToken(kEncoding) || s.key_norms.exists() || s.value_norms.exists();
    for (int begin = run.begin; begin < run.end; begin += kChunkSlots) {
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
    Store(run);
  }

  // ---- Keys -------------------------------------------------------------------------------------

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
    if (IsGrouped(kEncoding) && is_live) {
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
      for (int j = 0; j < Cell::kPairs; ++j) {
        const int index = (first + i) * Cell::kPairs + j, half = index % 2;
        const int pair = Cell::PairAt(j);
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
    if constexpr (IsGrouped(kEncoding)) {
      LoadValueScales(run, values.channel, values);
      __syncwarp();  // lanes leave it one by one
    }
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
      // Where not all channels of the piece are of one group.
      if (IsGrouped(kEncoding) && cell > 0 && run.segment->group % Traits::kPieceChannels != 0) {
        LoadValueScales(run, values.channel + cell * Cell::kChannels, values);
        __syncwarp();  // lanes that have nothing to load are ahead
      }
      uint32_t cells[8];
      ZIGGURAT_UNROLL
      for (int i = 0; i < 8; ++i) cells[i] = values.pieces[i].cells[cell];
      MultiplyCells(cells, values.scales, values.zeros, weights, &out[pass][cell * Cell::kPairs]);
    }
  }
};

}  // namespace ziggurat::cuda
