#include "server/cli/plan/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "model/decoder/decoder_memory.h"

namespace ziggurat::plan {
namespace {

// What a daemon has besides what this command has when it starts: gRPC, its threads and its
// buffers, the tokenizer, compiled products. Measured (docs/operations.md).
constexpr size_t kServingBytes = size_t{16} << 20;

}  // namespace

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all_pages = 0, resident_pages = 0;
  if (!(statm >> all_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

MemoryParts EstimateMemory(const ModelConfig& model, const ServeConfig& config, ElementType element,
                           const PromptSizes& prompts, absl::Span<const PrefillNeeds> needs) {
  DecoderOptions options;
  options.element = element;
  options.max_prefill_tokens = config.WorkspaceTokens(model.MaxContextTokens());
  options.short_prefill_tokens = config.short_prefill_tokens;
  const WorkspaceShape shape = MakeWorkspaceShape(model, options);
  MemoryParts parts;
  parts.program = ResidentBytes() + kServingBytes;
  parts.weights = WeightsBytes(model, element);
  parts.workspace_capacity = WorkspaceCapacityBytes(PrefillLanes(shape, options));
  // A batch takes as many prompts as `prefill_tokens` allow, and one that is longer alone.
  const int batch = std::max(1, config.prefill_tokens / std::max(1, prompts.usual));
  const int beside = std::min(config.short_prefill_tokens, prompts.largest);
  for (const PrefillNeeds& of_policy : needs) {
    const size_t longest = std::max(PrefillBytes(shape, batch, prompts.usual, of_policy),
                                    PrefillBytes(shape, 1, prompts.largest, of_policy));
    const size_t shorter = beside > 0 ? PrefillBytes(shape, 1, beside, of_policy) : 0;
    parts.workspace = std::max(parts.workspace, longest + shorter);
  }
  parts.decode = DecodeStepBytes(shape, config.max_running);
  return parts;
}

}  // namespace ziggurat::plan
