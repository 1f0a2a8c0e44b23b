#include "scheduler/prefill_lanes.h"

#include <algorithm>
#include <utility>

namespace ziggurat {
namespace {

/// Side by side each prompt takes longer than alone, so it must be worth it.
constexpr int kWorthOvertaking = 4;

}  // namespace

bool PrefillBatch::is_empty() const {
  return std::ranges::all_of(sequences, [](const Sequence* s) { return s == nullptr; });
}

int PrefillBatch::LongestPrompt() const {
  int longest = 0;
  for (const Sequence* sequence : sequences) {
    if (sequence != nullptr) longest = std::max(longest, sequence->prompt_tokens());
  }
  return longest;
}

PrefillLanes::PrefillLanes(const ModelRunner* model, int batch_tokens)
    : model_(model), batch_tokens_(batch_tokens), batches_(model->lanes().size()) {}

bool PrefillLanes::Fill(int lane) {
  if (queue_.empty()) return false;
  const bool is_first = lane == 0;
  const int longest = !is_first && batches_[0].has_value() ? batches_[0]->LongestPrompt() : 0;
  // Asked in every step: mostly there is no long prompt, and the queue need not be looked through.
  if (!is_first && longest <= model_->lanes()[1].max_tokens) return false;
  const size_t capacity = model_->lanes()[lane].capacity_bytes;
  PrefillBatch batch;
  size_t needs_bytes = 0;
  for (auto it = queue_.begin(); it != queue_.end();) {
    Sequence* next = *it;
    const int tokens = next->prompt_tokens();
    const size_t needs = model_->PromptNeedsBytes(tokens, next->block_plan.plan.needs);
    Place place = is_first ? PlaceInFirstLane(batch, tokens) : PlaceBeside(batch, tokens, longest);
    if (!batch.sequences.empty() &&
        model_->WorkspaceBytes(batch.tokens + tokens) + needs_bytes + needs > capacity) {
      place = is_first ? Place::kNextBatch : Place::kOtherLane;
    }
    if (place == Place::kNextBatch) break;
    if (place == Place::kOtherLane) {
      ++it;
      continue;
    }
    it = queue_.erase(it);
    batch.sequences.push_back(next);
    batch.tokens += tokens;
    needs_bytes += needs;
  }
  if (batch.sequences.empty()) return false;
  batches_[lane] = std::move(batch);
  return true;
}

/// One that need not wait for another one is not in the same batch: behind it, it is left to the
/// other lane, and before it, the batch ends.
PrefillLanes::Place PrefillLanes::PlaceInFirstLane(const PrefillBatch& batch, int tokens) const {
  if (batch.sequences.empty()) return Place::kHere;
  if (batch.tokens + tokens > batch_tokens_) return Place::kNextBatch;
  const int layers = model_->shape().num_layers;
  for (const Sequence* other : batch.sequences) {
    const int of_other = other->prompt_tokens();
    if (IsWorthOvertaking(of_other, tokens, layers)) return Place::kNextBatch;
    if (IsWorthOvertaking(tokens, of_other, layers)) return Place::kOtherLane;
  }
  return Place::kHere;
}

/// The second lane takes those that need not wait for the longest one in the first.
PrefillLanes::Place PrefillLanes::PlaceBeside(const PrefillBatch& batch, int tokens,
                                              int longest) const {
  if (batch.tokens + tokens > model_->lanes()[1].max_tokens) return Place::kOtherLane;
  const int layers = model_->shape().num_layers - batches_[0]->next_layer;
  return IsWorthOvertaking(tokens, longest, layers) ? Place::kHere : Place::kOtherLane;
}

/// Whether a prompt of `tokens` tokens shall not wait for one of `of_other`, of which `layers` are
/// left.
bool PrefillLanes::IsWorthOvertaking(int64_t tokens, int64_t of_other, int layers) const {
  if (size() == 1) return false;
  const int short_tokens = model_->lanes()[1].max_tokens;
  return tokens <= short_tokens && of_other > short_tokens &&
         kWorthOvertaking * tokens * model_->shape().num_layers <= of_other * layers;
}

/// They take turns, so that neither short prompts nor long ones wait for all of the others.
int PrefillLanes::NextLane() {
  for (int i = 1; i <= size(); ++i) {
    const int lane = (last_lane_ + i) % size();
    if (batches_[lane].has_value()) return last_lane_ = lane;
  }
  return -1;
}

void PrefillLanes::Remove(const Sequence* sequence) {
  std::erase(queue_, sequence);
  for (std::optional<PrefillBatch>& batch : batches_) {
    if (!batch.has_value()) continue;
    std::vector<Sequence*>& sequences = batch->sequences;
    const auto place = std::find(sequences.begin(), sequences.end(), sequence);
    if (place == sequences.end()) continue;
    batch->prompts->Drop(static_cast<int>(place - sequences.begin()));
    *place = nullptr;
    return;
  }
}

}  // namespace ziggurat
