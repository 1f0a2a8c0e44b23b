// What the kernel sources of this folder are compiled with: nvcc, or a C++ compiler and the
// emulator of tests/cuda_emulator, which runs the very same code on the CPU.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include "attention/cuda/runtime_check.h"

/// The dynamic shared memory of the block, as bytes.
#define ZIGGURAT_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#define ZIGGURAT_UNROLL _Pragma("unroll")

namespace ziggurat::cuda {

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...)
template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments... arguments) {
  if (shared_bytes > 48 * 1024) {  // more has to be asked for
    CheckCall(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)),
              __PRETTY_FUNCTION__);
    // Else the driver may leave a processor room for fewer blocks than registers do.
    CheckCall(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              __PRETTY_FUNCTION__);
  }
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  CheckCall(cudaGetLastError(), __PRETTY_FUNCTION__);
}

}  // namespace ziggurat::cuda

#else

#include "attention/cuda/stream.h"
#include "tests/cuda_emulator/cuda_emulator.h"

#define ZIGGURAT_SHARED_MEMORY(name) \
  unsigned char* name =              \
      reinterpret_cast<unsigned char*>(::ziggurat::cuda_emulator::DynamicSharedMemory())
#define ZIGGURAT_UNROLL

namespace ziggurat::cuda {

template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
            Arguments... arguments) {
  cuda_emulator::Submit(
      [=] { cuda_emulator::RunGrid(grid, block, shared_bytes, [&] { kernel(arguments...); }); });
}

}  // namespace ziggurat::cuda

#endif
