// Memory of the device that a twin test runs on: a GPU (device_memory_gpu.cc), or the host's own
// where the emulator runs the kernels (device_memory_emulator.cc).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ziggurat::cuda {

/// Empty where kernels can run here; else why not.
std::string WhyNoDevice();
/// Warps that fill the device (the emulator: a few, so that their shares are more than one chunk).
int DeviceWarps();
void* AllocateOnDevice(size_t bytes);
void FreeOnDevice(void* memory);
void CopyToDevice(void* device, const void* host, size_t bytes);
/// Waits for all kernels first. Fails the running test where one of them failed.
void CopyToHost(void* host, const void* device, size_t bytes);

/// Bytes on the device, as a copy of bytes of the host. Every byte that is not copied is 0xff.
class OnDevice {
 public:
  explicit OnDevice(size_t bytes) : bytes_(bytes), data_(AllocateOnDevice(bytes + 16)) {
    const std::vector<unsigned char> poison(bytes + 16, 0xff);
    CopyToDevice(data_, poison.data(), poison.size());
  }
  OnDevice(const void* host, size_t bytes) : OnDevice(host == nullptr ? 0 : bytes) {
    if (host != nullptr) CopyToDevice(data_, host, bytes);
    given_ = host != nullptr;
  }
  ~OnDevice() { FreeOnDevice(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  /// Null where there was nothing to copy.
  template <typename T = void>
  T* get() const {
    return given_ ? static_cast<T*>(data_) : nullptr;
  }
  void CopyTo(void* host) const { CopyToHost(host, data_, bytes_); }

 private:
  size_t bytes_;
  void* data_;
  bool given_ = true;
};

}  // namespace ziggurat::cuda
