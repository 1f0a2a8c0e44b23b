#include "model/decoder/host_llama_runner.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"
#include "model/scoped_seconds.h"

namespace ziggurat {

HostLlamaRunner::HostLlamaRunner(const ModelConfig& config, const DecoderOptions& options,
                                 std::unique_ptr<AttentionBackend> backend,
                                 std::unique_ptr<LlamaWeights> weights,
                                 std::unique_ptr<WorkspaceRegion> workspace)
    : LlamaRunner(config, options, {std::move(backend), std::move(weights), std::move(workspace)}),
      attention_(static_cast<AttentionBackend&>(*backend_)) {}

void HostLlamaRunner::PrepareThread() const {
  // A setting of the calling thread, which need not be the one that loaded the model.
  omp_set_num_threads(options_.threads);
}

absl::Status HostLlamaRunner::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  if (inputs.empty()) return absl::OkStatus();
  if (absl::Status status = CheckInputs(inputs); !status.ok()) return status;
  PrepareThread();
  const int rows = static_cast<int>(inputs.size());
  const int hidden = shape().hidden_size;
  const size_t half = inverse_frequencies_.size();
  const DecodeBuffers::Pointers buffers = decode_buffers_.For(workspace_shape_, rows);
  items_.resize(inputs.size());
  moved_targets_.resize(inputs.size());
  for (int i = 0; i < rows; ++i) {
    backend_->EmbedTokens(element_, weights_->embedding(), {&inputs[i].token_id, 1}, hidden,
                          buffers.residual + static_cast<size_t>(i) * hidden);
    backend_->FillAngles(inverse_frequencies_, inputs[i].position, 1, buffers.cos + i * half,
                         buffers.sin + i * half);
  }
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    if (absl::Status status = DecodeLayer(layer, inputs, buffers); !status.ok()) return status;
  }
  backend_->RmsNorm(buffers.residual, weights_->final_norm(), norm_epsilon_, rows, hidden, element_,
                    buffers.normed);
  return RunHead(buffers.normed, rows, logits);
}

absl::Status HostLlamaRunner::DecodeLayer(int layer_index, absl::Span<const DecodeInput> inputs,
                                          const DecodeBuffers::Pointers& buffers) {
  const LlamaLayer& layer = weights_->layer(layer_index);
  const AttentionShape& heads = attention_shape_;
  const int rows = static_cast<int>(inputs.size());
  for (int i = 0; i < rows; ++i) {
    const DecodeInput::Layer& of_layer = inputs[i].layers[layer_index];
    DecodeItem& item = items_[i];
    item.segments = of_layer.view;
    item.targets = of_layer.targets;
    if (const int steps = inputs[i].StepsSince(of_layer); steps > 0) {
      moved_targets_[i] = of_layer.targets[0].After(steps);
      item.targets = absl::MakeConstSpan(&moved_targets_[i], 1);
    }
    item.position = inputs[i].position;
    item.score_recent = of_layer.score_recent;
    item.low_q = buffers.low_q + static_cast<size_t>(i) * heads.num_q_heads * heads.head_dim;
    item.distant_lse = buffers.distant_lse + static_cast<size_t>(i) * heads.num_q_heads;
    item.skip = inputs[i].skip;
    item.counts = inputs[i].counts;
  }

  backend_->RmsNorm(buffers.residual, layer.attention_norm, norm_epsilon_, rows,
                    shape().hidden_size, element_, buffers.normed);
  if (auto status = layer.qkv->Run(buffers.normed, rows, element_, buffers.wide); !status.ok()) {
    return status;
  }
  backend_->SplitAndRotate(heads, element_, buffers.wide, buffers.cos, buffers.sin, rows,
                           ElementType::kF32, buffers.q, buffers.k, buffers.v);
  {
    const ScopedSeconds timer(&attention_seconds_);
    attention_.WriteStep(heads, items_, buffers.k, buffers.v, pool_);
    attention_.DecodeAttention(heads, items_, buffers.q, pool_, buffers.attended, buffers.lse);
    attention_.AccumulateScores(heads, items_, buffers.q, buffers.lse, pool_);
    MeasureLazyMass(layer_index, inputs, buffers);
  }
  const void* attended = buffers.attended;
  if (element_ != ElementType::kF32) {
    const size_t count = static_cast<size_t>(rows) * heads.num_q_heads * heads.head_dim;
    attention_.Convert(ElementType::kF32, buffers.attended, count, element_, buffers.converted);
    attended = buffers.converted;
  }
  if (auto status = layer.output->Accumulate(attended, rows, buffers.residual); !status.ok()) {
    return status;
  }
  return RunMlp(layer, rows, buffers.residual, buffers.normed, buffers.wide, buffers.gated);
}

void HostLlamaRunner::MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs,
                                      const DecodeBuffers::Pointers& buffers) {
  const AttentionShape& heads = attention_shape_;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].lazy_test == nullptr) continue;
    const LazyTest& test = *inputs[i].lazy_test;
    const SegmentView& segment = inputs[i].layers[layer].view[0];
    const float* q = buffers.q + i * heads.num_q_heads * heads.head_dim;
    const float* lse = buffers.lse + i * heads.num_q_heads;
    const int n = LiveSlots(items_[i], 0), sinks = std::min(test.sinks, n);
    const int recent = std::min(test.recent, n - sinks);
    inputs[i].lazy_mass[layer] = attention_.SlotMass(heads, segment, 0, sinks, q, lse, pool_) +
                                 attention_.SlotMass(heads, segment, n - recent, n, q, lse, pool_);
  }
}

absl::Status HostLlamaRunner::WarmUp() {
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

}  // namespace ziggurat
