#include <cstdlib>
#include <cstring>

#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {

std::string WhyNoDevice() { return ""; }
int DeviceWarps() { return 12; }
void* AllocateOnDevice(size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
void FreeOnDevice(void* memory) { std::free(memory); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
}
void CopyToHost(void* host, const void* device, size_t bytes) { std::memcpy(host, device, bytes); }

}  // namespace ziggurat::cuda
