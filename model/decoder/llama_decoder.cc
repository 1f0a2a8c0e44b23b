#include "model/decoder/llama_decoder.h"

#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::Status CheckOptions(const DecoderOptions& options) {
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads must be at least 1, not ", options.threads));
  }
  if (options.max_prefill_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill tokens must be at least 1, not ", options.max_prefill_tokens));
  }
  if (options.chunk_tokens < 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk tokens must be at least 16, not ", options.chunk_tokens));
  }
  return absl::OkStatus();
}

WorkspaceShape MakeWorkspaceShape(const ModelConfig& config, const DecoderOptions& options) {
  WorkspaceShape shape;
  shape.model.num_layers = config.num_layers;
  shape.model.num_q_heads = config.num_q_heads;
  shape.model.num_kv_heads = config.num_kv_heads;
  shape.model.head_dim = config.head_dim;
  shape.model.hidden_size = config.hidden_size;
  shape.model.vocab_size = config.vocab_size;
  shape.model.max_context_tokens = config.MaxContextTokens();
  shape.model.element = options.element;
  shape.model.architecture = std::string(ArchitectureName(config.architecture));
  shape.ffn_size = config.intermediate_size;
  shape.chunk_tokens = options.chunk_tokens;
  return shape;
}

}  // namespace

ScopedSeconds::ScopedSeconds(double* seconds) : seconds_(seconds), start_(Now()) {}
ScopedSeconds::~ScopedSeconds() { *seconds_ += Now() - start_; }

LlamaRunner::LlamaRunner(const ModelConfig& config, std::unique_ptr<LlamaWeights> weights,
                         const DecoderOptions& options, std::unique_ptr<AttentionBackend> backend,
                         std::unique_ptr<WorkspaceRegion> workspace)
    : options_(options),
      workspace_shape_(MakeWorkspaceShape(config, options)),
      attention_shape_{config.num_q_heads, config.num_kv_heads, config.head_dim,
                       1.0f / std::sqrt(static_cast<float>(config.head_dim))},
      element_(options.element),
      element_bytes_(ElementBytes(options.element)),
      norm_epsilon_(static_cast<float>(config.rms_norm_eps)),
      rotary_(RopeInverseFrequencies(config)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      workspace_(std::move(workspace)) {}

absl::StatusOr<std::unique_ptr<LlamaRunner>> LlamaRunner::Create(
    const ModelConfig& config, std::unique_ptr<LlamaWeights> weights, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend) {
  const WorkspaceShape shape = MakeWorkspaceShape(config, options);
  // Room for a batch of which every prompt needs everything that a plan may ask for; it becomes
  // resident only as far as batches use it.
  PrefillNeeds most;
  most.window_rows = -1;
  most.score_heads = config.num_q_heads;
  most.selects = most.lower_kv = most.group_qk = most.recall = true;
  most.stored_score_layers = config.num_layers;
  PromptBuffers counted;
  auto workspace = WorkspaceRegion::Create(
      PrefillLayout::Of(shape, options.max_prefill_tokens).total_bytes +
      LayPromptNeeds(shape.model, options.max_prefill_tokens, most, nullptr, &counted));
  if (!workspace.ok()) return workspace.status();
  return std::unique_ptr<LlamaRunner>(new LlamaRunner(config, std::move(weights), options,
                                                      std::move(backend), *std::move(workspace)));
}

size_t LlamaRunner::WorkspaceBytes(int tokens) const {
  return PrefillLayout::Of(workspace_shape_, tokens).total_bytes;
}

size_t LlamaRunner::PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const {
  PromptBuffers counted;
  return LayPromptNeeds(shape(), prompt_tokens, needs, nullptr, &counted);
}

void LlamaRunner::UseThreads() const {
  // A setting of the calling thread, which need not be the one that loaded the model.
  omp_set_num_threads(options_.threads);
}

absl::Status LlamaRunner::RunMlp(const LlamaLayer& layer, int rows, float* residual, void* normed,
                                 void* wide, void* gated) {
  backend_->RmsNorm(residual, layer.mlp_norm.data(), norm_epsilon_, rows, shape().hidden_size,
                    element_, normed);
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
  const PrefillPrompt prompt{ids, &plan, false};
  std::vector<LayerMeasured> measured(1);
  std::vector<double> cosines(1);
  absl::Status status = BeginPrefill({&prompt, 1});
  for (int i = 0; status.ok() && i < model.num_layers; ++i) {
    LayerWrite write;
    const int segment = cache.layer(i).AddSegment({.format = format});
    status = cache.layer(i).Extend(segment, tokens);
    write.view = cache.layer(i).view();
    write.ranges = {{segment, 0, 0, tokens}};
    if (status.ok()) status = AttendLayer(i, {false}, &measured);
    if (status.ok()) status = FinishLayer(i, {&write, 1}, &cosines);
  }
  if (status.ok()) status = LastLogits(logits.data());
  AbandonPrefill();
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
  AttachPool({});
  workspace_->ReleasePages();
  workspace_high_water_ = 0;
  attention_seconds_ = 0;
  return status;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadLlamaDecoder(
    const ModelConfig& config, const Checkpoint& checkpoint, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  omp_set_num_threads(options.threads);
  try {
    auto weights = LlamaWeights::Load(config, checkpoint, options.element);
    if (!weights.ok()) return weights.status();
    // Loading frees as much as it keeps; the allocator would hold on to it.
    malloc_trim(0);
    auto runner = LlamaRunner::Create(config, *std::move(weights), options, std::move(backend));
    if (!runner.ok()) return runner.status();
    if (options.warm_up) {
      if (absl::Status status = (*runner)->WarmUp(); !status.ok()) return status;
    }
    return *std::move(runner);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while loading the weights");
  } catch (const std::exception& error) {  // libtorch's
    return absl::InternalError(absl::StrCat("loading the weights: ", error.what()));
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
