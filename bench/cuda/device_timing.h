// What the benchmarks of kernels share: memory of the device, and the time that a launch takes
// there.
#pragma once

#include <cuda_runtime_api.h>
#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attention/cuda/device.h"

namespace ziggurat::cuda {

[[noreturn]] inline void Fail(absl::string_view what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, std::string(what).c_str());
  std::exit(1);
}

/// Ends the program where a call of CUDA's runtime failed.
inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Fail(std::string(what) + ": " + cudaGetErrorString(error));
}

/// The first GPU. Where there is none, ends the program with 77, which ctest knows as a test that
/// was skipped; where this build has no kernels for it, with 1.
inline cudaDeviceProp FindGpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIP: no GPU\n");
    std::exit(77);
  }
  if (const absl::StatusOr<DeviceFacts> opened = OpenDevice(0); !opened.ok()) {
    Fail(opened.status().message());
  }
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties;
}

/// Bytes that a copy within the device's memory reads and writes in a second.
inline double CopyBytesPerSecond() {
  const absl::StatusOr<double> copy = MeasureCopyBandwidth(size_t{2} << 30);
  if (!copy.ok()) Fail(copy.status().message());
  return *copy;
}

/// Memory of the device, its bytes all `fill`.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes, int fill = 0) {
    Check(cudaMalloc(&data_, bytes), "cudaMalloc");
    Check(cudaMemset(data_, fill, bytes), "cudaMemset");
  }
  /// A copy of the host's.
  template <typename T>
  explicit DeviceBytes(absl::Span<const T> host) : DeviceBytes(host.size() * sizeof(T)) {
    Check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
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
