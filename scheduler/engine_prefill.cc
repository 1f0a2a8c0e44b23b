// EngineLoop: one prefill batch on its way through the layers, a slice of them a step.

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "model/scoped_seconds.h"
#include "scheduler/engine_loop.h"

namespace ziggurat {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void EngineLoop::PrefillSlice() {
  if (!prefill_.has_value()) StartPrefillBatch();
  if (!prefill_.has_value()) return;
  const SteadyTime end =
      Clock::now() + std::max<Clock::duration>(absl::ToChronoNanoseconds(options_.prefill_slice),
                                               2 * decode_time_);
  const auto pause = [end] { return Clock::now() >= end; };
  int layers = std::max(1, options_.slice_token_layers / prefill_->tokens);
  do {
    const absl::StatusOr<bool> done = PrefillLayer(pause);
    if (!done.ok()) return FailPrefillBatch(done.status());
    if (!*done || !prefill_.has_value()) return;  // it was paused, or none of the prompts is left
    if (prefill_->next_layer == geometry_.num_layers) return FinishPrefillBatch();
  } while (--layers > 0 && !pause());
}

void EngineLoop::StartPrefillBatch() {
  PrefillBatch batch;
  std::vector<PrefillPrompt> prompts;
  size_t needs_bytes = 0;
  while (!to_prefill_.empty()) {
    Sequence* next = to_prefill_.front();
    const CachePlan& plan = next->block_plan.plan;
    const int tokens = batch.tokens + next->prompt_tokens();
    const size_t needs = model_->PromptNeedsBytes(next->prompt_tokens(), plan.needs);
    const bool fits =
        tokens <= options_.prefill_tokens &&
        model_->WorkspaceBytes(tokens) + needs_bytes + needs <= model_->workspace_capacity_bytes();
    if (!batch.sequences.empty() && !fits) break;
    to_prefill_.pop_front();
    batch.sequences.push_back(next);
    batch.tokens = tokens;
    needs_bytes += needs;
    prompts.push_back({next->request.prompt, &plan, next->request.report_attention_recall});
  }
  if (batch.sequences.empty()) return;
  prefill_ = std::move(batch);
  const ScopedSeconds timer(&model_seconds_);
  if (absl::Status status = model_->BeginPrefill(prompts); !status.ok()) FailPrefillBatch(status);
}

/// Goes on with the next layer. False: it is not done. A status that is not OK is the whole
/// batch's.
absl::StatusOr<bool> EngineLoop::PrefillLayer(PauseTest pause) {
  if (!prefill_->is_written) {
    const absl::StatusOr<bool> written = AttendAndWrite(pause);
    if (!written.ok() || !*written || !prefill_.has_value()) return written;
  }
  const std::vector<Sequence*>& batch = prefill_->sequences;
  const int layer = prefill_->next_layer;
  std::vector<double> cosines(batch.size());
  {
    const ScopedSeconds timer(&model_seconds_);
    const absl::StatusOr<bool> done = model_->FinishLayer(layer, pause, &cosines);
    if (!done.ok() || !*done) return done;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    if (batch[i]->block_plan.plan.importance == LayerImportance::kCosine) {
      batch[i]->store->SetImportance(layer, cosines[i]);
    }
  }
  prefill_->is_written = false;
  ++prefill_->next_layer;
  return true;
}

absl::StatusOr<bool> EngineLoop::AttendAndWrite(PauseTest pause) {
  const std::vector<Sequence*>& batch = prefill_->sequences;
  const int layer = prefill_->next_layer;
  std::vector<LayerMeasured> measured(batch.size());
  {
    const ScopedSeconds timer(&model_seconds_);
    const absl::StatusOr<bool> done = model_->AttendLayer(layer, pause, &measured);
    if (!done.ok() || !*done) return done;
  }
  std::vector<LayerWrite> writes(batch.size());
  std::vector<std::pair<Sequence*, absl::Status>> failed;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    absl::Status status = batch[i]->store->FillLayer(layer, measured[i], &writes[i]);
    if (!status.ok()) {
      writes[i] = {};
      failed.emplace_back(batch[i], std::move(status));
    } else if (measured[i].lazy && metrics_) {
      metrics_->CountLazyLayer(layer);
    }
  }
  {
    const ScopedSeconds timer(&model_seconds_);
    absl::Status status = model_->WriteLayer(layer, writes);
    if (!status.ok()) return status;
  }
  prefill_->is_written = true;
  for (const auto& [sequence, status] : failed) Finish(*sequence, FinishReason::kError, status);
  return true;
}

/// Policies that wait for the last layer of the prompt.
void EngineLoop::DecidePrompts() {
  const std::vector<Sequence*> batch = prefill_->sequences;  // Finish changes the other
  for (size_t i = 0; i < batch.size(); ++i) {
    Sequence* sequence = batch[i];
    if (sequence == nullptr || sequence->block_plan.plan.decide != DecideAt::kPrompt) continue;
    absl::Status status;
    {
      const ScopedSeconds timer(&model_seconds_);
      status = sequence->store->Decide(*sequence->request.policy, PolicyContextOf(model_->shape()),
                                       sequence->prompt_tokens(), sequence->request.max_new_tokens,
                                       static_cast<int>(i), model_);
    }
    if (!status.ok()) Finish(*sequence, FinishReason::kError, status);
  }
}

void EngineLoop::FinishPrefillBatch() {
  DecidePrompts();
  if (!prefill_.has_value()) return;  // none of them is left
  const size_t vocab = static_cast<size_t>(model_->shape().vocab_size);
  prefill_logits_.resize(prefill_->sequences.size() * vocab);
  absl::Status status;
  {
    const ScopedSeconds timer(&model_seconds_);
    status = model_->FinishPrefill(prefill_logits_.data());
  }
  if (!status.ok()) return FailPrefillBatch(status);
  const std::vector<Sequence*> sequences = std::move(prefill_->sequences);
  prefill_.reset();
  std::vector<Sequence*> there;
  std::vector<float*> logits;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence* sequence = sequences[i];
    if (sequence == nullptr) continue;
    sequence->state = RequestState::kDecoding;
    sequence->logical_tokens = sequence->prompt_tokens();
    if (metrics_) metrics_->CountPromptTokens(sequence->prompt_tokens());
    tokens_in_step_ += sequence->prompt_tokens();
    decoding_.push_back(sequence);
    there.push_back(sequence);
    logits.push_back(&prefill_logits_[i * vocab]);
  }
  AcceptTokens(there, Sample(there, logits));
}

void EngineLoop::FailPrefillBatch(const absl::Status& status) {
  model_->AbandonPrefill();
  const std::vector<Sequence*> sequences = std::move(prefill_->sequences);
  prefill_.reset();
  for (Sequence* sequence : sequences) {
    if (sequence != nullptr) Finish(*sequence, FinishReason::kError, status);
  }
}

}  // namespace ziggurat
