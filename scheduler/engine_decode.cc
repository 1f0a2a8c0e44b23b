// A decode step of the engine: what must move in the caches, the model, the tokens.
#include <chrono>
#include <utility>
#include <vector>

#include "model/scoped_seconds.h"
#include "scheduler/engine_loop.h"

namespace ziggurat {

bool EngineLoop::EditCaches(absl::Span<Sequence* const> sequences, bool ahead) {
  std::vector<Sequence*> edited;
  bool has_failed = false;
  for (Sequence* sequence : sequences) {
    if (!sequence->edit_status.ok()) continue;
    const size_t before = buffers_.edits.size();
    sequence->edit_status =
        sequence->store->PrepareStep(sequence->logical_tokens + (ahead ? 1 : 0), &buffers_.edits);
    if (!sequence->edit_status.ok()) {
      buffers_.edits.resize(before);
      has_failed = true;
    } else if (buffers_.edits.size() > before) {
      edited.push_back(sequence);
    }
  }
  if (buffers_.edits.empty()) return has_failed;
  double timed_already = 0;
  absl::Status status;
  {
    const ScopedSeconds timer(ahead ? &timed_already : &measures_.model_seconds);
    status = model_->EditCache(buffers_.edits);
  }
  for (Sequence* sequence : edited) {
    sequence->edit_status = status.ok() ? sequence->store->FinishEdits() : status;
  }
  buffers_.edits.clear();  // they name segments of sequences that may end
  return true;
}

void EngineLoop::DecodeStep() {
  const SteadyTime start = std::chrono::steady_clock::now();
  holds_ahead_ = false;
  EditCaches(decoding_, /*ahead=*/false);
  buffers_.decode_inputs.clear();
  const std::vector<Sequence*> batch = decoding_;
  std::vector<Sequence*> ready;
  for (Sequence* sequence : batch) {
    if (!sequence->edit_status.ok()) {
      Finish(*sequence, FinishReason::kError, sequence->edit_status);
      continue;
    }
    absl::StatusOr<DecodeInput> input = sequence->store->Append(sequence->logical_tokens);
    if (!input.ok()) {
      Finish(*sequence, FinishReason::kError, input.status());
      continue;
    }
    input->sequence = sequence->id;
    input->token_id = sequence->last_token_id;
    buffers_.decode_inputs.push_back(*input);
    ready.push_back(sequence);
  }
  if (!ready.empty()) DecodeAndDraw(std::move(ready));
  decode_time_ = std::chrono::steady_clock::now() - start;
}

void EngineLoop::DecodeAndDraw(std::vector<Sequence*> ready) {
  std::vector<TokenDraw> draws;
  draws.reserve(ready.size());
  for (Sequence* sequence : ready) draws.push_back(DrawOf(*sequence));
  std::vector<SampledToken> tokens(ready.size());
  absl::Status status;
  {
    const ScopedSeconds timer(&measures_.model_seconds);
    status = model_->DecodeTokens(buffers_.decode_inputs, draws, tokens.data());
    if (status.ok()) {
      if (model_->is_asynchronous()) PrepareNextStep(ready);
      status = model_->AwaitTokens();
    }
  }
  metrics_->ObserveBatchSize(static_cast<int>(ready.size()));
  measures_.tokens += static_cast<int>(ready.size());
  for (Sequence*& sequence : ready) {
    absl::Status of_sequence = status;
    if (status.ok()) {
      ++sequence->logical_tokens;
      of_sequence = DecideFirstToken(*sequence);
      of_sequence.Update(sequence->edit_status);  // for the next step
    }
    if (of_sequence.ok()) continue;
    Finish(*sequence, FinishReason::kError, of_sequence);
    sequence = nullptr;
  }
  AcceptTokens(ready, std::move(tokens));
}

void EngineLoop::PrepareNextStep(absl::Span<Sequence* const> ready) {
  // This step is shown at its end, as it is.
  if (shows_idle_ || IsSnapshotDue()) return;
  // A few at a time, whose tables are still in the CPU's cache from one thing to the next.
  constexpr size_t kAtOnce = 8;
  for (size_t first = 0; first < ready.size(); first += kAtOnce) {
    PrepareSome(ready.subspan(first, kAtOnce),
                absl::MakeConstSpan(buffers_.decode_inputs).subspan(first, kAtOnce));
  }
}

void EngineLoop::PrepareSome(absl::Span<Sequence* const> sequences,
                             absl::Span<const DecodeInput> inputs) {
  std::vector<Sequence*> going_on;
  for (Sequence* sequence : sequences) {
    if (sequence->tokens_to_append() > 0 && sequence->store->MayEditAhead()) {
      going_on.push_back(sequence);
    }
  }
  const bool edited = EditCaches(going_on, /*ahead=*/true);
  holds_ahead_ = holds_ahead_ || edited;
  buffers_.next_inputs.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    SequenceStore& store = *sequences[i]->store;
    if (sequences[i]->tokens_to_append() <= 0 || !sequences[i]->edit_status.ok()) continue;
    const bool is_ready = store.PrepareAppend();
    holds_ahead_ = holds_ahead_ || store.changed_at() > store.step();
    if (!is_ready) continue;
    DecodeInput& input = buffers_.next_inputs.emplace_back(inputs[i]);
    ++input.position;
    ++input.step;
    input.changed_at = store.changed_at();
  }
  model_->PrepareDecode(buffers_.next_inputs);
}

absl::Status EngineLoop::DecideFirstToken(Sequence& sequence) {
  if (!sequence.store->IsUndecided()) return absl::OkStatus();
  const ScopedSeconds timer(&measures_.model_seconds);
  absl::Status status = sequence.store->Decide(*sequence.request.policy,
                                               PolicyContextOf(model_->shape()), {}, model_);
  if (!status.ok()) return status;
  for (int layer = 0; layer < geometry_.num_layers; ++layer) {
    if (sequence.store->facts(layer).lazy) metrics_->CountLazyLayer(layer);
  }
  return status;
}

}  // namespace ziggurat
