// EngineLoop: batches of prompts on their way through the layers, a slice of one of them a step.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/scoped_seconds.h"
#include "scheduler/engine_loop.h"

namespace ziggurat {
namespace {

using Clock = std::chrono::steady_clock;

/// Side by side each prompt takes longer than alone, so it must be worth it.
constexpr int kWorthOvertaking = 4;

}  // namespace

void EngineLoop::PrefillSlice() {
  const int lanes = static_cast<int>(prefills_.size());
  for (int lane = 0; lane < lanes; ++lane) {
    if (!prefills_[lane].has_value()) StartPrefillBatch(lane);
  }
  if (const int lane = NextLane(); lane >= 0) PrefillLayers(lane);
}

/// Lanes that have a batch take turns, so that neither short prompts nor long ones wait for all of
/// the others. -1: none has one.
int EngineLoop::NextLane() {
  const int lanes = static_cast<int>(prefills_.size());
  for (int i = 1; i <= lanes; ++i) {
    const int lane = (last_lane_ + i) % lanes;
    if (prefills_[lane].has_value()) return last_lane_ = lane;
  }
  return -1;
}

void EngineLoop::PrefillLayers(int lane) {
  std::optional<PrefillBatch>& prefill = prefills_[lane];
  // An odd step, such as the first of all, takes nobody's time for long.
  const auto share = std::min<Clock::duration>(2 * decode_time_, std::chrono::seconds(1));
  const SteadyTime end =
      Clock::now() +
      std::max<Clock::duration>(absl::ToChronoNanoseconds(options_.prefill_slice), share);
  const auto pause = [end] { return Clock::now() >= end; };
  int layers = geometry_.num_layers;
  if (model_->is_asynchronous()) {
    layers = std::max(1, options_.device_slice_token_layers / prefill->tokens);
  }
  do {
    const absl::StatusOr<bool> done = PrefillLayer(lane, pause);
    if (!done.ok()) return FailPrefillBatch(lane, done.status());
    if (!*done || !prefill.has_value()) return;  // it was paused, or none of the prompts is left
    if (prefill->next_layer == geometry_.num_layers) return FinishPrefillBatch(lane);
  } while (--layers > 0 && !pause());
}

/// Of those that are still there.
int EngineLoop::LongestPrompt(const PrefillBatch& batch) {
  int longest = 0;
  for (const Sequence* sequence : batch.sequences) {
    if (sequence != nullptr) longest = std::max(longest, sequence->prompt_tokens());
  }
  return longest;
}

/// Whether a prompt of `tokens` tokens shall not wait for one of `of_other`, of which `layers` are
/// left.
bool EngineLoop::IsWorthOvertaking(int64_t tokens, int64_t of_other, int layers) const {
  if (prefills_.size() == 1) return false;
  const int short_tokens = model_->lanes()[1].max_tokens;
  return tokens <= short_tokens && of_other > short_tokens &&
         kWorthOvertaking * tokens * geometry_.num_layers <= of_other * layers;
}

/// The first lane takes prompts in the order of admission, but one that need not wait for another
/// one is not in the same batch: behind it, it is left to the other lane, and before it, the batch
/// ends.
EngineLoop::Place EngineLoop::PlaceInFirstLane(const PrefillBatch& batch, int tokens) const {
  if (batch.sequences.empty()) return Place::kHere;
  if (batch.tokens + tokens > options_.prefill_tokens) return Place::kNextBatch;
  for (const Sequence* other : batch.sequences) {
    const int of_other = other->prompt_tokens();
    if (IsWorthOvertaking(of_other, tokens, geometry_.num_layers)) return Place::kNextBatch;
    if (IsWorthOvertaking(tokens, of_other, geometry_.num_layers)) return Place::kOtherLane;
  }
  return Place::kHere;
}

/// The second lane takes those that need not wait for the longest one in the first.
EngineLoop::Place EngineLoop::PlaceBeside(const PrefillBatch& batch, int tokens,
                                          int longest) const {
  if (batch.tokens + tokens > model_->lanes()[1].max_tokens) return Place::kOtherLane;
  const int layers = geometry_.num_layers - prefills_[0]->next_layer;
  return IsWorthOvertaking(tokens, longest, layers) ? Place::kHere : Place::kOtherLane;
}

void EngineLoop::StartPrefillBatch(int lane) {
  const int longest = lane > 0 && prefills_[0].has_value() ? LongestPrompt(*prefills_[0]) : 0;
  // Asked in every step: mostly there is no long prompt, and the queue need not be looked through.
  if (lane > 0 && longest <= model_->lanes()[1].max_tokens) return;
  const size_t capacity = model_->lanes()[lane].capacity_bytes;
  PrefillBatch batch;
  std::vector<PrefillPrompt> prompts;
  size_t needs_bytes = 0;
  for (auto it = to_prefill_.begin(); it != to_prefill_.end();) {
    Sequence* next = *it;
    const int tokens = next->prompt_tokens();
    const CachePlan& plan = next->block_plan.plan;
    const size_t needs = model_->PromptNeedsBytes(tokens, plan.needs);
    Place place = lane == 0 ? PlaceInFirstLane(batch, tokens) : PlaceBeside(batch, tokens, longest);
    if (!batch.sequences.empty() &&
        model_->WorkspaceBytes(batch.tokens + tokens) + needs_bytes + needs > capacity) {
      place = lane == 0 ? Place::kNextBatch : Place::kOtherLane;
    }
    if (place == Place::kNextBatch) break;
    if (place == Place::kOtherLane) {
      ++it;
      continue;
    }
    it = to_prefill_.erase(it);
    batch.sequences.push_back(next);
    batch.tokens += tokens;
    needs_bytes += needs;
    prompts.push_back({next->request.prompt, &plan, next->request.report_attention_recall});
  }
  if (batch.sequences.empty()) return;
  const ScopedSeconds timer(&model_seconds_);
  absl::StatusOr<std::unique_ptr<PromptBatch>> begun = model_->BeginPrefill(lane, prompts);
  if (begun.ok()) batch.prompts = *std::move(begun);
  prefills_[lane] = std::move(batch);
  if (!begun.ok()) FailPrefillBatch(lane, begun.status());
}

/// Goes on with the next layer. False: it is not done. A status that is not OK is the whole
/// batch's.
absl::StatusOr<bool> EngineLoop::PrefillLayer(int lane, PauseTest pause) {
  std::optional<PrefillBatch>& prefill = prefills_[lane];
  if (!prefill->is_written) {
    const absl::StatusOr<bool> written = AttendAndWrite(lane, pause);
    if (!written.ok() || !*written || !prefill.has_value()) return written;
  }
  const std::vector<Sequence*>& batch = prefill->sequences;
  const int layer = prefill->next_layer;
  std::vector<double> cosines(batch.size());
  {
    const ScopedSeconds timer(&model_seconds_);
    const absl::StatusOr<bool> done = prefill->prompts->FinishLayer(layer, pause, &cosines);
    if (!done.ok() || !*done) return done;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    if (batch[i]->block_plan.plan.importance == LayerImportance::kCosine) {
      batch[i]->store->SetImportance(layer, cosines[i]);
    }
  }
  prefill->is_written = false;
  ++prefill->next_layer;
  return true;
}

absl::StatusOr<bool> EngineLoop::AttendAndWrite(int lane, PauseTest pause) {
  PrefillBatch& prefill = *prefills_[lane];
  const std::vector<Sequence*>& batch = prefill.sequences;
  const int layer = prefill.next_layer;
  std::vector<LayerMeasured> measured(batch.size());
  {
    const ScopedSeconds timer(&model_seconds_);
    const absl::StatusOr<bool> done = prefill.prompts->AttendLayer(layer, pause, &measured);
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
    absl::Status status = prefill.prompts->WriteLayer(layer, writes);
    if (!status.ok()) return status;
  }
  prefill.is_written = true;
  for (const auto& [sequence, status] : failed) Finish(*sequence, FinishReason::kError, status);
  return true;
}

/// Policies that wait for the last layer of the prompt.
void EngineLoop::DecidePrompts(int lane) {
  const std::vector<Sequence*> batch = prefills_[lane]->sequences;  // Finish changes the other
  PromptBatch* const prompts = prefills_[lane]->prompts.get();
  for (size_t i = 0; i < batch.size(); ++i) {
    Sequence* sequence = batch[i];
    if (sequence == nullptr || sequence->block_plan.plan.decide != DecideAt::kPrompt) continue;
    absl::Status status;
    {
      const ScopedSeconds timer(&model_seconds_);
      status = sequence->store->Decide(*sequence->request.policy, PolicyContextOf(model_->shape()),
                                       sequence->prompt_tokens(), sequence->request.max_new_tokens,
                                       {prompts, static_cast<int>(i)}, model_);
    }
    if (!status.ok()) Finish(*sequence, FinishReason::kError, status);
  }
}

void EngineLoop::FinishPrefillBatch(int lane) {
  DecidePrompts(lane);
  if (!prefills_[lane].has_value()) return;  // none of them is left
  PrefillBatch& prefill = *prefills_[lane];
  const size_t vocab = static_cast<size_t>(model_->shape().vocab_size);
  prefill_logits_.resize(prefill.sequences.size() * vocab);
  absl::Status status;
  {
    const ScopedSeconds timer(&model_seconds_);
    status = prefill.prompts->LastLogits(prefill_logits_.data());
  }
  if (!status.ok()) return FailPrefillBatch(lane, status);
  const std::vector<Sequence*> sequences = std::move(prefill.sequences);
  prefills_[lane].reset();
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

void EngineLoop::FailPrefillBatch(int lane, const absl::Status& status) {
  const std::vector<Sequence*> sequences = std::move(prefills_[lane]->sequences);
  prefills_[lane].reset();
  for (Sequence* sequence : sequences) {
    if (sequence != nullptr) Finish(*sequence, FinishReason::kError, status);
  }
}

}  // namespace ziggurat
