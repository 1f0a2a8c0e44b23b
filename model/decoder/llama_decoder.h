// Runs Llama, Mistral and Qwen2 models: prefill layer by layer over a contiguous workspace, decode
// as one batch of all running sequences over block tables (docs/architecture.md).
//
// The matrix products are those of linear.h, on weights packed once at load; everything between
// them, and all attention, is the AttentionBackend's.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "block_manager/cache_format.h"
#include "model/model_runner.h"

namespace ziggurat {

struct DecoderOptions {
  /// Type of weights, activations between the products, and KV cache. The residual stream, softmax,
  /// norms and logits are f32 in any case.
  ElementType element = ElementType::kBf16;
  int threads = 1;                ///< OpenMP threads of the products, on whichever thread calls
  int max_prefill_tokens = 8192;  ///< tokens of one prefill batch; at least 1
  /// Tokens of a batch that runs beside another one, so that short prompts need not wait for long
  /// ones; 0: one batch at a time.
  int short_prefill_tokens = 0;
  /// Most tokens whose activations exist at once during prefill; at least 16.
  int chunk_tokens = 256;
  /// What a thread computes of a prompt's attention, or sums of it, between two questions whether
  /// to pause: some tens of milliseconds.
  double attention_part_flops = 4e9;
  /// Runs a few tokens through the model at load, so that compiled kernels, thread pools and
  /// library buffers are there before the first request. Not on a GPU.
  bool warm_up = true;
};

/// Loads the weights of a model from a Hugging Face folder. The runner owns `backend`.
///
/// INVALID_ARGUMENT: options out of range, or weights that do not fit the configuration (names the
/// tensor). UNIMPLEMENTED, DATA_LOSS, NOT_FOUND: as the checkpoint says; a NaN among the weights is
/// DATA_LOSS. RESOURCE_EXHAUSTED: no memory.
///
/// What the runner's calls return:
///   INVALID_ARGUMENT    no prompt, an empty one, one longer than the context; a token id outside
///                       the vocabulary; a position outside the context
///   RESOURCE_EXHAUSTED  more tokens, or needs of prompts, than the workspace was made for
///   FAILED_PRECONDITION prefill calls out of order, no pool attached
///   INTERNAL            an edit that cannot be carried out on the segments given
/// A call that fails leaves the runner usable; a prefill batch that failed goes no further.
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadLlamaDecoder(
    const std::filesystem::path& dir, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend);

}  // namespace ziggurat
