// A pool and a table on the device.
#pragma once

#include <memory>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/table_image.h"
#include "tests/attention/cuda/device_memory.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {

/// A backend on the tests' stream.
inline std::unique_ptr<CudaBackend> BackendOnDevice(const CudaBackendOptions& options) {
  const std::shared_ptr<Stream> stream(std::shared_ptr<Stream>(), &TestStream());  // not owned
  return *CudaBackend::Create(stream, options, nullptr);
}

/// A copy of a pool, which comes back to the host when the call is over.
class PoolOnDevice {
 public:
  explicit PoolOnDevice(PoolView host) : host_(host), pool_(host.base, TestPool::BytesOf(host)) {}
  ~PoolOnDevice() { pool_.CopyTo(host_.base); }
  PoolOnDevice(const PoolOnDevice&) = delete;
  PoolOnDevice& operator=(const PoolOnDevice&) = delete;

  PoolView view() const { return {pool_.get<std::byte>(), host_.block_bytes}; }

 private:
  PoolView host_;
  OnDevice pool_;
};

/// The table of one call, over a pool that is on the device.
struct TableOnDevice {
  TableOnDevice(PoolView pool, const TableImage& image)
      : words(image.words().data(), image.words().size() * sizeof(uint32_t)),
        view{reinterpret_cast<unsigned char*>(pool.base), pool.block_bytes,
             words.get<const uint32_t>()} {}

  OnDevice words;
  DeviceCache view;
};

/// Keys, which may be none, and values of so many bytes each.
struct PairOnDevice {
  PairOnDevice(const KeyValues& host, size_t bytes)
      : k(host.k, bytes), v(host.v, bytes), view{host.element, k.get(), v.get()} {}

  OnDevice k, v;
  KeyValues view;
};

/// A list of [heads, stride] tokens.
struct ChoiceOnDevice {
  ChoiceOnDevice(const TokenChoice& host, int heads)
      : memory(host.of_head, heads * host.stride * sizeof(int32_t)), view(host) {
    view.of_head = memory.get<const int32_t>();
  }

  OnDevice memory;
  TokenChoice view;
};

}  // namespace ziggurat::cuda
