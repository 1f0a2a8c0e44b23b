#include "scheduler/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "block_manager/occupancy.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

using Clock = std::chrono::steady_clock;

// A snapshot walks every running sequence, so its rate is bounded, and its share of the time.
constexpr auto kPublishInterval = std::chrono::milliseconds(100);
constexpr auto kStaleInterval = std::chrono::milliseconds(10);
constexpr int kPublishRest = 100;  // times as long as the last one took, but ...
constexpr auto kLongestPublishRest = std::chrono::seconds(2);
constexpr auto kDeadlineSlack = std::chrono::milliseconds(50);

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Adds the time of a scope to a sum.
class ScopedTimer {
 public:
  explicit ScopedTimer(double* sum) : sum_(sum), start_(Clock::now()) {}
  ~ScopedTimer() { *sum_ += Seconds(Clock::now() - start_); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  double* sum_;
  Clock::time_point start_;
};

template <typename Container, typename Value>
void Erase(Container& container, const Value& value) {
  container.erase(std::remove(container.begin(), container.end(), value), container.end());
}

absl::Status PastDeadline() {
  return absl::DeadlineExceededError("the request's deadline has passed");
}

/// A client that gives up at its deadline says so by cancelling, and may do so a little before our
/// own clock sees the deadline.
std::pair<FinishReason, absl::Status> WhyCancelled(const CancelMessage& message,
                                                   const EngineRequest& request) {
  if (message.reason == FinishReason::kStop) return {FinishReason::kStop, absl::OkStatus()};
  if (request.deadline.has_value() && *request.deadline <= Clock::now() + kDeadlineSlack) {
    return {FinishReason::kDeadline, PastDeadline()};
  }
  return {message.reason, absl::CancelledError("the client cancelled the request")};
}

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, const CacheGeometry& geometry, BlockPool* pool,
                       ModelRunner* model, Metrics* metrics, Mailbox<EngineMessage>* inbox,
                       Mailbox<EngineOutput>* outbox, EngineStatus* status)
    : options_(options),
      geometry_(geometry),
      pool_(pool),
      model_(model),
      metrics_(metrics),
      inbox_(inbox),
      outbox_(outbox),
      status_(status),
      waiting_(options.max_overtakes),
      ledger_(geometry.num_layers),
      last_published_(Clock::now()) {
  Publish();
}

void EngineLoop::Run() {
  while (!stopping_) {
    ReceiveMessages();
    Step();
  }
  FinishAll(FinishReason::kCancelled, absl::UnavailableError("the server is shutting down"));
  Publish();
  outbox_->Close();
}

void EngineLoop::Step() {
  const Clock::time_point start = Clock::now();
  const double attention_before = model_->attention_seconds();
  const bool has_work = !IsIdle();
  model_seconds_ = sample_seconds_ = 0;
  tokens_in_step_ = 0;

  ExpireDeadlines();
  Admit();
  PrefillSlice();
  DecodeStep();
  if (options_.check_every_step) CheckConservation();
  Publish();

  if (!has_work || metrics_ == nullptr) return;
  if (tokens_in_step_ > 0) metrics_->ObserveStepTokens(tokens_in_step_);
  const double attention = model_->attention_seconds() - attention_before;
  const double total = Seconds(Clock::now() - start);
  metrics_->ObserveStepPart("model", model_seconds_ - attention);
  metrics_->ObserveStepPart("attention", attention);
  metrics_->ObserveStepPart("sample", sample_seconds_);
  metrics_->ObserveStepPart("schedule", total - model_seconds_ - sample_seconds_);
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

void EngineLoop::Receive(SubmitMessage message) { waiting_.Push(std::move(message.sequence)); }

void EngineLoop::Receive(CancelMessage message) {
  if (auto it = running_.find(message.id); it != running_.end()) {
    const auto [reason, status] = WhyCancelled(message, it->second->request);
    Finish(*it->second, reason, status);
  } else if (std::unique_ptr<Sequence> sequence = waiting_.Remove(message.id)) {
    const auto [reason, status] = WhyCancelled(message, sequence->request);
    FinishWaiting(std::move(sequence), reason, status);
  }
}

void EngineLoop::ExpireDeadlines() {
  const SteadyTime now = Clock::now();
  if (drain_deadline_.has_value() && now >= *drain_deadline_) {
    FinishAll(FinishReason::kCancelled,
              absl::UnavailableError("the server is draining and its deadline has passed"));
    drain_deadline_.reset();
  }
  const absl::Status status = PastDeadline();
  for (std::unique_ptr<Sequence>& sequence : waiting_.RemoveExpired(now)) {
    FinishWaiting(std::move(sequence), FinishReason::kDeadline, status);
  }
  if (now < next_deadline_) return;
  next_deadline_ = SteadyTime::max();
  std::vector<Sequence*> expired;
  for (const auto& [id, sequence] : running_) {
    if (!sequence->request.deadline.has_value()) continue;
    if (*sequence->request.deadline <= now) {
      expired.push_back(sequence.get());
    } else {
      next_deadline_ = std::min(next_deadline_, *sequence->request.deadline);
    }
  }
  for (Sequence* sequence : expired) Finish(*sequence, FinishReason::kDeadline, status);
}

// ---- Admission ---------------------------------------------------------------------------------

void EngineLoop::Admit() {
  while (static_cast<int>(running_.size()) < options_.max_running) {
    std::unique_ptr<Sequence> sequence =
        waiting_.PopFitting(pool_->free_blocks() - ledger_.total());
    if (sequence == nullptr) return;
    sequence->reservation = ledger_.Reserve(sequence->block_plan.layer_blocks);
    sequence->cache.emplace(pool_, &geometry_);
    sequence->store = std::make_unique<SequenceStore>(
        sequence->block_plan.plan, geometry_, model_->shape().element, sequence->prompt_tokens(),
        sequence->tokens_to_append(), &*sequence->cache, &sequence->reservation, &ledger_);
    sequence->sampler.emplace(sequence->request.sampling, sequence->request.prompt,
                              model_->shape().vocab_size);
    sequence->state = RequestState::kPrefilling;
    sequence->admitted = Clock::now();
    if (sequence->request.deadline.has_value()) {
      next_deadline_ = std::min(next_deadline_, *sequence->request.deadline);
    }
    if (metrics_) {
      metrics_->ObserveQueueTime(Seconds(sequence->admitted - sequence->submitted));
      metrics_->ObserveAdmittedBlocks(sequence->block_plan.total_blocks);
    }
    spdlog::debug("[{}] admitted: {} prompt tokens, {}, {} blocks reserved", sequence->request.name,
                  sequence->prompt_tokens(), sequence->policy_text, sequence->reservation.total);
    is_stale_ = true;
    to_prefill_.push_back(sequence.get());
    const RequestId id = sequence->id;
    running_.emplace(id, std::move(sequence));
  }
}

// ---- Prefill -----------------------------------------------------------------------------------

void EngineLoop::PrefillSlice() {
  if (!prefill_.has_value()) StartPrefillBatch();
  if (!prefill_.has_value()) return;
  const int layers = std::max(1, options_.slice_token_layers / prefill_->tokens);
  for (int i = 0; i < layers && prefill_->next_layer < geometry_.num_layers; ++i) {
    if (absl::Status status = PrefillOneLayer(); !status.ok()) return FailPrefillBatch(status);
  }
  if (prefill_->next_layer == geometry_.num_layers) FinishPrefillBatch();
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
  ScopedTimer timer(&model_seconds_);
  if (absl::Status status = model_->BeginPrefill(prompts); !status.ok()) FailPrefillBatch(status);
}

absl::Status EngineLoop::PrefillOneLayer() {
  const int layer = prefill_->next_layer;
  const std::vector<Sequence*>& batch = prefill_->sequences;
  std::vector<bool> gone;
  for (const Sequence* sequence : batch) gone.push_back(sequence == nullptr);
  std::vector<LayerMeasured> measured(batch.size());
  {
    ScopedTimer timer(&model_seconds_);
    if (absl::Status status = model_->AttendLayer(layer, gone, &measured); !status.ok()) {
      return status;
    }
  }
  std::vector<LayerWrite> writes(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    absl::Status status = batch[i]->store->FillLayer(layer, measured[i], &writes[i]);
    if (!status.ok()) return status;
    if (measured[i].lazy && metrics_) metrics_->CountLazyLayer(layer);
  }
  std::vector<double> cosines(batch.size());
  ScopedTimer timer(&model_seconds_);
  if (absl::Status status = model_->FinishLayer(layer, writes, &cosines); !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    if (batch[i]->block_plan.plan.importance == LayerImportance::kCosine) {
      batch[i]->store->SetImportance(layer, cosines[i]);
    }
  }
  ++prefill_->next_layer;
  return absl::OkStatus();
}

/// Policies that wait for the last layer of the prompt.
absl::Status EngineLoop::DecidePrompts() {
  for (size_t i = 0; i < prefill_->sequences.size(); ++i) {
    Sequence* sequence = prefill_->sequences[i];
    if (sequence == nullptr || sequence->block_plan.plan.decide != DecideAt::kPrompt) continue;
    absl::Status status = sequence->store->Decide(
        *sequence->request.policy, PolicyContextOf(model_->shape()), sequence->prompt_tokens(),
        sequence->request.max_new_tokens, static_cast<int>(i), model_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void EngineLoop::FinishPrefillBatch() {
  const size_t vocab = static_cast<size_t>(model_->shape().vocab_size);
  prefill_logits_.resize(prefill_->sequences.size() * vocab);
  absl::Status status;
  {
    ScopedTimer timer(&model_seconds_);
    status = DecidePrompts();
    if (status.ok()) status = model_->FinishPrefill(prefill_logits_.data());
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
  AcceptTokens(there, logits);
}

void EngineLoop::FailPrefillBatch(const absl::Status& status) {
  model_->AbandonPrefill();
  const std::vector<Sequence*> sequences = std::move(prefill_->sequences);
  prefill_.reset();
  for (Sequence* sequence : sequences) {
    if (sequence != nullptr) Finish(*sequence, FinishReason::kError, status);
  }
}

// ---- Decode ------------------------------------------------------------------------------------

/// What must move in the caches before the step's tokens are written.
void EngineLoop::EditCaches() {
  std::vector<CacheEdit> edits;
  std::vector<Sequence*> edited;
  const std::vector<Sequence*> batch = decoding_;
  for (Sequence* sequence : batch) {
    const size_t before = edits.size();
    absl::Status status = sequence->store->PrepareStep(sequence->logical_tokens, &edits);
    if (!status.ok()) {
      edits.resize(before);
      Finish(*sequence, FinishReason::kError, status);
    } else if (edits.size() > before) {
      edited.push_back(sequence);
    }
  }
  if (edits.empty()) return;
  ScopedTimer timer(&model_seconds_);
  const absl::Status status = model_->EditCache(edits);
  for (Sequence* sequence : edited) {
    const absl::Status finished = status.ok() ? sequence->store->FinishEdits() : status;
    if (!finished.ok()) Finish(*sequence, FinishReason::kError, finished);
  }
}

void EngineLoop::DecodeStep() {
  EditCaches();
  decode_inputs_.clear();
  const std::vector<Sequence*> batch = decoding_;
  std::vector<Sequence*> ready;
  for (Sequence* sequence : batch) {
    SequenceStore& store = *sequence->store;
    absl::StatusOr<absl::Span<const DecodeInput::Layer>> layers =
        store.Append(sequence->logical_tokens);
    if (!layers.ok()) {
      Finish(*sequence, FinishReason::kError, layers.status());
      continue;
    }
    DecodeInput& input = decode_inputs_.emplace_back();
    input.token_id = sequence->last_token;
    input.position = sequence->logical_tokens;
    input.layers = *layers;
    input.step = store.step();
    const CachePlan& plan = sequence->block_plan.plan;
    if (plan.distant) {
      input.skip = plan.distant->skip;
      input.counts = &store.distant_counts;
    }
    if (store.IsUndecided()) {
      input.lazy_test = &plan.first_token_test;
      input.lazy_mass = store.lazy_mass();
    }
    ready.push_back(sequence);
  }
  if (ready.empty()) return;
  const size_t vocab = static_cast<size_t>(model_->shape().vocab_size);
  decode_logits_.resize(ready.size() * vocab);
  absl::Status status;
  {
    ScopedTimer timer(&model_seconds_);
    status = model_->Decode(decode_inputs_, decode_logits_.data());
  }
  if (metrics_) metrics_->ObserveBatchSize(static_cast<int>(ready.size()));
  tokens_in_step_ += static_cast<int>(ready.size());
  std::vector<Sequence*> decoded;
  std::vector<float*> logits;
  for (size_t i = 0; i < ready.size(); ++i) {
    Sequence& sequence = *ready[i];
    absl::Status of_sequence = status;
    if (status.ok()) {
      ++sequence.logical_tokens;
      of_sequence = DecideFirstToken(sequence);
    }
    if (!of_sequence.ok()) {
      Finish(sequence, FinishReason::kError, of_sequence);
      continue;
    }
    decoded.push_back(&sequence);
    logits.push_back(&decode_logits_[i * vocab]);
  }
  AcceptTokens(decoded, logits);
}

/// Policies that wait for the first generated token's attention.
absl::Status EngineLoop::DecideFirstToken(Sequence& sequence) {
  if (!sequence.store->IsUndecided()) return absl::OkStatus();
  ScopedTimer timer(&model_seconds_);
  const int tokens = sequence.logical_tokens;
  absl::Status status = sequence.store->Decide(
      *sequence.request.policy, PolicyContextOf(model_->shape()), tokens,
      sequence.request.max_new_tokens - (tokens - sequence.prompt_tokens()), -1, model_);
  if (!status.ok() || metrics_ == nullptr) return status;
  for (int layer = 0; layer < geometry_.num_layers; ++layer) {
    if (sequence.store->facts(layer).lazy) metrics_->CountLazyLayer(layer);
  }
  return status;
}

void EngineLoop::AcceptTokens(absl::Span<Sequence* const> sequences,
                              absl::Span<float* const> logits) {
  const auto vocab = static_cast<size_t>(model_->shape().vocab_size);
  std::vector<SampledToken> tokens(sequences.size());
  {
    ScopedTimer timer(&sample_seconds_);
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = *sequences[i];
      const absl::Span<const int32_t> forbidden =
          sequence.may_stop() ? absl::Span<const int32_t>()
                              : absl::MakeConstSpan(sequence.request.stop_token_ids);
      tokens[i] = sequence.sampler->Sample(absl::MakeSpan(logits[i], vocab), forbidden);
    }
  }
  const SteadyTime now = Clock::now();
  inter_token_seconds_.clear();
  int generated = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    generated += AcceptToken(*sequences[i], std::move(tokens[i]), now) ? 1 : 0;
  }
  if (metrics_ == nullptr || generated == 0) return;
  if (!inter_token_seconds_.empty()) metrics_->ObserveInterToken(inter_token_seconds_);
  metrics_->CountGeneratedTokens(generated);
}

bool EngineLoop::AcceptToken(Sequence& sequence, SampledToken token, SteadyTime now) {
  const EngineRequest& request = sequence.request;
  EngineOutput output;
  output.id = sequence.id;
  if (sequence.may_stop() && absl::c_linear_search(request.stop_token_ids, token.token_id)) {
    output.stop_token_id = token.token_id;
    Finish(sequence, FinishReason::kStop, absl::OkStatus(), std::move(output));
    return false;
  }
  if (sequence.generated == 0) {
    if (metrics_) {
      metrics_->ObserveFirstToken(Seconds(now - sequence.submitted));
      metrics_->ObservePrefill(Seconds(now - sequence.admitted));
    }
    sequence.first_token = now;
  } else {
    inter_token_seconds_.push_back(Seconds(now - sequence.latest_token));
  }
  sequence.latest_token = now;
  sequence.last_token = token.token_id;
  ++sequence.generated;
  output.tokens.push_back(std::move(token));
  if (sequence.generated >= request.max_new_tokens) {
    Finish(sequence, FinishReason::kLength, absl::OkStatus(), std::move(output));
  } else {
    outputs_.push_back(std::move(output));
  }
  return true;
}

// ---- The end of a request ----------------------------------------------------------------------

void EngineLoop::Finish(Sequence& sequence, FinishReason reason, absl::Status status,
                        EngineOutput output) {
  sequence.store->CatchUp();
  output.cache = MakeCacheReport(sequence, geometry_, model_->shape().element);
  if (metrics_ && !output.cache.layers.empty()) {
    metrics_->SetCompressionRatio(sequence.request.policy->name(), output.cache.compression_ratio);
    metrics_->CountDistant(output.cache.distant.attended, output.cache.distant.skipped);
  }
  Report(sequence, reason, std::move(status), std::move(output));
  Erase(to_prefill_, &sequence);
  Erase(decoding_, &sequence);
  ledger_.Cancel(sequence.reservation);
  auto node = running_.extract(sequence.id);
  sequence.store.reset();
  sequence.cache.reset();  // releases its blocks
  if (!prefill_.has_value()) return;
  auto& batch = prefill_->sequences;
  const auto place = std::find(batch.begin(), batch.end(), &sequence);
  if (place == batch.end()) return;
  *place = nullptr;
  prefill_->gone.push_back(std::move(node.mapped()));
  if (std::all_of(batch.begin(), batch.end(), [](Sequence* s) { return s == nullptr; })) {
    model_->AbandonPrefill();
    prefill_.reset();
  }
}

void EngineLoop::FinishWaiting(std::unique_ptr<Sequence> sequence, FinishReason reason,
                               absl::Status status) {
  Report(*sequence, reason, std::move(status), {});
}

void EngineLoop::FinishAll(FinishReason reason, const absl::Status& status) {
  for (std::unique_ptr<Sequence>& sequence : waiting_.RemoveAll()) {
    FinishWaiting(std::move(sequence), reason, status);
  }
  while (!running_.empty()) Finish(*running_.begin()->second, reason, status);
}

void EngineLoop::Report(const Sequence& sequence, FinishReason reason, absl::Status status,
                        EngineOutput output) {
  const SteadyTime now = Clock::now();
  output.id = sequence.id;
  output.finished = true;
  output.reason = reason;
  output.status = std::move(status);
  output.usage = {sequence.prompt_tokens(), sequence.generated};
  const bool was_admitted = sequence.state != RequestState::kWaiting;
  output.queue_seconds = Seconds((was_admitted ? sequence.admitted : now) - sequence.submitted);
  if (sequence.generated > 0) {
    output.first_token_seconds = Seconds(sequence.first_token - sequence.submitted);
  }
  output.total_seconds = Seconds(now - sequence.submitted);
  if (metrics_) {
    metrics_->CountFinished(FinishReasonName(reason));
    metrics_->ObserveEndToEnd(output.total_seconds);
    if (sequence.generated > 0) {
      metrics_->ObserveDecode(Seconds(sequence.latest_token - sequence.first_token));
      metrics_->ObserveTokens(sequence.prompt_tokens(), sequence.generated);
    }
  }
  spdlog::debug("[{}] finished: {}, {} prompt and {} generated tokens, {:.3f} s, {} blocks of {}",
                sequence.request.name, FinishReasonName(reason), output.usage.prompt_tokens,
                output.usage.completion_tokens, output.total_seconds, output.cache.blocks,
                output.cache.full_blocks);
  outputs_.push_back(std::move(output));
  ++finished_in_step_;
}

// ---- What others see ---------------------------------------------------------------------------

void EngineLoop::Publish() {
  const SteadyTime now = Clock::now();
  is_stale_ = is_stale_ || finished_in_step_ > 0;
  const auto age = now - last_published_;
  const bool is_due =
      IsIdle() ||
      (age >= std::min<Clock::duration>(kPublishRest * publish_cost_, kLongestPublishRest) &&
       age >= (is_stale_ ? Clock::duration(kStaleInterval) : Clock::duration(kPublishInterval)));
  std::optional<EngineSnapshot> snapshot;
  if (is_due) {
    snapshot = MakeSnapshot();
    if (metrics_) metrics_->SetOccupancy(*snapshot);
    last_published_ = now;
    publish_cost_ = Clock::now() - now;
    is_stale_ = false;
  }
  {
    std::lock_guard lock(status_->mutex);
    if (snapshot.has_value()) status_->snapshot = std::move(*snapshot);
    status_->in_flight -= std::exchange(finished_in_step_, 0);
    status_->waiting = status_->in_flight - static_cast<int>(running_.size());
  }
  status_->changed.notify_all();
  outbox_->SendAll(outputs_);
}

EngineSnapshot EngineLoop::MakeSnapshot() {
  EngineSnapshot snapshot;
  snapshot.block_bytes = geometry_.block_bytes;
  snapshot.block_tokens =
      geometry_.SlotsPerBlock(KeyValueFormat(model_->shape().element), geometry_.num_kv_heads);
  snapshot.total_blocks = pool_->num_blocks();
  snapshot.used_blocks = pool_->used_blocks();
  snapshot.reserved_blocks = ledger_.total();
  snapshot.high_water_blocks = pool_->high_water_blocks();
  snapshot.workspace_capacity_bytes = model_->workspace_capacity_bytes();
  snapshot.workspace_high_water_bytes = model_->workspace_high_water_bytes();
  snapshot.running = static_cast<int>(running_.size());
  snapshot.waiting = static_cast<int>(waiting_.size());
  snapshot.layers.resize(geometry_.num_layers);
  for (int l = 0; l < geometry_.num_layers; ++l) {
    snapshot.layers[l].reserved_blocks = ledger_.layer_total(l);
  }
  for (const auto& [id, sequence] : running_) {
    sequence->store->CatchUp();
    for (int l = 0; l < geometry_.num_layers; ++l) {
      const LayerBlockTable& table = sequence->cache->layer(l);
      const LayerOccupancy held = table.occupancy();
      LayerSnapshot& layer = snapshot.layers[l];
      layer.used_blocks += held.owned_blocks;
      layer.live_bytes += held.owned_live_bytes;
      layer.tail_waste_bytes += held.owned_blocks * geometry_.block_bytes - held.owned_live_bytes;
      std::map<CacheFormat, LayerOccupancy> by_format;
      table.AddOccupancyByFormat(&by_format);
      for (const auto& [format, part] : by_format) {
        layer.blocks_by_format[format] += part.owned_blocks;
      }
    }
    snapshot.requests.push_back(MakeRequestSnapshot(*sequence, geometry_, model_->shape().element));
  }
  std::sort(snapshot.requests.begin(), snapshot.requests.end(),
            [](const RequestSnapshot& a, const RequestSnapshot& b) { return a.id < b.id; });
  for (const auto& sequence : waiting_.sequences()) {
    snapshot.requests.push_back(MakeRequestSnapshot(*sequence, geometry_, model_->shape().element));
  }
  return snapshot;
}

void EngineLoop::CheckConservation() {
  std::vector<const SequenceCache*> caches;
  size_t reserved = 0;
  for (const auto& [id, sequence] : running_) {
    sequence->store->CatchUp();
    caches.push_back(&*sequence->cache);
    reserved += sequence->reservation.total;
  }
  absl::Status status = CheckIntegrity(*pool_, caches);
  if (status.ok() && (reserved != ledger_.total() || reserved > pool_->free_blocks())) {
    status =
        absl::InternalError(absl::StrCat("reservations are ", reserved, " blocks, the ledger says ",
                                         ledger_.total(), ", free are ", pool_->free_blocks()));
  }
  if (status.ok()) return;
  spdlog::critical("the block pool is inconsistent: {}", status.ToString());
  std::abort();
}

}  // namespace ziggurat
