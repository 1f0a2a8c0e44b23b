#include <cuda_runtime_api.h>

#include "gtest/gtest.h"
#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {
namespace {

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

}  // namespace

std::string WhyNoDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(error);
  return count == 0 ? "no GPU" : "";
}

int DeviceWarps() {
  int processors = 0;
  Check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  return 12 * processors;
}

void* AllocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes));
  return memory;
}
void FreeOnDevice(void* memory) { Check(cudaFree(memory)); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  Check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}
void CopyToHost(void* host, const void* device, size_t bytes) {
  Check(cudaDeviceSynchronize());
  Check(cudaGetLastError());
  Check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace ziggurat::cuda
