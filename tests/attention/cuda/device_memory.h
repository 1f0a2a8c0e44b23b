// The device that twin tests run on: a GPU, or the emulator.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention/cuda/device.h"

namespace ziggurat::cuda {

/// Every call waits for the one before.
inline Stream& TestStream() {
  static const std::unique_ptr<Stream> stream = Stream::Create();
  return *stream;
}

/// Bytes on the device, as a copy of bytes of the host. Every byte that is not copied is 0xff.
class OnDevice {
 public:
  explicit OnDevice(size_t bytes) : bytes_(bytes) {
    auto memory = DeviceMemory::Allocate(MemoryKind::kDevice, bytes + 16, "test");
    if (!memory.ok()) {
      std::fprintf(stderr, "%s\n", memory.status().ToString().c_str());
      std::abort();
    }
    memory_ = *std::move(memory);
    const std::vector<unsigned char> poison(bytes + 16, 0xff);
    TestStream().Copy(memory_.data(), poison.data(), poison.size());
    TestStream().Synchronize();
  }
  OnDevice(const void* host, size_t bytes) : OnDevice(host == nullptr ? 0 : bytes) {
    if (host != nullptr) TestStream().Copy(memory_.data(), host, bytes);
    TestStream().Synchronize();
    given_ = host != nullptr;
  }

  /// Null where there was nothing to copy.
  template <typename T = void>
  T* get() const {
    return given_ ? reinterpret_cast<T*>(memory_.data()) : nullptr;
  }
  void CopyTo(void* host) const {
    TestStream().Copy(host, memory_.data(), bytes_);
    TestStream().Synchronize();
  }

 private:
  size_t bytes_;
  DeviceMemory memory_;
  bool given_ = true;
};

}  // namespace ziggurat::cuda
