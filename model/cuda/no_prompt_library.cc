#include "model/cuda/torch_prompt_library.h"

namespace ziggurat::cuda {

std::unique_ptr<PromptLibrary> MakeTorchPromptLibrary(int /*device*/) { return nullptr; }

}  // namespace ziggurat::cuda
