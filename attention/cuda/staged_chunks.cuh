// Chunks of codes on their way through shared memory: while a warp computes one, the next are under
// way, and take no registers.
//
// A lane copies the very keys that it computes with, 16 bytes for each load of tensor_attend.cuh,
// and of int8, fp8 and int2 the very values, a piece of each of its eight rows. Values of int4 are
// read back as matrices that come transposed.
#pragma once

#include "attention/cuda/async_copy.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/packed_codes.cuh"
#include "attention/cuda/run_plane.cuh"

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
  static constexpr int kValueBytes = 8 * kPieceBytes * kWarp;
  /// Of a side: of codes in groups at most, since 32 is the smallest group here.
  static constexpr int kScaleBytes = IsGrouped(kEncoding) ? 4 * kDim : 4 * kChunkSlots;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes + 2 * kScaleBytes;
  static constexpr int kStages = IsGrouped(kEncoding) ? 3 : 2;

 public:
  /// Whether there are such chunks: of codes, whose rows eight lanes share evenly.
  static constexpr bool kExists =
      kBits <= 8 && (kDim == 64 || kDim == 128) && kRowBytes == 8 * kPieceBytes;
  static constexpr int kBytes = kExists ? kStages * kStageBytes : 0;  ///< for each warp
  /// Whether values are read by ValueMatrices, else by Values.
  static constexpr bool kTransposes = kEncoding == Encoding::kInt4;

  /// Whether chunks of the segment can come so: heads of kDim, a chunk in one block and its scales
  /// in one unit, no norms.
  __device__ static bool Fits(const DeviceSegment& s, int head_dim) {
    if (head_dim != kDim || s.key_norms.exists() || s.value_norms.exists()) return false;
    if (!Fits(s.keys) || !Fits(s.values) || !Fits(s.key_scales) || !Fits(s.value_scales)) {
      return false;
    }
    return !IsGrouped(kEncoding) || (IsPowerOfTwo(s.group) && s.group >= kChunkSlots);
  }

  /// `shared`: kBytes for this warp, aligned to 16.
  __device__ explicit StagedChunks(unsigned char* shared) : shared_(shared) {}

  /// From slot `begin` on, a multiple of 32. The chunks of the run before are all left.
  __device__ void Begin(const DeviceCache& cache, const DeviceSegment& s, int head, int begin,
                        int chunks) {
    keys_ = Plane(cache, s.keys, head);
    values_ = Plane(cache, s.values, head);
    key_scales_ = Plane(cache, s.key_scales, head);
    value_scales_ = Plane(cache, s.value_scales, head);
    if constexpr (IsGrouped(kEncoding)) {
      group_shift_ = __ffs(s.group) - 1;
      key_unit_bytes_ = s.key_scales.unit_bytes;
      value_unit_bytes_ = s.value_scales.unit_bytes;
    }
    next_ = begin;
    end_ = begin + chunks * kChunkSlots;
    current_ = 0;
    for (int i = 0; i < kStages - 1; ++i) CopyNext(cache, i);
  }

  /// The current chunk is there; another one sets out.
  __device__ void Await(const DeviceCache& cache) {
    copies_.Wait<kStages - 2>();
    __syncwarp();  // scales are other lanes', and these have left the stage that is filled next
    CopyNext(cache, current_ == 0 ? kStages - 1 : current_ - 1);
  }
  __device__ void Leave() { current_ = current_ == kStages - 1 ? 0 : current_ + 1; }

  /// Memory of the stages, when the chunks of a run are all left.
  __device__ unsigned char* memory() const { return shared_; }

  // ---- The current chunk ------------------------------------------------------------------------

  /// Cells of slots 4 r .. 4 r + 3 in row 4 load + c.
  __device__ uint4 Keys(int load) const {
    return reinterpret_cast<const uint4*>(stage())[load * kWarp + LaneOfThread()];
  }
  /// This lane's piece of the row of slot 8 c + i.
  __device__ void Values(int i, uint32_t (&cells)[kPieceBytes / 4]) const {
    const unsigned char* at = stage() + kKeyBytes + (i * kWarp + LaneOfThread()) * kPieceBytes;
    if constexpr (kPieceBytes == 16) {
      const auto x = *reinterpret_cast<const uint4*>(at);
      cells[0] = x.x, cells[1] = x.y, cells[2] = x.z, cells[3] = x.w;
    } else if constexpr (kPieceBytes == 8) {
      const auto x = *reinterpret_cast<const uint2*>(at);
      cells[0] = x.x, cells[1] = x.y;
    } else {
      cells[0] = *reinterpret_cast<const uint32_t*>(at);
    }
  }
  /// What codes of slots 4 r .. 4 r + 3 are multiplied by.
  __device__ void Factors(float (&of_keys)[4], float (&of_values)[4]) const {
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) of_keys[i] = of_values[i] = 1;
    if constexpr (IsPerToken(kEncoding)) {
      const auto* scales = reinterpret_cast<const float4*>(scales_of_stage()) + LaneOfThread() / 4;
      const float4 k = scales[0], v = scales[kScaleBytes / 16];
      of_keys[0] = k.x, of_keys[1] = k.y, of_keys[2] = k.z, of_keys[3] = k.w;
      of_values[0] = v.x, of_values[1] = v.y, of_values[2] = v.z, of_values[3] = v.w;
    }
  }
  /// Scales and zeros of the channels of this lane's cells in Keys(load).
  __device__ void KeyScales(int load, uint32_t (&scales)[kChannels / 2],
                            uint32_t (&zeros)[kChannels / 2]) const {
    const auto* of_cell = reinterpret_cast<const uint4*>(
        scales_of_stage() + 2 * kChannels * (4 * load + LaneOfThread() % 4));
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
    const int lane = LaneOfThread();  // names row lane % 8 of matrix lane / 8
    LoadMatricesTransposed(reinterpret_cast<const uint16_t*>(stage() + kKeyBytes +
                                                             PlaceOfPart(lane / 8, lane % 8, part)),
                           matrices);
  }
  /// Those of `channel`, of slots 8 c + i and 8 c + 4 + i.
  __device__ void ValueScales(int channel, uint32_t (&scales)[4], uint32_t (&zeros)[4]) const {
    const int stride = kDim >> group_shift_;
    const auto* entry = reinterpret_cast<const uint16_t*>(scales_of_stage() + kScaleBytes) +
                        8 * (LaneOfThread() % 4) * stride + (channel >> group_shift_);
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint16_t *low = entry + i * stride, *high = entry + (i + 4) * stride;
      scales[i] = low[0] | static_cast<uint32_t>(high[0]) << 16;
      zeros[i] = low[kDim] | static_cast<uint32_t>(high[kDim]) << 16;
    }
  }
  /// Those of channel 32 part, for every part.
  __device__ void ValueScalesOfParts(uint32_t (&scales)[kParts][4],
                                     uint32_t (&zeros)[kParts][4]) const {
    if (group_shift_ != 5) {
      ZIGGURAT_UNROLL
      for (int part = 0; part < kParts; ++part) ValueScales(32 * part, scales[part], zeros[part]);
      return;
    }
    struct alignas(2 * kParts) Token {
      uint32_t words[kParts / 2];
    };
    const auto* tokens =
        reinterpret_cast<const Token*>(scales_of_stage() + kScaleBytes) + 8 * (LaneOfThread() % 4);
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Token low = tokens[i], high = tokens[i + 4];
      const Token low_zeros = tokens[i + 32], high_zeros = tokens[i + 36];
      ZIGGURAT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const uint32_t half = part % 2 == 0 ? 0x5410 : 0x7632;
        scales[part][i] = __byte_perm(low.words[part / 2], high.words[part / 2], half);
        zeros[part][i] = __byte_perm(low_zeros.words[part / 2], high_zeros.words[part / 2], half);
      }
    }
  }

 private:
  using Plane = RunPlane<true>;

  __device__ static bool Fits(const DevicePlane& plane) {
    return IsPowerOfTwo(plane.slots_per_block) && plane.slots_per_block >= kChunkSlots &&
           plane.head_stride_bytes % 16 == 0 && plane.offset_bytes % 16 == 0;
  }
  __device__ const unsigned char* stage() const { return shared_ + current_ * kStageBytes; }
  __device__ const unsigned char* scales_of_stage() const {
    return stage() + kKeyBytes + kValueBytes;
  }

  /// Where 32 channels of slot 4 row + matrix stand among the values. The eight rows of a matrix
  /// are in different banks.
  __device__ static int PlaceOfPart(int matrix, int row, int part) {
    return 16 * (kParts * (8 * matrix + row) + (part ^ row * kParts / 8));
  }

  __device__ void CopyNext(const DeviceCache& cache, int to_stage) {
    if (next_ < end_) {
      unsigned char* to = shared_ + to_stage * kStageBytes;
      CopyCodes(cache, to);
      if constexpr (IsGrouped(kEncoding)) {
        CopyGroupScales(cache, to + kKeyBytes + kValueBytes);
      } else {
        CopyTokenScales(cache, to + kKeyBytes + kValueBytes);
      }
      next_ += kChunkSlots;
    }
    copies_.Commit();
  }

  __device__ void CopyCodes(const DeviceCache& cache, unsigned char* to) {
    const int lane = LaneOfThread(), r = lane / 4, c = lane % 4;
    const Plane::Place keys = keys_.PlaceOf(cache, next_);
    const uint32_t row = 4 * keys_.slots_per_block();  // bytes
    const unsigned char* from = keys.area + 4 * (keys.in_block + 4 * r) + c * row;
    ZIGGURAT_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      copies_.Copy<16>(to + (load * kWarp + lane) * 16, from + load * 4 * row);
    }
    const Plane::Place values = values_.PlaceOf(cache, next_);
    if constexpr (kTransposes) {
      from = values.area + values.in_block * kRowBytes;
      ZIGGURAT_UNROLL
      for (int first = 0; first < kChunkSlots * kParts; first += kWarp) {
        const int slot = (first + lane) / kParts, part = lane % kParts;
        copies_.Copy<16>(to + kKeyBytes + PlaceOfPart(slot % 4, slot / 4, part),
                         from + (first + lane) * 16);
      }
      return;
    }
    from = values.area + (values.in_block + 8 * c) * kRowBytes + r * kPieceBytes;
    to += kKeyBytes + lane * kPieceBytes;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 8; ++i) {
      copies_.Copy<kPieceBytes>(to + i * kWarp * kPieceBytes, from + i * kRowBytes);
    }
  }

  /// Of the keys, those of all channels; of the values, those of the chunk's 32 tokens. Scales of a
  /// unit come before its zeros.
  __device__ void CopyGroupScales(const DeviceCache& cache, unsigned char* to) {
    const int lane = LaneOfThread();
    const Plane::Place keys = key_scales_.PlaceOf(cache, next_);
    const unsigned char* unit = keys.area + (keys.in_block >> group_shift_) * key_unit_bytes_;
    if (lane < kDim / 4) copies_.Copy<16>(to + 16 * lane, unit + 16 * lane);
    const Plane::Place values = value_scales_.PlaceOf(cache, next_);
    unit = values.area + (values.in_block >> group_shift_) * value_unit_bytes_;
    const int of_token = 2 * kDim >> group_shift_;  // bytes
    const uint32_t before = values.in_block & ((1u << group_shift_) - 1);
    const int half = lane / 16 * 2 * kDim, at = lane % 16 * 16;
    if (at < kChunkSlots * of_token) {
      copies_.Copy<16>(to + kScaleBytes + half + at, unit + half + before * of_token + at);
    }
  }

  __device__ void CopyTokenScales(const DeviceCache& cache, unsigned char* to) {
    const int lane = LaneOfThread();
    if (lane >= 16) return;
    const Plane::Place of_keys = key_scales_.PlaceOf(cache, next_);
    const Plane::Place of_values = value_scales_.PlaceOf(cache, next_);
    const Plane::Place place = lane < 8 ? of_keys : of_values;
    copies_.Copy<16>(to + lane / 8 * kScaleBytes + lane % 8 * 16,
                     place.area + 4 * place.in_block + lane % 8 * 16);
  }

  unsigned char* shared_;
  AsyncCopies copies_;
  Plane keys_, values_, key_scales_, value_scales_;
  int group_shift_ = 0;
  uint32_t key_unit_bytes_ = 0, value_unit_bytes_ = 0;
  int next_ = 0, end_ = 0;  ///< slots
  int current_ = 0;         ///< stage
};

}  // namespace ziggurat::cuda
