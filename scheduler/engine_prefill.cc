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

}  // namespace

void EngineLoop::PrefillSlice() {
  for (int lane = 0; lane < prefill_.size(); ++lane) {
    std::optional<PrefillBatch>& batch = prefill_.batch(lane);
    if (batch.has_value() && batch->is_empty()) batch.reset();  // all were cancelled, or expired
    if (!batch.has_value() && prefill_.Fill(lane)) BeginPrefill(lane);
  }
  if (const int lane = prefill_.NextLane(); lane >= 0) PrefillLayers(lane);
}

void EngineLoop::BeginPrefill(int lane) {
  PrefillBatch& batch = *prefill_.batch(lane);
  snapshot_pace_.NoteChange();
  std::vector<PrefillPrompt> prompts;
  const SteadyTime now = Clock::now();
  for (Sequence* sequence : batch.sequences) {
    sequence->state = RequestState::kPrefilling;
    sequence->prefill_start = now;
    metrics_->ObserveQueueTime(Seconds(now - sequence->submitted));
    prompts.push_back({sequence->request.prompt, &sequence->block_plan.plan});
  }
  const ScopedSeconds timer(&measures_.model_seconds);
  absl::StatusOr<std::unique_ptr<PromptBatch>> begun = model_->BeginPrefill(lane, prompts);
  if (!begun.ok()) return FailPrefillBatch(lane, begun.status());
  batch.prompts = *std::move(begun);
}

void EngineLoop::PrefillLayers(int lane) {
  const PrefillBatch& prefill = *prefill_.batch(lane);
  // An odd step, such as the first of all, takes nobody's time for long.
  const auto share = std::min<Clock::duration>(2 * decode_time_, std::chrono::seconds(1));
  const SteadyTime end =
      Clock::now() +
      std::max<Clock::duration>(absl::ToChronoNanoseconds(options_.prefill_slice), share);
  const auto pause = [end] { return Clock::now() >= end; };
  int layers = geometry_.num_layers;
  if (model_->is_asynchronous()) {
    layers = std::max(1, options_.device_slice_token_layers / prefill.tokens);
  }
  do {
    const absl::StatusOr<bool> done = PrefillLayer(lane, pause);
    if (!done.ok()) return FailPrefillBatch(lane, done.status());
    if (!*done) return;  // it was paused
    if (prefill.is_empty() || prefill.next_layer == geometry_.num_layers) {
      return FinishPrefillBatch(lane);
    }
  } while (--layers > 0 && !pause());
}

absl::StatusOr<bool> EngineLoop::PrefillLayer(int lane, PauseTest pause) {
  PrefillBatch& prefill = *prefill_.batch(lane);
  if (!prefill.is_written) {
    absl::StatusOr<bool> written = AttendAndWrite(lane, pause);
    if (!written.ok() || !*written || prefill.is_empty()) return written;
  }
  const std::vector<Sequence*>& batch = prefill.sequences;
  const int layer = prefill.next_layer;
  std::vector<double> cosines(batch.size());
  {
    const ScopedSeconds timer(&measures_.model_seconds);
    absl::StatusOr<bool> done = prefill.prompts->FinishLayer(layer, pause, &cosines);
    if (!done.ok() || !*done) return done;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    if (batch[i]->block_plan.plan.importance == LayerImportance::kCosine) {
      batch[i]->store->SetImportance(layer, cosines[i]);
    }
  }
  prefill.is_written = false;
  ++prefill.next_layer;
  return true;
}

absl::StatusOr<bool> EngineLoop::AttendAndWrite(int lane, PauseTest pause) {
  PrefillBatch& prefill = *prefill_.batch(lane);
  const std::vector<Sequence*>& batch = prefill.sequences;
  const int layer = prefill.next_layer;
  std::vector<LayerMeasured> measured(batch.size());
  {
    const ScopedSeconds timer(&measures_.model_seconds);
    absl::StatusOr<bool> done = prefill.prompts->AttendLayer(layer, pause, &measured);
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
    } else if (measured[i].lazy) {
      metrics_->CountLazyLayer(layer);
    }
  }
  {
    const ScopedSeconds timer(&measures_.model_seconds);
    absl::Status status = prefill.prompts->WriteLayer(layer, writes);
    if (!status.ok()) return status;
  }
  prefill.is_written = true;
  for (const auto& [sequence, status] : failed) Finish(*sequence, FinishReason::kError, status);
  return true;
}

void EngineLoop::DecidePrompts(int lane) {
  const PrefillBatch& prefill = *prefill_.batch(lane);
  for (size_t i = 0; i < prefill.sequences.size(); ++i) {
    Sequence* const sequence = prefill.sequences[i];
    if (sequence == nullptr || sequence->block_plan.plan.decide != DecideAt::kPrompt) continue;
    absl::Status status;
    {
      const ScopedSeconds timer(&measures_.model_seconds);
      status = sequence->store->Decide(*sequence->request.policy, PolicyContextOf(model_->shape()),
                                       {prefill.prompts.get(), static_cast<int>(i)}, model_);
    }
    if (!status.ok()) Finish(*sequence, FinishReason::kError, status);
  }
}

void EngineLoop::FinishPrefillBatch(int lane) {
  DecidePrompts(lane);
  PrefillBatch& prefill = *prefill_.batch(lane);
  if (prefill.is_empty()) return prefill_.batch(lane).reset();
  std::vector<TokenDraw> draws;
  for (Sequence* sequence : prefill.sequences) {
    draws.push_back(sequence == nullptr ? TokenDraw() : DrawOf(*sequence));
  }
  std::vector<SampledToken> tokens(draws.size());
  absl::Status status;
  {
    const ScopedSeconds timer(&measures_.model_seconds);
    status = model_->FirstTokens(*prefill.prompts, draws, tokens.data());
  }
  if (!status.ok()) return FailPrefillBatch(lane, status);
  const std::vector<Sequence*> sequences = std::move(prefill.sequences);
  prefill_.batch(lane).reset();
  for (Sequence* sequence : sequences) {
    if (sequence == nullptr) continue;
    sequence->state = RequestState::kDecoding;
    sequence->logical_tokens = sequence->prompt_tokens();
    metrics_->CountPromptTokens(sequence->prompt_tokens());
    measures_.tokens += sequence->prompt_tokens();
    decoding_.push_back(sequence);
  }
  AcceptTokens(sequences, std::move(tokens));
}

void EngineLoop::FailPrefillBatch(int lane, const absl::Status& status) {
  const std::vector<Sequence*> sequences = std::move(prefill_.batch(lane)->sequences);
  prefill_.batch(lane).reset();
  for (Sequence* sequence : sequences) {
    if (sequence != nullptr) Finish(*sequence, FinishReason::kError, status);
  }
}

}  // namespace ziggurat
