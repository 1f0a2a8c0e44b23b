// Chunks of codes on their way through shared memory: while a warp computes one, the next one (of
// grouped codes: the next two) is under way, and takes no registers.
//
// Eight lanes copy whole runs of 128 bytes: a second cache is asked for a run at once. They write
// pieces of 16 bytes in such an order that those who read find them in different banks.
#pragma once

#include "attention/cuda/async_copy.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/packed_codes.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kDim>
class StagedChunks {
  static constexpr int kBits = EncodingBits(kEncoding);
  static constexpr int kChannels = 32 / kBits;
  static constexpr int kRowBytes = kDim * kBits / 8;
  static constexpr int kPieceBytes = ValuePieceBytes(kEncoding, kDim);
  static constexpr int kLoads = kDim / kChannels / 4;
  static constexpr int kParts = kDim / 32;  ///< of 32 channels

  // A stage: keys, values, scales of keys, scales of values.
  static constexpr int kKeyBytes = kLoads * 16 * kWarp;
  static constexpr int kValueBytes = kChunkSlots * kRowBytes;
  /// Of a side: of codes in groups at most, since 32 is the smallest group here.
  static constexpr int kScaleBytes = IsGrouped(kEncoding) ? 4 * kDim : 4 * kChunkSlots;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes + 2 * kScaleBytes;
  static constexpr int kStages = IsGrouped(kEncoding) ? 3 : 2;

 public:
  /// Whether there are such chunks. Of which segments: FitsStages.
  static constexpr bool kExists = HasStages(kEncoding, kDim);
  static constexpr int kBytes = kExists ? kStages * kStageBytes : 0;  ///< for each warp
  /// Whether values are read by ValueMatrices, else by Values.
  static constexpr bool kTransposes = kEncoding == Encoding::kInt4;

  /// `shared`: kBytes for this warp, aligned to 16.
  __device__ explicit StagedChunks(unsigned char* shared)
      : shared_(shared), lane_(LaneOfThread()) {}

  /// From slot `begin` on, a multiple of 32. The chunks of the run before are all left.
  __device__ void Begin(const DeviceCache& cache, const DeviceSegment& s, int head, int begin,
                        int chunks) {
    codes_ = Planes(cache, s.keys, s.values, head);
    scales_ = Planes(cache, s.key_scales, s.value_scales, head);
    if constexpr (IsGrouped(kEncoding)) {
      group_shift_ = __ffs(s.group) - 1;
      unit_bytes_ = s.key_scales.unit_bytes;
    }
    next_ = begin;
    end_ = begin + chunks * kChunkSlots;
    current_ = 0;
    FindBlocks();
    for (int i = 0; i < kStages - 1; ++i) CopyNext(cache, i);
  }

  /// The current chunk is there; another one sets out.
  __device__ void Await(const DeviceCache& cache) {
    copies_.Wait<kStages - 2>();
    __syncwarp();  // pieces are other lanes', and these have left the stage that is filled next
    CopyNext(cache, current_ == 0 ? kStages - 1 : current_ - 1);
  }
  __device__ void Leave() { current_ = current_ == kStages - 1 ? 0 : current_ + 1; }

  /// Memory of the stages, when the chunks of a run are all left.
  __device__ unsigned char* memory() const { return shared_; }

  // ---- The current chunk ------------------------------------------------------------------------

  /// Cells of slots 4 r .. 4 r + 3 in row 4 load + c.
  __device__ uint4 Keys(int load) const {
    const int r = lane_ / 4, c = lane_ % 4;
    return reinterpret_cast<const uint4*>(stage())[kWarp * load + PieceOfKeys(c, r)];
  }
  /// This lane's piece of the row of slot 8 c + i.
  __device__ void Values(int i, uint32_t (&cells)[kPieceBytes / 4]) const {
    const int r = lane_ / 4, c = lane_ % 4;
    const int at = (8 * c + i) * kRowBytes + r * kPieceBytes;
    const unsigned char* from = stage() + kKeyBytes + 16 * ((at / 16) ^ 2 * c) + at % 16;
    if constexpr (kPieceBytes == 16) {
      const auto x = *reinterpret_cast<const uint4*>(from);
      cells[0] = x.x, cells[1] = x.y, cells[2] = x.z, cells[3] = x.w;
    } else if constexpr (kPieceBytes == 8) {
      const auto x = *reinterpret_cast<const uint2*>(from);
      cells[0] = x.x, cells[1] = x.y;
    } else {
      cells[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
  /// What codes of slots 4 r .. 4 r + 3 are multiplied by.
  __device__ void Factors(float (&of_keys)[4], float (&of_values)[4]) const {
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) of_keys[i] = of_values[i] = 1;
    if constexpr (IsPerToken(kEncoding)) {
      const auto* scales = reinterpret_cast<const float4*>(scales_of_stage()) + lane_ / 4;
      const float4 k = scales[0], v = scales[kScaleBytes / 16];
      of_keys[0] = k.x, of_keys[1] = k.y, of_keys[2] = k.z, of_keys[3] = k.w;
      of_values[0] = v.x, of_values[1] = v.y, of_values[2] = v.z, of_values[3] = v.w;
    }
  }
  /// Scales and zeros of the channels of this lane's cells in Keys(load).
  __device__ void KeyScales(int load, uint32_t (&scales)[kChannels / 2],
                            uint32_t (&zeros)[kChannels / 2]) const {
    const auto* of_cell =
        reinterpret_cast<const uint4*>(scales_of_stage() + 2 * kChannels * (4 * load + lane_ % 4));
    ZIGGURAT_UNROLL
    for (int i = 0; i < kChannels / 8; ++i) {
      const uint4 s = of_cell[i], z = of_cell[i + kDim / 8];
      scales[4 * i] = s.x, scales[4 * i + 1] = s.y, scales[4 * i + 2] = s.z;
      scales[4 * i + 3] = s.w;
      zeros[4 * i] = z.x, zeros[4 * i + 1] = z.y, zeros[4 * i + 2] = z.z, zeros[4 * i + 3] = z.w;
    }
  }
  /// matrices[i]: of slots 8 c + i and 8 c + 4 + i (in its halves), four channels from
  /// 32 part + 4 r on.
  __device__ void ValueMatrices(int part, uint32_t (&matrices)[4]) const {
    const int place = PlaceOfPart(lane_ / 8, lane_ % 8, part);  // row lane % 8 of matrix lane / 8
    LoadMatricesTransposed(reinterpret_cast<const uint16_t*>(stage() + kKeyBytes + place),
                           matrices);
  }
  /// Those of `channel`, of slots 8 c + i and 8 c + 4 + i.
  __device__ void ValueScales(int channel, uint32_t (&scales)[4], uint32_t (&zeros)[4]) const {
    const int stride = kDim >> group_shift_;
    const auto* entry = reinterpret_cast<const uint16_t*>(scales_of_stage() + kScaleBytes) +
                        8 * (lane_ % 4) * stride + (channel >> group_shift_);
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint16_t *low = entry + i * stride, *high = entry + (i + 4) * stride;
      scales[i] = low[0] | static_cast<uint32_t>(high[0]) << 16;
      zeros[i] = low[kDim] | static_cast<uint32_t>(high[kDim]) << 16;
    }
  }
  /// Those of channels 32 part, for parts 2 pair and 2 pair + 1.
  __device__ void ValueScalesOfParts(int pair, uint32_t (&scales)[2][4],
                                     uint32_t (&zeros)[2][4]) const {
    if (group_shift_ != 5) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 2; ++i) ValueScales(32 * (2 * pair + i), scales[i], zeros[i]);
      return;
    }
    constexpr int kWords = kParts / 2;  // of a token; its zeros stand 32 tokens behind its scales
    const auto* words = reinterpret_cast<const uint32_t*>(scales_of_stage() + kScaleBytes) +
                        8 * kWords * (lane_ % 4) + pair;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = words[i * kWords], high = words[(i + 4) * kWords];
      const uint32_t low_zeros = words[(i + 32) * kWords], high_zeros = words[(i + 36) * kWords];
      scales[0][i] = __byte_perm(low, high, 0x5410);
      scales[1][i] = __byte_perm(low, high, 0x7632);
      zeros[0][i] = __byte_perm(low_zeros, high_zeros, 0x5410);
      zeros[1][i] = __byte_perm(low_zeros, high_zeros, 0x7632);
    }
  }

 private:
  /// Keys and values of one kind of data.
  struct Planes {
    const uint32_t* blocks = nullptr;
    const unsigned char* base = nullptr;  ///< of the keys in block 0
    uint32_t to_values = 0;               ///< bytes from a block's keys to its values
    int shift = 0;                        ///< 2^shift slots in a block

    __device__ Planes() {}
    __device__ Planes(const DeviceCache& cache, const DevicePlane& keys, const DevicePlane& values,
                      int head) {
      blocks = cache.table + keys.blocks;
      base = cache.pool + static_cast<size_t>(head) * keys.head_stride_bytes + keys.offset_bytes;
      to_values = values.offset_bytes - keys.offset_bytes;
      shift = __ffs(keys.slots_per_block) - 1;
    }
    __device__ uint32_t BlockOf(int slot) const { return blocks[slot >> shift]; }
    __device__ uint32_t InBlock(int slot) const { return slot & ((1u << shift) - 1); }
  };

  __device__ const unsigned char* stage() const { return shared_ + current_ * kStageBytes; }
  __device__ const unsigned char* scales_of_stage() const {
    return stage() + kKeyBytes + kValueBytes;
  }

  /// Which of a load's pieces holds slots 4 r .. 4 r + 3 of its row c.
  __device__ static int PieceOfKeys(int c, int r) { return 8 * c + (r ^ 2 * c); }
  /// Where 32 channels of slot 4 row + matrix stand among the values.
  __device__ static int PlaceOfPart(int matrix, int row, int part) {
    return 16 * (kParts * (8 * matrix + row) + (part ^ row * kParts / 8));
  }

  /// Of the chunk that is copied next: asked for a chunk ahead.
  __device__ void FindBlocks() {
    if (next_ >= end_) return;
    code_block_ = codes_.BlockOf(next_);
    scale_block_ = scales_.BlockOf(next_);
  }

  __device__ void CopyNext(const DeviceCache& cache, int to_stage) {
    if (next_ < end_) {
      const auto block_bytes = static_cast<uint32_t>(cache.block_bytes);
      unsigned char* to = shared_ + to_stage * kStageBytes;
      CopyCodes(codes_.base + uint64_t{code_block_} * block_bytes, to);
      const unsigned char* scales = scales_.base + uint64_t{scale_block_} * block_bytes;
      if constexpr (IsGrouped(kEncoding)) {
        CopyGroupScales(scales, to + kKeyBytes + kValueBytes);
      } else {
        CopyTokenScales(scales, to + kKeyBytes + kValueBytes);
      }
      next_ += kChunkSlots;
      FindBlocks();
    }
    copies_.Commit();
  }

  __device__ void CopyCodes(const unsigned char* keys, unsigned char* to) {
    const uint32_t in_block = codes_.InBlock(next_);
    const uint32_t row = 4u << codes_.shift;  // bytes
    const unsigned char* from = keys + 4 * in_block + lane_ / 8 * row + lane_ % 8 * 16;
    ZIGGURAT_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      copies_.Copy<16>(to + 16 * (kWarp * load + PieceOfKeys(lane_ / 8, lane_ % 8)),
                       from + load * 4 * row);
    }
    from = keys + codes_.to_values + in_block * kRowBytes + 16 * lane_;
    to += kKeyBytes;
    constexpr int kPieces = kRowBytes / 16;  // of a slot
    ZIGGURAT_UNROLL
    for (int first = 0; first < kChunkSlots * kPieces; first += kWarp) {
      const int piece = first + lane_, slot = piece / kPieces;
      const int place = kTransposes ? PlaceOfPart(slot % 4, slot / 4, piece % kPieces)
                                    : 16 * (piece ^ slot / 8 * 2);
      copies_.Copy<16>(to + place, from + 16 * first);
    }
  }

  /// Of the keys, those of all channels; of the values, those of the chunk's 32 tokens. Scales of a
  /// unit come before its zeros.
  __device__ void CopyGroupScales(const unsigned char* scales, unsigned char* to) {
    const uint32_t in_block = scales_.InBlock(next_);
    const unsigned char* unit = scales + (in_block >> group_shift_) * unit_bytes_;
    if (lane_ < kDim / 4) copies_.Copy<16>(to + 16 * lane_, unit + 16 * lane_);
    const int of_token = 2 * kDim >> group_shift_;  // bytes
    const uint32_t before = in_block & ((1u << group_shift_) - 1);
    const int half = lane_ / 16 * 2 * kDim, at = lane_ % 16 * 16;
    if (at < kChunkSlots * of_token) {
      copies_.Copy<16>(to + kScaleBytes + half + at,
                       unit + scales_.to_values + half + before * of_token + at);
    }
  }

  __device__ void CopyTokenScales(const unsigned char* scales, unsigned char* to) {
    if (lane_ >= 16) return;
    const uint32_t of_side = lane_ < 8 ? 0 : scales_.to_values;
    copies_.Copy<16>(to + lane_ / 8 * kScaleBytes + lane_ % 8 * 16,
                     scales + of_side + 4 * scales_.InBlock(next_) + lane_ % 8 * 16);
  }

  unsigned char* shared_;
  const int lane_;
  AsyncCopies copies_;
  Planes codes_, scales_;
  uint32_t code_block_ = 0, scale_block_ = 0;
  int group_shift_ = 0;
  uint32_t unit_bytes_ = 0;
  int next_ = 0, end_ = 0;  ///< slots
  int current_ = 0;         ///< stage
};

}  // namespace ziggurat::cuda
