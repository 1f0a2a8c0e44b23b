#include "model/decoder/decoder_memory.h"

#include <string>

#include "model/cache_ops/prompt_needs.h"
#include "model/checkpoint/weights_layout.h"
#include "model/decoder/decode_buffers.h"
#include "model/decoder/linear.h"

namespace ziggurat {

WorkspaceShape MakeWorkspaceShape(const ModelConfig& config, const DecoderOptions& options) {
  WorkspaceShape shape;
  shape.model.num_layers = config.num_layers;
  shape.model.num_q_heads = config.num_q_heads;
  shape.model.num_kv_heads = config.num_kv_heads;
  shape.model.head_dim = config.padded_head_dim();
  shape.model.hidden_size = config.hidden_size;
  shape.model.vocab_size = config.vocab_size;
  shape.model.max_context_tokens = config.MaxContextTokens();
  shape.model.element = options.element;
  shape.model.architecture = std::string(ArchitectureName(config.architecture));
  shape.ffn_size = config.intermediate_size;
  shape.chunk_tokens = options.chunk_tokens;
  return shape;
}

size_t WeightsBytes(const ModelConfig& config, ElementType element) {
  size_t bytes = 0;
  for (const WeightSpec& spec : ExpectedWeights(config)) {
    bytes += spec.StoredBytes(element);
  }
  // Besides the embedding itself there is the head that is packed from it.
  if (config.tie_word_embeddings && PacksWeights(element)) {
    bytes += ElementBytes(element) * config.vocab_size * config.hidden_size;
  }
  return bytes;
}

std::vector<PrefillLane> MakePrefillLanes(const WorkspaceShape& shape,
                                          const DecoderOptions& options) {
  PrefillNeeds most;
  most.window_rows = -1;
  most.score_heads = shape.model.num_q_heads;
  most.selects = most.lower_kv = most.group_qk = most.recall = true;
  most.stored_score_layers = shape.model.num_layers;
  std::vector<PrefillLane> lanes;
  for (const int tokens : {options.max_prefill_tokens,
                           std::min(options.short_prefill_tokens, options.max_prefill_tokens)}) {
    if (tokens > 0) lanes.push_back({tokens, PrefillBytes(shape, 1, tokens, most)});
  }
  return lanes;
}

size_t PrefillBytes(const WorkspaceShape& shape, int prompts, int tokens,
                    const PrefillNeeds& needs) {
  PromptBuffers counted;
  return PrefillLayout::Of(shape, prompts * tokens).total_bytes +
         prompts * LayPromptNeeds(shape.model, tokens, needs, nullptr, &counted);
}

size_t DecodeStepBytes(const WorkspaceShape& shape, int rows) {
  return DecodeBuffers::BytesFor(shape, rows) +
         sizeof(float) * static_cast<size_t>(rows) * shape.model.vocab_size;
}

}  // namespace ziggurat
