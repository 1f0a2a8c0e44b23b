#include "scheduler/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/algorithm/container.h"
#include "block_manager/check.h"
#include "model/scoped_seconds.h"
#include "scheduler/cache_report.h"
#include "scheduler/endings.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

using Clock = std::chrono::steady_clock;

/// Of a request that has expired.
Ending WhyExpired(const Sequence& sequence, SteadyTime now, Metrics* metrics) {
  if (sequence.request.deadline.has_value() && *sequence.request.deadline <= now) {
    return PastDeadline();
  }
  return PastQueueTime(Seconds(sequence.begin_by - sequence.submitted), metrics);
}

Ending WhyCancelled(const CancelMessage& message, const EngineRequest& request) {
  if (message.reason == FinishReason::kStop) return {FinishReason::kStop, absl::OkStatus()};
  return WhyLeft(request.deadline, Clock::now());
}

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, const CacheGeometry& geometry, BlockPool* pool,
                       ModelRunner* model, Metrics* metrics, Mailbox<EngineMessage>* inbox,
                       Mailbox<EngineOutput>* outbox, AdmissionGate* gate, LatestSnapshot* snapshot)
    : options_(options),
      geometry_(geometry),
      pool_(pool),
      model_(model),
      metrics_(metrics),
      inbox_(inbox),
      outbox_(outbox),
      gate_(gate),
      snapshot_(snapshot),
      waiting_(options.max_overtakes),
      ledger_(geometry.num_layers),
      prefill_(model, options.prefill_tokens),
      snapshot_pace_(Clock::now()),
      device_counted_(model->device_seconds()) {
  Publish();
}

void EngineLoop::Run() {
  while (!stopping_) {
    ReceiveMessages();
    Step();
  }
  FinishAll(FinishReason::kUnavailable, absl::UnavailableError("the server is shutting down"));
  Publish();
  outbox_->Close();
}

void EngineLoop::Step() {
  const Clock::time_point start = Clock::now();
  const double attention_before = model_->attention_seconds();
  const double sample_before = model_->sample_seconds();
  const bool has_work = !IsIdle();
  measures_ = {};

  EndExpired();
  Admit();
  PrefillSlice();
  DecodeStep();
  if (options_.check_every_step) CheckConservation();
  // Before its answers leave: who has one may ask.
  if (measures_.tokens > 0) metrics_->ObserveStepTokens(measures_.tokens);
  Publish();

  CountDeviceSeconds();
  if (!has_work) return;
  const double attention = model_->attention_seconds() - attention_before;
  const double sample = model_->sample_seconds() - sample_before;
  metrics_->ObserveStep({.schedule = Seconds(Clock::now() - start) - measures_.model_seconds,
                         .model = measures_.model_seconds - attention - sample,
                         .attention = attention,
                         .sample = sample});
}

void EngineLoop::CountDeviceSeconds() {
  const DeviceSeconds so_far = model_->device_seconds();
  metrics_->CountDeviceSeconds(so_far.steps - device_counted_.steps,
                               so_far.edits - device_counted_.edits);
  device_counted_ = so_far;
}

// ---- Messages ----------------------------------------------------------------------------------

void EngineLoop::ReceiveMessages() {
  std::vector<EngineMessage> messages =
      IsIdle() ? inbox_->TakeUntil(NextWakeUp()) : inbox_->TakeNow();
  for (EngineMessage& message : messages) {
    std::visit([this](auto& m) { Receive(std::move(m)); }, message);
  }
}

SteadyTime EngineLoop::NextWakeUp() const {
  return drain_deadline_.value_or(Clock::now() + std::chrono::hours(1));
}

void EngineLoop::Receive(SubmitMessage message) {
  unpublished_.reached += message.promised;
  waiting_.Push(std::move(message.sequence));
}

void EngineLoop::Receive(CancelMessage message) {
  if (auto it = running_.find(message.id); it != running_.end()) {
    const auto [reason, status] = WhyCancelled(message, it->second->request);
    Finish(*it->second, reason, status);
  } else if (std::unique_ptr<Sequence> sequence = waiting_.Remove(message.id)) {
    const auto [reason, status] = WhyCancelled(message, sequence->request);
    Report(*sequence, reason, status);
  }
}

void EngineLoop::EndExpired() {
  const SteadyTime now = Clock::now();
  if (drain_deadline_.has_value() && now >= *drain_deadline_) {
    FinishAll(FinishReason::kUnavailable,
              absl::UnavailableError("the server is ending, and waits no longer"));
    drain_deadline_.reset();
  }
  for (std::unique_ptr<Sequence>& sequence : waiting_.RemoveExpired(now)) {
    const auto [reason, status] = WhyExpired(*sequence, now, metrics_);
    Report(*sequence, reason, status);
  }
  if (now < next_expiry_) return;
  next_expiry_ = SteadyTime::max();
  std::vector<Sequence*> expired;
  for (const auto& [id, sequence] : running_) {
    if (sequence->expires() <= now) {
      expired.push_back(sequence.get());
    } else {
      next_expiry_ = std::min(next_expiry_, sequence->expires());
    }
  }
  for (Sequence* sequence : expired) {
    const auto [reason, status] = WhyExpired(*sequence, now, metrics_);
    Finish(*sequence, reason, status);
  }
}

// ---- Admission ---------------------------------------------------------------------------------

size_t EngineLoop::FreeBlocks() const {
  CheckThat(ledger_.total() <= pool_->free_blocks(), "more blocks are reserved than are free");
  return pool_->free_blocks() - ledger_.total();
}

void EngineLoop::Admit() {
  while (static_cast<int>(running_.size()) < options_.max_running) {
    std::unique_ptr<Sequence> sequence = waiting_.PopFitting(FreeBlocks());
    if (sequence == nullptr) return;
    sequence->store = std::make_unique<SequenceStore>(sequence->block_plan, pool_, &ledger_);
    sequence->sampler.emplace(sequence->request.sampling, sequence->request.prompt,
                              model_->shape().vocab_size);
    next_expiry_ = std::min(next_expiry_, sequence->expires());
    metrics_->ObserveAdmittedBlocks(sequence->block_plan.total_blocks);
    spdlog::debug("[{}] admitted: {} prompt tokens, {}, {} blocks reserved", sequence->request.name,
                  sequence->prompt_tokens(), sequence->policy_text,
                  sequence->store->reserved_blocks());
    snapshot_pace_.NoteChange();
    prefill_.Push(sequence.get());
    const RequestId id = sequence->id;
    running_.emplace(id, std::move(sequence));
  }
}

// ---- Tokens -------------------------------------------------------------------------------------

TokenDraw EngineLoop::DrawOf(Sequence& sequence) {
  TokenDraw draw{&*sequence.sampler, {}};
  if (!sequence.may_stop()) draw.forbidden = sequence.request.stop_token_ids;
  return draw;
}

void EngineLoop::AcceptTokens(absl::Span<Sequence* const> sequences,
                              std::vector<SampledToken> tokens) {
  const SteadyTime now = Clock::now();
  buffers_.inter_token_seconds.clear();
  int generated = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] == nullptr) continue;
    generated += AcceptToken(*sequences[i], std::move(tokens[i]), now) ? 1 : 0;
  }
  if (generated == 0) return;
  if (!buffers_.inter_token_seconds.empty()) {
    metrics_->ObserveInterToken(buffers_.inter_token_seconds);
  }
  metrics_->CountGeneratedTokens(generated);
}

bool EngineLoop::AcceptToken(Sequence& sequence, SampledToken token, SteadyTime now) {
  const EngineRequest& request = sequence.request;
  EngineOutput output;
  output.id = sequence.id;
  if (token.is_arbitrary) {
    Finish(
        sequence, FinishReason::kError,
        absl::InternalError("the model gave no finite logit: its weights, or what they compute in "
                            "this dtype, are not what they should be"),
        std::move(output));
    return false;
  }
  if (sequence.may_stop() && absl::c_linear_search(request.stop_token_ids, token.token_id)) {
    output.result = std::make_unique<EngineResult>();
    output.result->stop_token_id = token.token_id;
    Finish(sequence, FinishReason::kStop, absl::OkStatus(), std::move(output));
    return false;
  }
  if (sequence.generated == 0) {
    metrics_->ObserveFirstToken(Seconds(now - sequence.submitted));
    metrics_->ObservePrefill(Seconds(now - sequence.prefill_start));
    sequence.first_token_time = now;
  } else {
    buffers_.inter_token_seconds.push_back(Seconds(now - sequence.latest_token_time));
  }
  sequence.latest_token_time = now;
  sequence.last_token_id = token.token_id;
  ++sequence.generated;
  output.tokens.push_back(std::move(token));
  if (sequence.generated >= request.max_new_tokens) {
    Finish(sequence, FinishReason::kLength, absl::OkStatus(), std::move(output));
  } else {
    unpublished_.outputs.push_back(std::move(output));
  }
  return true;
}

// ---- The end of a request ----------------------------------------------------------------------

void EngineLoop::Finish(Sequence& sequence, FinishReason reason, absl::Status status,
                        EngineOutput output) {
  sequence.store->CatchUp();
  sequence.store->Unprepare();
  if (output.result == nullptr) output.result = std::make_unique<EngineResult>();
  CacheReport& cache = output.result->cache;
  cache = MakeCacheReport(sequence);
  if (!cache.layers.empty()) {
    metrics_->SetCompressionRatio(sequence.request.policy->name(), cache.compression_ratio);
    metrics_->CountDistant(cache.distant.attended, cache.distant.skipped);
  }
  Report(sequence, reason, std::move(status), std::move(output));
  std::erase(decoding_, &sequence);
  prefill_.Remove(&sequence);
  running_.erase(running_.find(sequence.id));  // gives back its blocks, and what is reserved
}

void EngineLoop::FinishAll(FinishReason reason, const absl::Status& status) {
  for (std::unique_ptr<Sequence>& sequence : waiting_.RemoveAll()) {
    Report(*sequence, reason, status);
  }
  while (!running_.empty()) Finish(*running_.begin()->second, reason, status);
}

void EngineLoop::Report(const Sequence& sequence, FinishReason reason, absl::Status status,
                        EngineOutput output) {
  const SteadyTime now = Clock::now();
  output.id = sequence.id;
  if (output.result == nullptr) output.result = std::make_unique<EngineResult>();
  EngineResult& result = *output.result;
  result.reason = reason;
  result.status = std::move(status);
  result.usage = {sequence.prompt_tokens(), sequence.generated};
  const bool has_begun = sequence.state != RequestState::kWaiting;
  result.queue_seconds = Seconds((has_begun ? sequence.prefill_start : now) - sequence.submitted);
  if (sequence.generated > 0) {
    result.first_token_seconds = Seconds(sequence.first_token_time - sequence.submitted);
  }
  result.total_seconds = Seconds(now - sequence.submitted);
  if (!sequence.request.may_end_by_text) {
    metrics_->CountFinished(reason);
    metrics_->ObserveTokens(sequence.prompt_tokens(), sequence.generated);
  }
  metrics_->ObserveEndToEnd(result.total_seconds);
  // One that gave up has waited too: without it a full queue would look like a short one.
  if (!has_begun) metrics_->ObserveQueueTime(result.queue_seconds);
  if (sequence.generated > 0) {
    metrics_->ObserveDecode(Seconds(sequence.latest_token_time - sequence.first_token_time));
  }
  spdlog::debug("[{}] finished: {}, {} prompt and {} generated tokens, {:.3f} s, {} blocks of {}",
                sequence.request.name, FinishReasonName(reason), result.usage.prompt_tokens,
                result.usage.completion_tokens, result.total_seconds, result.cache.blocks,
                result.cache.full_blocks);
  unpublished_.outputs.push_back(std::move(output));
  ++unpublished_.finished;
}

}  // namespace ziggurat
