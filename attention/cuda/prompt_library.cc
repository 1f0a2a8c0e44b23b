#include "attention/cuda/prompt_library.h"

#include <algorithm>

namespace ziggurat::cuda {
namespace {

/// Of queries, which are output too; keys and values may be what lies there as well.
size_t QueryBytes(const AttentionShape& shape, ElementType element, int tokens) {
  return ElementBytes(element) * tokens * shape.num_q_heads * shape.head_dim;
}

}  // namespace

size_t WarmUpBytes(const AttentionShape& shape, ElementType element, int tokens) {
  return QueryBytes(shape, element, tokens) + sizeof(float) * tokens * shape.num_q_heads;
}

bool WarmUp(PromptLibrary& library, const AttentionShape& shape, ElementType element, int tokens,
            void* memory, cudaStream_t stream) {
  auto* const lse = reinterpret_cast<float*>(static_cast<std::byte*>(memory) +
                                             QueryBytes(shape, element, tokens));
  // What is kept for the longest is cut for the shorter ones. Some libraries take more for a short
  // prompt than its share of that, since they cut its keys into parts.
  for (int n = tokens; n > 0; n /= 2) {
    if (!library.Attend(shape, n, {element, memory, memory, memory, memory, lse}, stream)) {
      return false;
    }
  }
  return true;
}

}  // namespace ziggurat::cuda
