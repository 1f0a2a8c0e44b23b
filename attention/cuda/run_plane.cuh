// A plane of a segment as a run of decode attention goes through it: what does not change from slot
// to slot is found once.
#pragma once

#include "attention/cuda/device_views.h"
#include "attention/cuda/platform.h"

namespace ziggurat::cuda {

class RunPlane {
 public:
  struct Place {
    const unsigned char* area;  ///< of the head, in the block that holds the slot
    uint32_t in_block;          ///< slots before it there
  };

  __device__ RunPlane(const DeviceCache& cache, const DevicePlane& plane, int head) {
    blocks_ = cache.table + plane.blocks;
    base_ = cache.pool + static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
    slots_ = plane.slots_per_block;
    if ((slots_ & (slots_ - 1)) == 0) shift_ = __ffs(static_cast<int>(slots_)) - 1;
  }

  __device__ uint32_t slots_per_block() const { return slots_; }
  __device__ Place PlaceOf(const DeviceCache& cache, int slot) const {
    const auto at = static_cast<uint32_t>(slot);
    const uint32_t block = shift_ >= 0 ? at >> shift_ : at / slots_;
    return {base_ + uint64_t{blocks_[block]} * static_cast<uint32_t>(cache.block_bytes),
            at - block * slots_};
  }

 private:
  const uint32_t* blocks_;
  const unsigned char* base_;
  uint32_t slots_;
  int shift_ = -1;  ///< a power of two of slots, as nearly always
};

}  // namespace ziggurat::cuda
