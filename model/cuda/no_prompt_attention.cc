#include "model/cuda/prompt_attention.h"

namespace ziggurat::cuda {

std::unique_ptr<PromptAttention> MakePromptAttention(int /*device*/) { return nullptr; }

}  // namespace ziggurat::cuda
