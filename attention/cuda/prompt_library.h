// A library's attention of a prompt to itself, where a build has one.
#pragma once

#include <cstddef>

#include "attention/backend.h"
#include "attention/cuda/prefill.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

class PromptLibrary {
 public:
  virtual ~PromptLibrary() = default;
  /// Whether it takes prompts of these sizes.
  virtual bool Serves(const AttentionShape& shape, ElementType element) const = 0;
  /// About what it allocates on the device to attend to up to so many tokens.
  virtual size_t WorkspaceBytes(const AttentionShape& shape, int tokens) const = 0;
  /// Of one prompt, whose first token is the tensors' first; only what it Serves. False where it
  /// failed: then `out`, which may be `q`, is as it was, and our own kernels take the prompt.
  virtual bool Attend(const AttentionShape& shape, int num_tokens, const PromptTensors& tensors,
                      cudaStream_t stream) = 0;
};

/// Bytes of `memory` that WarmUp works in.
size_t WarmUpBytes(const AttentionShape& shape, ElementType element, int tokens);

/// Lets the library attend to prompts of many lengths up to `tokens`, the longest first, of which
/// `memory` (of the device, aligned to 16 bytes) is overwritten. One that keeps what it once
/// allocated has all that it needs then, before the pool takes what is left. False where it failed
/// for one of them. Only what it Serves.
bool WarmUp(PromptLibrary& library, const AttentionShape& shape, ElementType element, int tokens,
            void* memory, cudaStream_t stream);

}  // namespace ziggurat::cuda
