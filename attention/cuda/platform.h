// What the kernel sources of this folder are compiled with: nvcc, or a C++ compiler and the
// emulator of tests/cuda_emulator, which runs the very same code on the CPU.
//
// Kernels that begin early. LaunchEarly lets a kernel begin before the one in front of it on its
// stream has ended: as soon as each block of that one has called LetNextBegin or ended
// (programmatic dependent launch, compute capability 9.0; a graph that is recorded keeps it). Of
// such a kernel
//   every thread calls AwaitPrevious, on every path, before it returns: so the end of a kernel
//     implies that of all before it, and those that are launched as usual are ordered as ever;
//   before that it reads only what stays as it is while the daemon runs (weights), and writes
//     nothing in memory: more than one of the kernels before it may still be at work;
//   what others have written is not read by __ldg, which the compiler may take to be constant and
//     put before the call, unless the address comes from a load behind it.
// A kernel that is launched as usual may call both; AwaitPrevious then returns at once.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <type_traits>

#include "attention/cuda/runtime_check.h"

/// A variable of the block in shared memory, of a type that may be an array's. It is not written as
/// CUDA has it, since in the emulator each block has its own. What it begins with is not defined.
#define ZIGGURAT_SHARED(type, name) __shared__ std::type_identity_t<type> name
/// The dynamic shared memory of the block, as bytes.
#define ZIGGURAT_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#define ZIGGURAT_UNROLL _Pragma("unroll")
#define ZIGGURAT_UNROLL_TWICE _Pragma("unroll 2")       // where all rounds take too many registers
#define ZIGGURAT_UNROLL_FOUR_TIMES _Pragma("unroll 4")  // of a loop of unknown length

namespace ziggurat::cuda {

/// Until all kernels before this one have ended and what they wrote can be seen.
__device__ inline void AwaitPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel of the stream may have the places that blocks of this one leave.
__device__ inline void LetNextBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline void AskForSharedMemory(const void* kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return;  // what a kernel has without
  CheckCall(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)),
            "cudaFuncSetAttribute");
  // Else the driver may leave a processor room for fewer blocks than registers do.
  CheckCall(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "cudaFuncSetAttribute");
}

/// Blocks of a kernel that a multiprocessor of the calling thread's device holds at once.
inline int BlocksAtOnce(const void* kernel, int threads, size_t shared_bytes) {
  AskForSharedMemory(kernel, shared_bytes);
  int blocks = 0;
  CheckCall(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes),
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

/// Why the calling thread's device cannot run `kernel`; nullptr where it can.
inline const char* WhyItCannotRun(const void* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // it is answered here
  return cudaGetErrorString(error);
}

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...)
template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments... arguments) {
  AskForSharedMemory(reinterpret_cast<const void*>(kernel), shared_bytes);
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  CheckCall(cudaGetLastError(), __PRETTY_FUNCTION__);
}

/// Whether what runs on the calling thread's device was compiled with AwaitPrevious in it, as only
/// code for 9.0 and later is; all kernels are compiled for the same cards.
inline bool CanBeginEarly(const void* kernel) {
  thread_local int known_device = -1;
  thread_local bool can = false;
  int device = 0;
  CheckCall(cudaGetDevice(&device), "cudaGetDevice");
  if (device != known_device) {
    cudaFuncAttributes attributes;
    CheckCall(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    can = attributes.ptxVersion >= 90;
    known_device = device;
  }
  return can;
}

/// A kernel that keeps to what stands above; where kernels cannot begin early, as Launch.
template <typename Kernel, typename... Arguments>
void LaunchEarly(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                 Arguments... arguments) {
  if (!CanBeginEarly(reinterpret_cast<const void*>(kernel))) {
    return Launch(kernel, grid, block, shared_bytes, stream, arguments...);
  }
  AskForSharedMemory(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  CheckCall(cudaLaunchKernelEx(&config, kernel, arguments...), __PRETTY_FUNCTION__);
}

}  // namespace ziggurat::cuda

#else

#include "attention/cuda/stream.h"
#include "tests/cuda_emulator/cuda_emulator.h"
#include "tests/cuda_emulator/stream_queue.h"

#define ZIGGURAT_SHARED(type, name) \
  auto& name = ::ziggurat::cuda_emulator::SharedVariable<type>([] {})
#define ZIGGURAT_SHARED_MEMORY(name) \
  unsigned char* name =              \
      reinterpret_cast<unsigned char*>(::ziggurat::cuda_emulator::DynamicSharedMemory())
#define ZIGGURAT_UNROLL
#define ZIGGURAT_UNROLL_TWICE
#define ZIGGURAT_UNROLL_FOUR_TIMES

namespace ziggurat::cuda {

/// One block less than decode attention is made for, so that its launches differ in their warps.
inline int BlocksAtOnce(const void* /*kernel*/, int /*threads*/, size_t /*shared_bytes*/) {
  return 2;
}

inline const char* WhyItCannotRun(const void* /*kernel*/) { return nullptr; }

template <typename Kernel, typename... Arguments>
void SubmitLaunch(bool begins_early, Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, Arguments... arguments) {
  cuda_emulator::Submit(
      stream, {.kernel = cuda_emulator::KernelLaunch{grid, block, shared_bytes,
                                                     [=] { kernel(arguments...); }, begins_early}});
}

template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments... arguments) {
  SubmitLaunch(/*begins_early=*/false, kernel, grid, block, shared_bytes, stream, arguments...);
}

/// A thread that ends without AwaitPrevious fails it.
template <typename Kernel, typename... Arguments>
void LaunchEarly(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                 Arguments... arguments) {
  SubmitLaunch(/*begins_early=*/true, kernel, grid, block, shared_bytes, stream, arguments...);
}

inline void AwaitPrevious() { cuda_emulator::AwaitPrevious(); }
inline void LetNextBegin() {}

}  // namespace ziggurat::cuda

#endif
