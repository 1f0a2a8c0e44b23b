#include "server/cli/plan/memory.h"

#include <algorithm>

#include "model/resident_memory.h"
#include "model/decoder/decoder_memory.h"

namespace ziggurat::plan {
namespace {

// What a daemon has besides what this command has when it starts: gRPC, its threads and its
// buffers, the tokenizer, compiled products. Measured (docs/operations.md).
constexpr size_t kServingBytes = size_t{16} << 20;
// What a request takes besides its blocks: gRPC's stream and the engine's records; and each token
// of its prompt, in the message and as an id. Measured (docs/operations.md).
constexpr size_t kRequestBytes = size_t{22} << 10;
constexpr size_t kPromptTokenBytes = 6;

}  // namespace

MemoryParts EstimateMemory(const ModelConfig& model, const ServeConfig& config, ElementType element,
                           const PromptSizes& prompts, absl::Span<const PrefillNeeds> needs) {
  DecoderOptions options;
  options.element = element;
  options.max_prefill_tokens = config.WorkspaceTokens(model.MaxContextTokens(), /*is_cpu=*/true);
  options.short_prefill_tokens = config.short_prefill_tokens;
  const WorkspaceShape shape = MakeWorkspaceShape(model, options);
  MemoryParts parts;
  parts.program = ResidentBytes() + kServingBytes;
  parts.weights = WeightsBytes(model, element);
  parts.workspace_capacity = WorkspaceCapacityBytes(MakePrefillLanes(shape, options));
  // A batch takes as many prompts as --prefill-tokens allow, and one that is longer alone.
  const int batch = std::max(1, config.PrefillTokens(/*is_cpu=*/true) / std::max(1, prompts.usual));
  // Beside prompts that are longer there may be a batch of short ones.
  const int beside =
      prompts.largest > config.short_prefill_tokens ? config.short_prefill_tokens : 0;
  size_t in_first_lane = 0, in_second = 0;
  for (const PrefillNeeds& of_policy : needs) {
    in_first_lane = std::max({in_first_lane, PrefillBytes(shape, batch, prompts.usual, of_policy),
                              PrefillBytes(shape, 1, prompts.largest, of_policy)});
    if (beside > 0) in_second = std::max(in_second, PrefillBytes(shape, 1, beside, of_policy));
  }
  parts.workspace = in_first_lane + in_second;
  parts.decode = DecodeStepBytes(shape, config.max_running);
  parts.requests = (static_cast<size_t>(config.max_running) + config.max_queue) *
                   (kRequestBytes + kPromptTokenBytes * prompts.usual);
  return parts;
}

}  // namespace ziggurat::plan
