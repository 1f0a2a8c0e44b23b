// Scores of slots in f32, for any format: one slot in each lane.
#pragma once

#include "attention/cuda/cells.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kHeads>
__device__ void AddDots(const DeviceCache& cache, const DeviceSegment& s, int head, int slot,
                        const float* q, int head_dim, float* dots) {
  constexpr int kChannels = 32 / EncodingBits(kEncoding);
  const uint32_t slots = s.keys.slots_per_block;
  const auto* area = reinterpret_cast<const uint32_t*>(AreaOf(cache, s.keys, head, slot)) +
                     slot % s.keys.slots_per_block;
  const uint16_t* scales =
      IsGrouped(kEncoding) ? GroupEntryOf(cache, s, Side::kKeys, head, slot, 0, head_dim) : nullptr;
  for (int p = 0; p < head_dim / kChannels; ++p) {
    const uint32_t cell = area[p * slots];
    ZIGGURAT_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      const int c = p * kChannels + i;
      float x = CodeValue(kEncoding, cell, i);
      if (IsGrouped(kEncoding)) x = Bf16ToFloat(scales[c]) * x + Bf16ToFloat(scales[head_dim + c]);
      ZIGGURAT_UNROLL
      for (int h = 0; h < kHeads; ++h) dots[h] += q[h * head_dim + c] * x;
    }
  }
}

/// dots[h] = q[h] . key of the slot, for all kHeads rows of q [kHeads, head_dim].
template <int kHeads>
__device__ void SlotDots(const DeviceCache& cache, const DeviceSegment& s, int head, int slot,
                         const float* q, int head_dim, float* dots) {
  for (int h = 0; h < kHeads; ++h) dots[h] = 0;
  switch (s.code()) {
    case Encoding::kF32:
      AddDots<Encoding::kF32, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
    case Encoding::kBf16:
      AddDots<Encoding::kBf16, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
    case Encoding::kInt8:
      AddDots<Encoding::kInt8, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
    case Encoding::kFp8:
      AddDots<Encoding::kFp8, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
    case Encoding::kInt4:
      AddDots<Encoding::kInt4, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
    case Encoding::kInt2:
      AddDots<Encoding::kInt2, kHeads>(cache, s, head, slot, q, head_dim, dots);
      break;
  }
  const float factor = SlotFactor(cache, s, Side::kKeys, head, slot);
  for (int h = 0; h < kHeads; ++h) dots[h] *= factor;
}

}  // namespace ziggurat::cuda
