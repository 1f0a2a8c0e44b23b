// What the benchmarks of kernels share: memory of the device, and the time that a launch takes
// there.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace ziggurat::cuda {

/// Ends the program where a call of CUDA's runtime failed.
inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// Memory of the device, its bytes all `fill`.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes, int fill = 0) {
    Check(cudaMalloc(&data_, bytes), "cudaMalloc");
    Check(cudaMemset(data_, fill, bytes), "cudaMemset");
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  template <typename T>
  T* get() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Median seconds of `work`, which is queued on `stream`.
inline double SecondsOf(cudaStream_t stream, const std::function<void()>& work) {
  constexpr int kWarmUps = 5, kRepeats = 31;
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + kRepeats; ++i) {
    Check(cudaEventRecord(begin, stream), "cudaEventRecord");
    work();
    Check(cudaEventRecord(end, stream), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a kernel");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i >= kWarmUps) seconds.push_back(static_cast<double>(milliseconds) / 1000);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
  return seconds[kRepeats / 2];
}

}  // namespace ziggurat::cuda
