// What a call of DeviceTwin brings to the device.
#pragma once

#include "attention/cuda/stream.h"
#include "attention/cuda/table_image.h"
#include "attention/cuda/writes.h"
#include "tests/attention/cuda/device_memory.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {

constexpr cudaStream_t kStream = nullptr;  // the default one: every call waits for the one before

/// Pool and table of one call.
struct CacheOnDevice {
  CacheOnDevice(PoolView host, const TableImage& image)
      : pool(host.base, TestPool::BytesOf(host)),
        table(image.words().data(), image.words().size() * sizeof(uint32_t)),
        view{pool.get<unsigned char>(), host.block_bytes, table.get<const uint32_t>()} {}

  OnDevice pool;
  OnDevice table;
  DeviceCache view;
};

/// [heads, stride] indices.
struct IndicesOnDevice {
  IndicesOnDevice(HeadIndices host, int heads, int first)
      : memory(host.of_head, heads * host.stride * sizeof(int32_t)),
        view{memory.get<const int32_t>(), host.stride, first} {}

  OnDevice memory;
  DeviceIndices view;
};

inline TargetSegment TargetOf(TableImage& image, const SegmentView& segment) {
  return {image.AddSegment(segment), segment.num_kv_heads,
          IsGrouped(segment.encoding) ? segment.group : 1};
}

}  // namespace ziggurat::cuda
