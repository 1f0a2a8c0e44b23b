// Where a slot's data lies, and what a code stands for: the words of segment_view.h for one thread.
//
// Everything moves in cells of 4 bytes: x = 32 / bits neighbouring channels of one slot. Cell p of
// a key lies at row p of its area, cell p of a value at word p of its row; both hold the channels
// p x .. p x + x - 1, the lowest in the lowest bits.
#pragma once

#include "attention/bfloat16.h"
#include "attention/cuda/device_views.h"
#include "attention/cuda/platform.h"
#include "attention/fp8.h"

namespace ziggurat::cuda {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ inline int LaneOfThread() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline int WarpOfThread() { return static_cast<int>(threadIdx.x / kWarp); }

// ---- Addresses ----------------------------------------------------------------------------------

/// The area of a head (counted from the segment's first) in the block that holds `slot`.
__device__ inline unsigned char* AreaOf(const DeviceCache& cache, const DevicePlane& plane,
                                        int head, int slot) {
  const uint32_t block = cache.table[plane.blocks + slot / plane.slots_per_block];
  return cache.pool + block * cache.block_bytes +
         static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
}

/// In planes of one number of 4 bytes for each slot.
template <typename T>
__device__ inline T& EntryOf(const DeviceCache& cache, const DevicePlane& plane, int head,
                             int slot) {
  return reinterpret_cast<T*>(AreaOf(cache, plane, head, slot))[slot % plane.slots_per_block];
}

enum class Side : uint8_t { kKeys, kValues };

__device__ inline const DevicePlane& CodesOf(const DeviceSegment& s, Side side) {
  return side == Side::kKeys ? s.keys : s.values;
}
__device__ inline const DevicePlane& ScalesOf(const DeviceSegment& s, Side side) {
  return side == Side::kKeys ? s.key_scales : s.value_scales;
}
__device__ inline const DevicePlane& NormsOf(const DeviceSegment& s, Side side) {
  return side == Side::kKeys ? s.key_norms : s.value_norms;
}

/// Cells of one slot of a head.
ZIGGURAT_HOST_DEVICE inline int CellsOf(Encoding encoding, int head_dim) {
  return head_dim * EncodingBits(encoding) / 32;
}

__device__ inline uint32_t& CellOf(const DeviceCache& cache, const DeviceSegment& s, Side side,
                                   int head, int slot, int cell, int head_dim) {
  const DevicePlane& plane = CodesOf(s, side);
  const uint32_t in_block = slot % plane.slots_per_block;
  auto* area = reinterpret_cast<uint32_t*>(AreaOf(cache, plane, head, slot));
  return side == Side::kKeys ? area[cell * plane.slots_per_block + in_block]
                             : area[in_block * CellsOf(s.code(), head_dim) + cell];
}

/// The bf16 scale of a channel's group; its zero stands head_dim further on.
__device__ inline uint16_t* GroupEntryOf(const DeviceCache& cache, const DeviceSegment& s,
                                         Side side, int head, int slot, int channel, int head_dim) {
  const DevicePlane& plane = ScalesOf(s, side);
  const int in_block = slot % plane.slots_per_block;
  const int index =
      side == Side::kKeys ? channel : in_block % s.group * (head_dim / s.group) + channel / s.group;
  return reinterpret_cast<uint16_t*>(AreaOf(cache, plane, head, slot) +
                                     static_cast<size_t>(in_block / s.group) * plane.unit_bytes) +
         index;
}

/// For launchers: whether pieces of 16 bytes may be read from there.
inline bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// ---- Numbers ------------------------------------------------------------------------------------

/// Channel i of a cell, without scale and zero.
__device__ inline float CodeValue(Encoding encoding, uint32_t cell, int i) {
  switch (encoding) {
    case Encoding::kF32:
      return __uint_as_float(cell);
    case Encoding::kBf16:
      return Bf16ToFloat(static_cast<uint16_t>(cell >> (16 * i)));
    case Encoding::kInt8:
      return static_cast<float>(static_cast<int8_t>(cell >> (8 * i)));
    case Encoding::kFp8:
      return E4m3ToFloat(static_cast<uint8_t>(cell >> (8 * i)));
    case Encoding::kInt4:
      return static_cast<float>(cell >> (4 * i) & 15);
    case Encoding::kInt2:
      break;
  }
  return static_cast<float>(cell >> (2 * i) & 3);
}

/// Loads element `index` of a tensor of activations.
__device__ inline float LoadElement(ElementType element, const void* data, size_t index) {
  return element == ElementType::kF32 ? static_cast<const float*>(data)[index]
                                      : Bf16ToFloat(static_cast<const uint16_t*>(data)[index]);
}
__device__ inline void StoreElement(ElementType element, void* data, size_t index, float value) {
  if (element == ElementType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = FloatToBf16(value);
  }
}

/// Two bf16 of a word, the lower one first.
__device__ inline float2 PairOfBf16(uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline uint32_t WordOfBf16(float2 pair) {
  return FloatToBf16(pair.x) | static_cast<uint32_t>(FloatToBf16(pair.y)) << 16;
}

/// Elements `index` (even) and the next.
__device__ inline float2 LoadPair(ElementType element, const void* data, size_t index) {
  if (element == ElementType::kF32) {
    return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + index);
  }
  return PairOfBf16(*reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + index));
}
__device__ inline void StorePair(ElementType element, void* data, size_t index, float2 values) {
  if (element == ElementType::kF32) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + index) = values;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(data) + index) = WordOfBf16(values);
  }
}

/// What RMSNorm multiplies a row by, from the sum of its squares.
__device__ inline float InverseRms(float sum_of_squares, int width, float epsilon) {
  return 1 / sqrtf(sum_of_squares / static_cast<float>(width) + epsilon);
}

/// SiLU(gate) up.
__device__ inline float Gated(float gate, float up) { return gate / (1 + expf(-gate)) * up; }

/// What the codes of one slot are multiplied by, besides the scales of groups: the scale of its
/// token and the norm of a merged segment.
__device__ inline float SlotFactor(const DeviceCache& cache, const DeviceSegment& s, Side side,
                                   int head, int slot) {
  float factor = IsPerToken(s.code()) ? EntryOf<float>(cache, ScalesOf(s, side), head, slot) : 1;
  if (NormsOf(s, side).exists()) factor *= EntryOf<float>(cache, NormsOf(s, side), head, slot);
  return factor;
}

/// One channel as its code, scale and zero have it, without SlotFactor.
__device__ inline float ChannelValue(const DeviceCache& cache, const DeviceSegment& s, Side side,
                                     int head, int slot, int channel, int head_dim) {
  const Encoding encoding = s.code();
  const int x = 32 / EncodingBits(encoding);
  const uint32_t cell = CellOf(cache, s, side, head, slot, channel / x, head_dim);
  const float code = CodeValue(encoding, cell, channel % x);
  if (!IsGrouped(encoding)) return code;
  const uint16_t* entry = GroupEntryOf(cache, s, side, head, slot, channel, head_dim);
  return Bf16ToFloat(entry[0]) * code + Bf16ToFloat(entry[head_dim]);
}

// ---- Reductions over a warp ---------------------------------------------------------------------

__device__ inline float WarpMax(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lanes));
  }
  return x;
}
/// What powers of scores, or of log-sum-exps, are taken relative to, whose highest is `highest`:
/// fmaxf passes over NaN, so -infinity is the highest of NaNs as well as of nothing. Relative to
/// this a NaN gives NaN, as in the reference, and what is -infinity gives 0.
__device__ inline float BaseOf(float highest) { return highest == -INFINITY ? 0 : highest; }

template <typename T>
__device__ T WarpSum(T x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}

}  // namespace ziggurat::cuda
