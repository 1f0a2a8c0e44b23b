// Whether a device has code of our kernels: they are compiled for some cards, and on another one
// the first launch fails, where it is too late for an answer.
#pragma once

namespace ziggurat::cuda {

/// Why the calling thread's device cannot run the kernels of this build, in the words of CUDA's
/// runtime; nullptr where it can.
const char* WhyKernelsCannotRun();

}  // namespace ziggurat::cuda
