#include "model/decoder/llama_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/parallel.h"
#include "model/cache_ops/cache_edit.h"
#include "model/cache_ops/prompt_needs.h"
#include "model/decoder/decoder_memory.h"
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
    return absl::InvalidArgumentError(
        absl::StrCat("operations of a part of attention must be more than 0, not ",
                     options.attention_part_flops));
  }
  if (options.chunk_tokens < 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk tokens must be at least 16, not ", options.chunk_tokens));
  }
  return absl::OkStatus();
}

AttentionShape AttentionShapeOf(const ModelConfig& config, ElementType element) {
  return {config.num_q_heads, config.num_kv_heads, config.padded_head_dim(),
          1.0f / std::sqrt(static_cast<float>(config.head_dim)), element};
}

LlamaRunner::LlamaRunner(const ModelConfig& config, const DecoderOptions& options, LlamaParts parts)
    : options_(options),
      workspace_shape_(MakeWorkspaceShape(config, options)),
      attention_shape_(AttentionShapeOf(config, options.element)),
      element_(options.element),
      norm_epsilon_(static_cast<float>(config.rms_norm_eps)),
      inverse_frequencies_(RopeInverseFrequencies(config)),
      backend_(std::move(parts.backend)),
      weights_(std::move(parts.weights)),
      workspace_(std::move(parts.workspace)),
      lanes_(MakePrefillLanes(workspace_shape_, options)),
      used_bytes_(lanes_.size()),
      high_water_bytes_(lanes_.size()) {}

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

absl::Status LlamaRunner::RunMlp(const LlamaLayer& layer, int rows, float* residual, void* normed,
                                 void* wide, void* gated) {
  backend_->RmsNorm(residual, layer.mlp_norm, norm_epsilon_, rows, shape().hidden_size, element_,
                    normed);
  absl::Status status = layer.gate_up->Run(normed, rows, element_, wide);
  if (!status.ok()) return status;
  backend_->SwiGlu(element_, wide, rows, workspace_shape_.ffn_size, gated);
  return layer.down->Accumulate(gated, rows, residual);
}

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
        CheckTargets(input, layer, shape().num_kv_heads, /*prepared=*/is_asynchronous());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void LlamaRunner::CheckAhead(absl::Span<const DecodeInput> inputs) {
  for (const DecodeInput& input : inputs) {
    if (CheckLayers(input).ok()) checked_steps_[input.sequence] = input.step;
  }
}

void LlamaRunner::SampleAll(absl::Span<const TokenDraw> draws, float* logits,
                            SampledToken* tokens) {
  size_t elements = 0;
  for (const TokenDraw& draw : draws) {
    if (draw.sampler == nullptr) continue;
    const SamplingParameters& how = draw.sampler->parameters();
    // The largest of sixteen logits is found in the time of one exponential.
    const int part = how.temperature == 0 && how.logprobs < 0 ? 16 : 1;
    elements += shape().vocab_size / part;
  }
  ParallelFor(elements < kElementsWorthThreads ? 1 : options_.threads, draws.size(),
              [&](size_t i, int) { SampleOne(draws, i, logits, tokens); });
}

absl::Status LlamaRunner::EditCache(absl::Span<const CacheEdit> edits) {
  if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
  PrepareThread();
  const ScopedSeconds timer(&attention_seconds_);
  return RunCacheEdits(*backend_, attention_shape_, pool_, edits);
}

}  // namespace ziggurat
