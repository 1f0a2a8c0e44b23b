// The kernel that is asked for.
#include "attention/cuda/kernel_image.h"
#include "attention/cuda/platform.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

/// Stands for all others, which are compiled for the same cards. Never launched.
__global__ void AnyKernel() {}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

const char* WhyKernelsCannotRun() {
  return WhyItCannotRun(reinterpret_cast<const void*>(AnyKernel));
}

}  // namespace ziggurat::cuda
