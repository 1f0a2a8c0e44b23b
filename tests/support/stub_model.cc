#include "tests/support/stub_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

struct Record {
  uint32_t tag = 0;
  int32_t position = 0;
  int32_t token = 0;
  uint32_t checksum = 0;
};

uint32_t Mix(uint32_t a, uint32_t b) {
  uint32_t h = a * 0x9E3779B1u ^ (b + 0x7F4A7C15u + (a << 6) + (a >> 2));
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  return h;
}

uint32_t Checksum(const Record& record, int layer, int head) {
  return Mix(Mix(Mix(record.tag, record.position), record.token), Mix(layer, head));
}

// The 16 bytes of slot `slot`'s value and the first word of its key, of head `head` of the segment.
struct SlotBytes {
  std::byte* key;
  std::byte* value;
};

std::byte* AreaOf(PoolView pool, const PlaneView& plane, int head, int slot) {
  return pool.Block(plane.blocks[slot / plane.slots_per_block]) +
         static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
}

SlotBytes Locate(PoolView pool, const SegmentView& segment, int head_dim, int head, int slot) {
  const size_t value_bytes = static_cast<size_t>(head_dim) * EncodingBits(segment.encoding) / 8;
  return {AreaOf(pool, segment.keys, head, slot) + 4 * (slot % segment.keys.slots_per_block),
          AreaOf(pool, segment.values, head, slot) +
              value_bytes * (slot % segment.values.slots_per_block)};
}

// The key's word is another layer's where the segment borrows its keys.
void Write(PoolView pool, const SegmentView& segment, int head_dim, int head, int slot,
           const Record& record) {
  const SlotBytes bytes = Locate(pool, segment, head_dim, head, slot);
  std::memcpy(bytes.value, &record, sizeof(record));
  if (segment.use == SegmentUse::kBorrowedKeys) return;
  std::memcpy(bytes.key, &record.checksum, sizeof(record.checksum));
}

Record Read(PoolView pool, const SegmentView& segment, int head_dim, int head, int slot,
            uint32_t* key_word) {
  const SlotBytes bytes = Locate(pool, segment, head_dim, head, slot);
  Record record;
  std::memcpy(&record, bytes.value, sizeof(record));
  *key_word = record.checksum;
  if (segment.use != SegmentUse::kBorrowedKeys) {
    std::memcpy(key_word, bytes.key, sizeof(*key_word));
  }
  return record;
}

/// What an input says, but for the token: position and steps, and in every layer where the token
/// goes and the blocks there.
std::vector<int64_t> WhatItSays(const DecodeInput& input) {
  std::vector<int64_t> said = {input.position, input.step, input.changed_at};
  for (const DecodeInput::Layer& layer : input.layers) {
    for (TokenTarget target : layer.targets) {
      target = target.After(input.StepsSince(layer));
      const PlaneView& values = layer.view[target.segment].values;
      said.insert(said.end(), {target.segment, target.slot});
      for (int slot = 0; slot <= target.slot; slot += static_cast<int>(values.slots_per_block)) {
        said.push_back(values.blocks[slot / values.slots_per_block]);
      }
    }
  }
  return said;
}

absl::Status Wrong(const std::string& what, int layer, int head, int slot) {
  return absl::InternalError(
      absl::StrCat("stub model: ", what, " (layer ", layer, ", head ", head, ", slot ", slot, ")"));
}

bool HoldsRecords(const SegmentView& segment) {
  return IsPlain(segment.encoding) && segment.key_norms.blocks == nullptr;
}

// The positions that head `head` keeps where `best` are selected before the last `recent`:
// neighbours, another range for each head, so that slots really differ between heads.
void KeepSome(int prompt_tokens, int best, int recent, int head, std::vector<int32_t>* kept) {
  const int candidates = prompt_tokens - recent;
  const int first = (head * 7) % (candidates - best + 1);
  for (int i = 0; i < best; ++i) kept->push_back(first + i);
  for (int i = candidates; i < prompt_tokens; ++i) kept->push_back(i);
}

/// For a minute at most: a test that has failed does not let go.
void WaitWhileHeld(StubControl& control) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (control.decode_steps >= control.hold_at_step && std::chrono::steady_clock::now() < end) {
    control.is_held = true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  control.is_held = false;
}

void SleepMicroseconds(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

int32_t StubNextToken(int32_t token, int position, int vocab_size) {
  const int half = vocab_size / 2;
  return half + static_cast<int32_t>(Mix(token, position) % (vocab_size - half));
}

std::vector<int32_t> StubGreedyTokens(const StubModelOptions& options,
                                      absl::Span<const int32_t> prompt, int count) {
  std::vector<int32_t> tokens;
  int32_t token = prompt.back();
  for (int i = 0; i < count; ++i) {
    const int position = static_cast<int>(prompt.size()) - 1 + i;
    token = options.next_token ? options.next_token(token, position)
                               : StubNextToken(token, position, options.shape.vocab_size);
    tokens.push_back(token);
  }
  return tokens;
}

StubModel::StubModel(StubModelOptions options) : options_(std::move(options)) {
  if (!options_.control) options_.control = std::make_shared<StubControl>();
  PrefillNeeds all;
  all.window_rows = -1;
  for (const int tokens : {options_.max_prefill_tokens, options_.short_prefill_tokens}) {
    if (tokens == 0) continue;
    lanes_.push_back(
        {tokens, StubModel::WorkspaceBytes(tokens) + StubModel::PromptNeedsBytes(tokens, all)});
  }
  is_busy_.resize(lanes_.size());
}

size_t StubModel::WorkspaceBytes(int tokens) const {
  const ModelShape& shape = options_.shape;
  const size_t q = size_t{4} * shape.num_q_heads * shape.head_dim;
  const size_t kv = size_t{8} * shape.num_kv_heads * shape.head_dim;
  return tokens * (size_t{4} * shape.hidden_size + q + kv);
}

size_t StubModel::PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const {
  const ModelShape& shape = options_.shape;
  const size_t rows = needs.window_rows < 0 ? prompt_tokens : needs.window_rows;
  return rows * 4 * shape.num_q_heads * shape.head_dim;
}

/// Holds the prompts, and that the calls come in their order.
class StubModel::Batch final : public PromptBatch {
 public:
  Batch(StubModel* model, int lane, std::vector<Prompt> prompts)
      : model_(*model), lane_(lane), prompts_(std::move(prompts)) {
    model_.is_busy_[lane] = true;
  }
  ~Batch() override { model_.is_busy_[lane_] = false; }

  void Drop(int prompt) override { prompts_[prompt].is_gone = true; }
  absl::StatusOr<bool> AttendLayer(int layer, PauseTest pause,
                                   std::vector<LayerMeasured>* measured) override;
  absl::Status WriteLayer(int layer, absl::Span<const LayerWrite> writes) override;
  absl::StatusOr<bool> FinishLayer(int layer, PauseTest pause,
                                   std::vector<double>* cosines) override;
  absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                            std::vector<int32_t>* kept) override;
  absl::Status LastLogits(float* logits) override;

 private:
  /// What comes next of a layer.
  enum class Stage : uint8_t { kAttend, kWrite, kFinish };
  absl::Status CheckTurn(int layer, Stage stage) const;
  bool WorkOn(PauseTest pause);

  StubModel& model_;
  const int lane_;
  std::vector<Prompt> prompts_;
  int next_layer_ = 0;
  Stage stage_ = Stage::kAttend;  ///< of next_layer_
  int done_parts_ = 0;            ///< of the stage
};

absl::StatusOr<std::unique_ptr<PromptBatch>> StubModel::BeginPrefill(
    int lane, absl::Span<const PrefillPrompt> prompts) {
  if (is_busy_[lane]) return absl::InternalError("stub model: a prefill batch is under way");
  if (pool_.base == nullptr) return absl::InternalError("stub model: no pool attached");
  std::vector<Prompt> batch;
  int tokens = 0;
  size_t needs = 0;
  for (const PrefillPrompt& prompt : prompts) {
    Prompt& kept = batch.emplace_back();
    kept.tokens.assign(prompt.token_ids.begin(), prompt.token_ids.end());
    kept.plan = prompt.plan;
    kept.tag = next_tag_++;
    tokens += static_cast<int>(prompt.token_ids.size());
    needs += PromptNeedsBytes(static_cast<int>(prompt.token_ids.size()), prompt.plan->needs);
  }
  if (tokens > lanes_[lane].max_tokens ||
      WorkspaceBytes(tokens) + needs > lanes_[lane].capacity_bytes) {
    return absl::InternalError(absl::StrCat("stub model: ", tokens, " tokens in a prefill batch"));
  }
  if (lane > 0) ++options_.control->short_batches;
  workspace_high_water_ = std::max(workspace_high_water_, WorkspaceBytes(tokens) + needs);
  return std::make_unique<Batch>(this, lane, std::move(batch));
}

absl::Status StubModel::Batch::CheckTurn(int layer, Stage stage) const {
  if (layer == next_layer_ && stage == stage_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "stub model: stage ", static_cast<int>(stage), " of layer ", layer, " of ", prompts_.size(),
      " prompts where stage ", static_cast<int>(stage_), " of layer ", next_layer_, " was due"));
}

/// The next parts of a stage. True: it is done.
bool StubModel::Batch::WorkOn(PauseTest pause) {
  const int parts = model_.options_.control->prefill_parts;
  while (done_parts_ < parts) {
    StubControl& control = *model_.options_.control;
    WaitWhileHeld(control);
    int64_t delay = control.prefill_layer_delay_us;
    for (const Prompt& prompt : prompts_) {
      delay += control.prefill_token_delay_us * static_cast<int64_t>(prompt.tokens.size());
    }
    SleepMicroseconds(delay / (2 * parts));
    ++done_parts_;
    if (pause()) return false;
  }
  done_parts_ = 0;
  return true;
}

absl::StatusOr<bool> StubModel::Batch::AttendLayer(int layer, PauseTest pause,
                                                   std::vector<LayerMeasured>* measured) {
  if (absl::Status status = CheckTurn(layer, Stage::kAttend); !status.ok()) return status;
  if (measured->size() != prompts_.size()) {
    return absl::InternalError(absl::StrCat("stub model: ", measured->size(), " results of ",
                                            prompts_.size(), " prompts are asked for"));
  }
  if (!WorkOn(pause)) return false;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (!prompts_[i].is_gone) (*measured)[i] = model_.MeasureLayer(layer, prompts_[i]);
  }
  stage_ = Stage::kWrite;
  return true;
}

LayerMeasured StubModel::MeasureLayer(int layer, Prompt& prompt) {
  const LayerPlan& plan = prompt.plan->layers[layer];
  const int n = static_cast<int>(prompt.tokens.size()), heads = options_.shape.num_kv_heads;
  const auto keep = [&](int best, int recent) {
    prompt.kept.clear();
    prompt.kept_tokens = best + recent < n ? best + recent : 0;
    for (int head = 0; prompt.kept_tokens > 0 && head < heads; ++head) {
      KeepSome(n, best, recent, head, &prompt.kept);
    }
  };
  LayerMeasured measured;
  measured.kept_tokens = measured.first_tokens = n;
  if (const auto* best = std::get_if<KeepBest>(&plan.edit)) keep(best->best, best->recent);
  if (const auto* heavy = std::get_if<KeepHeavy>(&plan.edit)) keep(heavy->heavy, heavy->recent);
  if (const auto* windows = std::get_if<KeepWindows>(&plan.edit)) {
    keep(std::max(0, windows->budget - 3), windows->observe);
  }
  if (std::holds_alternative<KeepAll>(plan.edit)) prompt.kept_tokens = 0;
  if (prompt.kept_tokens > 0) {
    measured.kept_tokens = prompt.kept_tokens;
    measured.first_tokens = 0;
    measured.kept = prompt.kept;
  }
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) {
    measured.KeepFirstAndLast(ring->sinks, ring->recent, n);
  }
  const auto& layers = prompt.plan->layers;
  const auto tested_below = std::count_if(layers.begin(), layers.begin() + layer,
                                          [](const LayerPlan& at) { return at.lazy.has_value(); });
  if (plan.lazy && tested_below % 2 == 0 && n > plan.lazy->sinks + plan.lazy->recent) {
    measured.lazy = true;
    measured.KeepFirstAndLast(plan.lazy->sinks, plan.lazy->recent, n);
  }
  if (plan.merge == MergeRole::kUpper) {
    measured.retained_tokens = prompt.plan->merge->Retained(n);
  }
  measured.importance = layer % 3;
  if (options_.mismeasures) options_.mismeasures(prompt.tokens, &measured);
  prompt.measured = measured;
  return measured;
}

absl::Status StubModel::Batch::WriteLayer(int layer, absl::Span<const LayerWrite> writes) {
  if (absl::Status status = CheckTurn(layer, Stage::kWrite); !status.ok()) return status;
  for (size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].view.empty()) continue;  // its request has gone
    if (prompts_[i].is_gone) {
      return absl::InternalError("stub model: a prompt that has gone is written");
    }
    if (absl::Status status = model_.WritePrompt(layer, prompts_[i], writes[i]); !status.ok())
      return status;
  }
  stage_ = Stage::kFinish;
  return absl::OkStatus();
}

absl::StatusOr<bool> StubModel::Batch::FinishLayer(int layer, PauseTest pause,
                                                   std::vector<double>* cosines) {
  if (absl::Status status = CheckTurn(layer, Stage::kFinish); !status.ok()) return status;
  if (!WorkOn(pause)) return false;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    (*cosines)[i] = (layer + i) % 3 * 0.25;  // no two neighbours have the same
  }
  stage_ = Stage::kAttend;
  ++next_layer_;
  ++model_.options_.control->prefill_layers;
  return true;
}

// Of a merged pair the first tokens are the retained ones.
absl::Status StubModel::WritePrompt(int layer, const Prompt& prompt, const LayerWrite& write) {
  const LayerMeasured& measured = prompt.measured;
  const int n = static_cast<int>(prompt.tokens.size());
  if (!write.lower.empty()) {
    const int retained = measured.retained_tokens;
    const auto is_retained = [](int /*head*/, int index) { return index; };
    const auto is_merged = [retained](int /*head*/, int index) { return retained + index; };
    for (const auto& [l, view] : {std::pair(layer - 1, write.lower), {layer, write.view}}) {
      absl::Status status = WriteRanges(l, prompt, view, write.retained, retained, is_retained);
      if (!status.ok()) return status;
    }
    return WriteRanges(layer, prompt, write.view, write.ranges, n - retained, is_merged);
  }
  return WriteRanges(layer, prompt, write.view, write.ranges, measured.kept_tokens,
                     [&](int head, int index) { return measured.PositionOf(head, index, n); });
}

absl::Status StubModel::WriteRanges(int layer, const Prompt& prompt, LayerView view,
                                    absl::Span<const TokenRange> ranges, int listed,
                                    const std::function<int(int head, int index)>& position_of) {
  std::vector<int> covered(options_.shape.num_kv_heads, 0);
  for (const TokenRange& range : ranges) {
    const SegmentView& segment = view[range.segment];
    if (range.first_slot + range.count > segment.num_slots ||
        range.first_token + range.count > listed) {
      return absl::InternalError(absl::StrCat("stub model: layer ", layer, " has ",
                                              segment.num_slots, " slots for ", range.count,
                                              " tokens from slot ", range.first_slot));
    }
    for (int g = 0; g < segment.num_kv_heads; ++g) {
      const int head = segment.first_kv_head + g;
      covered[head] += range.count;
      if (!HoldsRecords(segment)) continue;
      for (int i = 0; i < range.count; ++i) {
        const int position = position_of(head, range.first_token + i);
        Record record{.tag = prompt.tag, .position = position, .token = prompt.tokens[position]};
        record.checksum = Checksum(record, layer, head);
        Write(pool_, segment, options_.shape.head_dim, g, range.first_slot + i, record);
      }
    }
  }
  for (const int tokens : covered) {
    if (tokens == listed) continue;
    return absl::InternalError(
        absl::StrCat("stub model: layer ", layer, " writes ", tokens, " of ", listed, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status StubModel::Batch::SelectStored(int prompt, int /*layer*/, const KeepBest& edit,
                                            std::vector<int32_t>* kept) {
  kept->clear();
  const int n = static_cast<int>(prompts_[prompt].tokens.size());
  for (int head = 0; head < model_.options_.shape.num_kv_heads; ++head) {
    KeepSome(n, edit.best, edit.recent, head, kept);
  }
  return absl::OkStatus();
}

absl::Status StubModel::EditCache(absl::Span<const CacheEdit> edits) {
  if (tokens_ != nullptr) {
    if (options_.control->failing_edits_ahead > 0) {
      --options_.control->failing_edits_ahead;
      return absl::InternalError("edits fail");
    }
    options_.control->edits_ahead += static_cast<int64_t>(edits.size());
  }
  for (const CacheEdit& edit : edits) {
    if (const auto* copy = std::get_if<CopyEdit>(&edit)) CopyRecords(*copy);
    if (const auto* merge = std::get_if<MergeEdit>(&edit)) CopyRetained(*merge);
  }
  return absl::OkStatus();
}

DeviceSeconds StubModel::device_seconds() const {
  return std::exchange(device_seconds_,
                       {0, 1e-3 * static_cast<double>(options_.control->edits_ahead)});
}

// One by one: within a segment a slot only moves down.
void StubModel::CopyRecords(const CopyEdit& edit) {
  if (!HoldsRecords(*edit.from) || !HoldsRecords(*edit.to)) return;
  const int dim = options_.shape.head_dim;
  for (int g = 0; g < edit.from->num_kv_heads; ++g) {
    for (int i = 0; i < edit.count; ++i) {
      const int slot = edit.slots.empty() ? edit.first + i : edit.slots[g * edit.count + i];
      uint32_t key_word = 0;
      const Record record = Read(pool_, *edit.from, dim, g, slot, &key_word);
      Write(pool_, *edit.to, dim, g, edit.first_slot + i, record);
    }
  }
}

// The first tokens of the tails are retained; those that are merged cannot carry records.
void StubModel::CopyRetained(const MergeEdit& edit) {
  for (const auto& [from, to] : {std::pair(edit.lower_tail, edit.lower_retained),
                                 std::pair(edit.upper_tail, edit.upper_retained)}) {
    CopyRecords({from, 0, {}, edit.retained, to, edit.first_retained_slot});
  }
}

absl::Status StubModel::Batch::LastLogits(float* logits) {
  if (next_layer_ != model_.options_.shape.num_layers) {
    return absl::InternalError(absl::StrCat("stub model: finished after ", next_layer_, " layers"));
  }
  for (const Prompt& prompt : prompts_) {
    model_.FillLogits(prompt.tokens.back(), static_cast<int>(prompt.tokens.size()) - 1, logits);
    logits += model_.options_.shape.vocab_size;
  }
  return absl::OkStatus();
}

absl::Status StubModel::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  StubControl& control = *options_.control;
  WaitWhileHeld(control);
  SleepMicroseconds(control.decode_delay_us);
  if (control.fail_decode) return absl::InternalError("stub model: told to fail");
  for (const DecodeInput& input : inputs) {
    if (static_cast<int>(input.layers.size()) != options_.shape.num_layers) {
      return absl::InternalError("stub model: a decode input lacks layers");
    }
    uint32_t tag = 0;  // found in the first slot read, then the same everywhere
    for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
      if (absl::Status status = DecodeLayer(layer, input, &tag); !status.ok()) return status;
    }
    FillLogits(input.token_id, input.position, logits);
    logits += options_.shape.vocab_size;
  }
  ++control.decode_steps;
  control.decoded_tokens += static_cast<int64_t>(inputs.size());
  control.largest_batch =
      std::max<int>(control.largest_batch.load(), static_cast<int>(inputs.size()));
  return absl::OkStatus();
}

absl::Status StubModel::DecodeTokens(absl::Span<const DecodeInput> inputs,
                                     absl::Span<const TokenDraw> draws, SampledToken* tokens) {
  if (!options_.is_asynchronous) return ModelRunner::DecodeTokens(inputs, draws, tokens);
  for (const DecodeInput& input : inputs) {
    const auto said = said_.find(input.sequence);
    if (said == said_.end() || said->second == WhatItSays(input)) continue;
    return absl::InternalError("stub model: an input is not what was said of it");
  }
  said_.clear();
  device_logits_.resize(inputs.size() * options_.shape.vocab_size);
  absl::Status status = Decode(inputs, device_logits_.data());
  if (!status.ok()) return status;
  draws_ = draws;
  tokens_ = tokens;
  return absl::OkStatus();
}

void StubModel::PrepareDecode(absl::Span<const DecodeInput> inputs) {
  for (const DecodeInput& input : inputs) {
    said_[input.sequence] = WhatItSays(input);
    for (const DecodeInput::Layer& layer : input.layers) {
      options_.control->prepared_layers += layer.as_of == input.step ? 1 : 0;
    }
  }
}

absl::Status StubModel::AwaitTokens() {
  if (tokens_ == nullptr) return absl::OkStatus();
  if (options_.control->fail_await) return absl::InternalError("stub model: told to fail");
  Sample(draws_, device_logits_.data(), tokens_);
  tokens_ = nullptr;
  return absl::OkStatus();
}

absl::Status StubModel::DecodeLayer(int layer, const DecodeInput& input, uint32_t* tag) {
  const DecodeInput::Layer& at = input.layers[layer];
  const int dim = options_.shape.head_dim;
  for (int head = 0; head < options_.shape.num_kv_heads; ++head) {
    seen_.assign(input.position, false);
    for (int s = 0; s < static_cast<int>(at.view.size()); ++s) {
      const SegmentView& segment = at.view[s];
      const int g = head - segment.first_kv_head;
      if (g < 0 || g >= segment.num_kv_heads || !HoldsRecords(segment)) continue;
      int new_slot = -2;
      for (const TokenTarget& target : at.targets) {
        if (target.segment == s) new_slot = target.After(input.StepsSince(at)).slot;
      }
      const int slots = segment.num_slots + input.StepsSince(at);
      // On a device a slot that was prepared is not counted yet.
      if (new_slot >= slots + (options_.is_asynchronous ? 1 : 0)) {
        return Wrong("no such slot", layer, head, new_slot);
      }
      int oldest = 0, oldest_position = input.position;
      const int live = std::max(segment.num_slots, new_slot + 1);
      for (int slot = 0; slot < live; ++slot) {
        if (slot == new_slot) continue;
        uint32_t key_word = 0;
        const Record record = Read(pool_, segment, dim, g, slot, &key_word);
        if (record.checksum != Checksum(record, layer, head) || key_word != record.checksum) {
          return Wrong("the record is damaged", layer, head, slot);
        }
        if (*tag == 0) *tag = record.tag;
        if (record.tag != *tag) return Wrong("another sequence's record", layer, head, slot);
        if (record.position < 0 || record.position >= input.position) {
          return Wrong(absl::StrCat("position ", record.position, " in step ", input.position),
                       layer, head, slot);
        }
        if (seen_[record.position]) return Wrong("a position twice", layer, head, slot);
        seen_[record.position] = true;
        if (record.position < oldest_position) {
          oldest = slot;
          oldest_position = record.position;
        }
      }
      if (new_slot == -2) continue;
      Record record{.tag = *tag, .position = input.position, .token = input.token_id};
      record.checksum = Checksum(record, layer, head);
      Write(pool_, segment, dim, g, new_slot == TokenTarget::kLowestScore ? oldest : new_slot,
            record);
    }
  }
  if (input.lazy_test != nullptr) input.lazy_mass[layer] = layer % 2 == 0 ? 1.0 : 0.0;
  return absl::OkStatus();
}

void StubModel::FillLogits(int32_t token, int position, float* logits) const {
  const int vocab_size = options_.shape.vocab_size;
  if (options_.control->overflow) {
    std::fill_n(logits, vocab_size, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const uint32_t seed = Mix(token, position);
  for (int i = 0; i < vocab_size; ++i) {
    logits[i] = static_cast<float>(((seed ^ i) * 0x9E3779B1u) >> 24) / 256.0f;
  }
  const int32_t next = options_.next_token ? options_.next_token(token, position)
                                           : StubNextToken(token, position, vocab_size);
  logits[next] = 4.0f;
}

}  // namespace ziggurat
