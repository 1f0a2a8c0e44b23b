// One decode step: a batch of all running sequences, one token each, over their block tables.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "attention/parallel.h"
#include "model/cache_ops/cache_edit.h"
#include "model/decoder/llama_runner.h"
#include "model/scoped_seconds.h"

namespace ziggurat {
namespace {

/// The targets must be slots of segments that store keys, and cover every KV head once. `prepared`:
/// the inputs may be of steps that were, whose segments do not count the new slot yet.
absl::Status CheckTargets(const DecodeInput& input, const DecodeInput::Layer& layer,
                          int num_kv_heads, bool prepared) {
  const int steps = input.StepsSince(layer);
  if (steps < 0 || (steps > 0 && layer.targets.size() != 1)) {
    return absl::InternalError(absl::StrCat(layer.targets.size(), " targets as of step ",
                                            layer.as_of, " in step ", input.step));
  }
  int heads = 0;
  for (const TokenTarget& target : layer.targets) {
    if (target.segment < 0 || target.segment >= static_cast<int>(layer.view.size())) {
      return absl::InternalError(absl::StrCat("there is no segment ", target.segment));
    }
    const SegmentView& segment = layer.view[target.segment];
    const bool evicts =
        target.slot == TokenTarget::kLowestScore && segment.scores.blocks != nullptr;
    const int slots = segment.num_slots + (prepared ? 1 : 0);
    if (!evicts && (target.slot < 0 || target.slot >= slots)) {
      return absl::InternalError(
          absl::StrCat("segment ", target.segment, " has no slot ", target.slot));
    }
    if (segment.use == SegmentUse::kBorrowedKeys || IsGrouped(segment.encoding)) {
      return absl::InternalError(
          absl::StrCat("segment ", target.segment, " takes no single tokens"));
    }
    heads += segment.num_kv_heads;
  }
  if (heads == num_kv_heads) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the new token has a place for ", heads, " of ", num_kv_heads, " KV heads"));
}

}  // namespace

absl::Status LlamaRunner::CheckInputs(absl::Span<const DecodeInput> inputs) const {
  if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DecodeInput& input = inputs[i];
    if (input.token_id < 0 || input.token_id >= shape().vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", input.token_id, " of sequence ",
                                                     i, " is outside the vocabulary of ",
                                                     shape().vocab_size));
    }
    if (input.position < 0 || input.position >= shape().max_context_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("position ", input.position, " of sequence ",
                                                     i, " is outside the context of ",
                                                     shape().max_context_tokens));
    }
    if (static_cast<int>(input.layers.size()) != shape().num_layers) {
      return absl::InternalError(absl::StrCat("sequence ", i, " has ", input.layers.size(), " of ",
                                              shape().num_layers, " layers"));
    }
    // What stands there was looked at when it was new.
    if (input.changed_at != DecodeInput::kUnknown && input.changed_at != input.step) continue;
    const auto checked = checked_steps_.find(input.sequence);
    if (checked != checked_steps_.end() && checked->second == input.step) continue;
    if (absl::Status status = CheckLayers(input); !status.ok()) {
      return absl::InternalError(absl::StrCat("sequence ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::CheckLayers(const DecodeInput& input) const {
  for (const DecodeInput::Layer& layer : input.layers) {
    absl::Status status =
        CheckTargets(input, layer, shape().num_kv_heads, /*prepared=*/steps_ != nullptr);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  if (inputs.empty()) return absl::OkStatus();
  if (absl::Status status = CheckInputs(inputs); !status.ok()) return status;
  UseThreads();
  if (steps_ != nullptr) return steps_->Decode(inputs, logits);
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
  return weights_->head().Run(buffers.normed, rows, ElementType::kF32, logits);
}

absl::Status LlamaRunner::DecodeTokens(absl::Span<const DecodeInput> inputs,
                                       absl::Span<const TokenDraw> draws, SampledToken* tokens) {
  if (steps_ == nullptr) return ModelRunner::DecodeTokens(inputs, draws, tokens);
  if (inputs.empty()) return absl::OkStatus();
  absl::Status status = CheckInputs(inputs);
  checked_steps_.clear();
  if (!status.ok()) return status;
  UseThreads();
  return steps_->DecodeTokens(inputs, draws, tokens);
}

void LlamaRunner::PrepareDecode(absl::Span<const DecodeInput> inputs) {
  if (steps_ == nullptr) return;
  for (const DecodeInput& input : inputs) {
    if (CheckLayers(input).ok()) checked_steps_[input.sequence] = input.step;
  }
  steps_->PrepareDecode(inputs);
}

absl::Status LlamaRunner::AwaitTokens() {
  return steps_ == nullptr ? ModelRunner::AwaitTokens() : steps_->AwaitTokens();
}

void LlamaRunner::Sample(absl::Span<const TokenDraw> draws, absl::Span<float* const> logits,
                         SampledToken* tokens) {
  size_t elements = 0;
  for (const TokenDraw& draw : draws) {
    const SamplingParameters& how = draw.sampler->parameters();
    // The largest of sixteen logits is found in the time of one exponential.
    const int part = how.temperature == 0 && how.logprobs < 0 ? 16 : 1;
    elements += shape().vocab_size / part;
  }
  ParallelFor(elements < kElementsWorthThreads ? 1 : options_.threads, draws.size(),
              [&](size_t i, int) { tokens[i] = SampleOne(draws[i], logits[i]); });
}

absl::Status LlamaRunner::DecodeLayer(int layer_index, absl::Span<const DecodeInput> inputs,
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
    backend_->WriteStep(heads, items_, buffers.k, buffers.v, pool_);
    backend_->DecodeAttention(heads, items_, buffers.q, pool_, buffers.attended, buffers.lse);
    backend_->AccumulateScores(heads, items_, buffers.q, buffers.lse, pool_);
    MeasureLazyMass(layer_index, inputs, buffers);
  }
  const void* attended = buffers.attended;
  if (element_ != ElementType::kF32) {
    const size_t count = static_cast<size_t>(rows) * heads.num_q_heads * heads.head_dim;
    backend_->Convert(ElementType::kF32, buffers.attended, count, element_, buffers.converted);
    attended = buffers.converted;
  }
  if (auto status = layer.output->Accumulate(attended, rows, buffers.residual); !status.ok()) {
    return status;
  }
  return RunMlp(layer, rows, buffers.residual, buffers.normed, buffers.wide, buffers.gated);
}

void LlamaRunner::MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs,
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
    inputs[i].lazy_mass[layer] = backend_->SlotMass(heads, segment, 0, sinks, q, lse, pool_) +
                                 backend_->SlotMass(heads, segment, n - recent, n, q, lse, pool_);
  }
}

absl::Status LlamaRunner::EditCache(absl::Span<const CacheEdit> edits) {
  if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
  UseThreads();
  const ScopedSeconds timer(&attention_seconds_);
  return RunCacheEdits(*backend_, attention_shape_, pool_, edits);
}

}  // namespace ziggurat
