// What happens where a call of CUDA's runtime fails that cannot be answered: the device is lost to
// this process.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace ziggurat::cuda {

[[noreturn]] inline void FailCall(const char* call, const char* why) {
  std::fprintf(stderr, "CUDA: %s: %s\n", call, why);
  std::abort();
}

/// Where something that a graph cannot hold was asked of a stream that is recorded, whatever is
/// asked of it afterwards fails for that alone; the end of the recording says so (Graph::Record).
inline void CheckCall(cudaError_t error, const char* call) {
  if (error != cudaSuccess && error != cudaErrorStreamCaptureInvalidated) [[unlikely]]
    FailCall(call, cudaGetErrorString(error));
}

}  // namespace ziggurat::cuda
