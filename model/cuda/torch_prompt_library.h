// The library that attends to prompts, where this build has one.
#pragma once

#include <memory>

#include "attention/cuda/prompt_library.h"

namespace ziggurat::cuda {

/// libtorch's flash attention, where ZIGGURAT_TORCH_CUDA built it in; else null, and our kernels do
/// it.
std::unique_ptr<PromptLibrary> MakeTorchPromptLibrary(int device);

}  // namespace ziggurat::cuda
