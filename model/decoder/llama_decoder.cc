#include "model/decoder/llama_decoder.h"

#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"
#include "model/cache_ops/prompt_needs.h"
#include "model/decoder/caught_error.h"
#include "model/decoder/decoder_memory.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat {

absl::Status CheckOptions(const DecoderOptions& options) {
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads must be at least 1, not ", options.threads));
  }
  if (options.max_prefill_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill tokens must be at least 1, not ", options.max_prefill_tokens));
  }
  if (options.short_prefill_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill tokens beside another batch must be 0 "
                     "or more, not ",
                     options.short_prefill_tokens));
  }
  if (!(options.attention_part_flops > 0)) {
    return absl::InvalidArgumentError("a part of attention must be more than nothing");
  }
  if (options.chunk_tokens < 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk tokens must be at least 16, not ", options.chunk_tokens));
  }
  return absl::OkStatus();
}

AttentionShape AttentionShapeOf(const ModelConfig& config, ElementType element) {
  return {config.num_q_heads, config.num_kv_heads, config.head_dim,
          1.0f / std::sqrt(static_cast<float>(config.head_dim)), element};
}

LlamaRunner::LlamaRunner(const ModelConfig& config, const DecoderOptions& options, LlamaParts parts)
    : options_(options),
      workspace_shape_(MakeWorkspaceShape(config, options)),
      lanes_(MakePrefillLanes(workspace_shape_, options)),
      used_bytes_(lanes_.size()),
      high_water_bytes_(lanes_.size()),
      attention_shape_(AttentionShapeOf(config, options.element)),
      element_(options.element),
      element_bytes_(ElementBytes(options.element)),
      norm_epsilon_(static_cast<float>(config.rms_norm_eps)),
      inverse_frequencies_(RopeInverseFrequencies(config)),
      backend_(std::move(parts.backend)),
      weights_(std::move(parts.weights)),
      workspace_(std::move(parts.workspace)),
      steps_(std::move(parts.steps)) {}

void LlamaRunner::AttachPool(PoolView pool) {
  pool_ = pool;
  if (steps_ != nullptr) steps_->AttachPool(pool);
}

absl::StatusOr<std::byte*> LlamaRunner::AllocatePool(size_t num_blocks, size_t block_bytes) {
  if (steps_ == nullptr) return nullptr;
  return steps_->AllocatePool(num_blocks, block_bytes);
}

absl::StatusOr<size_t> LlamaRunner::FreePoolBytes() {
  if (steps_ == nullptr) return ModelRunner::FreePoolBytes();
  return steps_->FreePoolBytes();
}

size_t LlamaRunner::WorkspaceBytes(int tokens) const {
  return PrefillLayout::Of(workspace_shape_, tokens).total_bytes;
}

size_t LlamaRunner::workspace_high_water_bytes() const {
  return std::accumulate(high_water_bytes_.begin(), high_water_bytes_.end(), size_t{0});
}

size_t LlamaRunner::PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const {
  PromptBuffers counted;
  return LayPromptNeeds(shape(), prompt_tokens, needs, nullptr, &counted);
}

void LlamaRunner::UseThreads() const {
  if (steps_ != nullptr) return steps_->UseDevice();
  // A setting of the calling thread, which need not be the one that loaded the model.
  omp_set_num_threads(options_.threads);
}

absl::Status LlamaRunner::RunMlp(const LlamaLayer& layer, int rows, float* residual, void* normed,
                                 void* wide, void* gated) {
  backend_->RmsNorm(residual, layer.mlp_norm, norm_epsilon_, rows, shape().hidden_size, element_,
                    normed);
  absl::Status status = layer.gate_up->Run(normed, rows, element_, wide);
  if (!status.ok()) return status;
  backend_->SwiGlu(element_, wide, rows, workspace_shape_.ffn_size, gated);
  return layer.down->Accumulate(gated, rows, residual);
}

absl::Status LlamaRunner::WarmUp() {
  const ModelShape& model = shape();
  const int tokens =
      std::min({options_.chunk_tokens, options_.max_prefill_tokens, model.max_context_tokens});
  CacheGeometry geometry{model.num_layers, model.num_kv_heads, model.head_dim,
                         CacheGeometry::DefaultBlockBytes(model.num_kv_heads, model.head_dim)};
  const CacheFormat format = KeyValueFormat(element_);
  const size_t blocks_per_layer = geometry.BlocksFor(format, model.num_kv_heads, tokens + 1);
  auto pool = BlockPool::Create(model.num_layers * blocks_per_layer, geometry.block_bytes);
  if (!pool.ok()) return pool.status();
  AttachPool((*pool)->view());
  SequenceCache cache(pool->get(), &geometry);

  CachePlan plan;
  plan.layers.resize(model.num_layers);
  std::vector<float> logits(model.vocab_size);
  const std::vector<int32_t> ids(tokens, 0);
  const PrefillPrompt prompt{ids, &plan};
  std::vector<LayerMeasured> measured(1);
  std::vector<double> cosines(1);
  absl::StatusOr<std::unique_ptr<PromptBatch>> batch = BeginPrefill(0, {&prompt, 1});
  if (!batch.ok()) return batch.status();
  absl::Status status;
  for (int i = 0; status.ok() && i < model.num_layers; ++i) {
    LayerWrite write;
    const int segment = cache.layer(i).AddSegment({.format = format});
    status = cache.layer(i).Extend(segment, tokens);
    write.view = cache.layer(i).view();
    write.ranges = {{segment, 0, 0, tokens}};
    if (status.ok()) status = (*batch)->AttendLayer(i, NeverPause, &measured).status();
    if (status.ok()) status = (*batch)->WriteLayer(i, {&write, 1});
    if (status.ok()) status = (*batch)->FinishLayer(i, NeverPause, &cosines).status();
  }
  if (status.ok()) status = (*batch)->LastLogits(logits.data());
  batch->reset();
  if (!status.ok()) return status;

  std::vector<DecodeInput::Layer> layers(model.num_layers);
  std::vector<TokenTarget> targets(model.num_layers);
  for (int i = 0; i < model.num_layers; ++i) {
    auto slot = cache.layer(i).AppendSlot(0);
    if (!slot.ok()) return slot.status();
    targets[i] = {0, *slot};
    layers[i] = {cache.layer(i).view(), {&targets[i], 1}, 0};
  }
  DecodeInput input;
  input.position = std::min(tokens, model.max_context_tokens - 1);
  input.layers = layers;
  status = Decode({&input, 1}, logits.data());
  if (status.ok() && absl::c_none_of(logits, [](float x) { return std::isfinite(x); })) {
    status = absl::DataLossError(absl::StrCat(
        "the model gives no finite logit: its weights, or what they compute in ",
        std::string(ElementTypeName(shape().element)), ", are not what they should be"));
  }
  AttachPool({});
  workspace_->ReleasePages();
  high_water_bytes_.assign(lanes_.size(), 0);
  attention_seconds_ = 0;
  return status;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadLlamaDecoder(
    const ModelConfig& config, const Checkpoint& checkpoint, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  omp_set_num_threads(options.threads);
  try {
    auto weights =
        LlamaWeights::Load(config, checkpoint, options.element, MakeLinearFactory(options.element));
    if (!weights.ok()) return weights.status();
    // Loading frees as much as it keeps; the allocator would hold on to it.
    malloc_trim(0);
    // It becomes resident only as far as batches use it.
    auto workspace = WorkspaceRegion::Create(
        WorkspaceCapacityBytes(MakePrefillLanes(MakeWorkspaceShape(config, options), options)));
    if (!workspace.ok()) return workspace.status();
    auto runner = std::make_unique<LlamaRunner>(
        config, options,
        LlamaParts{std::move(backend), *std::move(weights), *std::move(workspace), nullptr});
    if (options.warm_up) {
      if (absl::Status status = runner->WarmUp(); !status.ok()) return status;
    }
    // Whoever steps the model has a team of its own. With two, libgomp counts more threads than
    // cores and lets them sleep between products, which costs a small model two fifths of its
    // speed.
    omp_pause_resource_all(omp_pause_soft);
    return runner;
  } catch (const std::exception& error) {  // of memory, or oneDNN's
    return CaughtError(error, "loading the weights");
  }
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadLlamaDecoder(
    const std::filesystem::path& dir, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(dir);
  if (!config.ok()) return config.status();
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  return LoadLlamaDecoder(*config, *checkpoint, options, std::move(backend));
}

}  // namespace ziggurat
