#include "scheduler/sequence_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "block_manager/check.h"
#include "compression/plan_check.h"

namespace ziggurat {
namespace {

/// What an edit keeps of `tokens` tokens, before anything is selected.
LayerMeasured KeptBy(const LayerEdit& edit, int tokens) {
  LayerMeasured measured;
  measured.kept_tokens = measured.first_tokens = tokens;
  if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    measured.KeepFirstAndLast(ring->sinks, ring->recent, tokens);
  } else if (const auto* best = std::get_if<KeepBest>(&edit)) {
    measured.kept_tokens = std::min(tokens, best->best + best->recent);
  }
  return measured;
}

/// Slots of `count` tokens of the kept list from `first` on, in a segment that holds token i in
/// slot i: [heads, count].
std::vector<int32_t> SlotsOf(const LayerMeasured& measured, int tokens, int heads, int first,
                             int count) {
  std::vector<int32_t> slots;
  slots.reserve(static_cast<size_t>(heads) * count);
  for (int head = 0; head < heads; ++head) {
    for (int i = first; i < first + count; ++i) {
      slots.push_back(measured.PositionOf(head, i, tokens));
    }
  }
  return slots;
}

int StepAfter(int step, int tokens) {
  return tokens > LayerStore::kNever - step ? LayerStore::kNever : step + tokens;
}

}  // namespace

SequenceStore::SequenceStore(const BlockPlan& plan, BlockPool* pool, ReservationLedger* ledger)
    : plan_(&plan.plan),
      context_(StoreContextOf(plan)),
      ledger_(ledger),
      reservation_(ledger->Reserve(plan.layer_blocks)),
      cache_(pool, plan.geometry),
      layers_(plan_->layers.size()),
      edit_due_(plan_->layers.size()),
      append_due_(plan_->layers.size()),
      targets_(plan_->layers.size()),
      places_(plan_->layers.size()),
      facts_(plan_->layers.size()),
      importance_(plan_->layers.size()),
      undecided_(plan_->decide != DecideAt::kLayer) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].bound = plan.layer_blocks[i];
}

absl::Status SequenceStore::FillLayer(int layer, const LayerMeasured& measured, LayerWrite* write) {
  facts_[layer] = {measured.lazy, static_cast<size_t>(measured.kept_tokens),
                   measured.attention_recall};
  distant_counts.attended += measured.distant.attended;
  distant_counts.skipped += measured.distant.skipped;
  if (plan_->importance != LayerImportance::kNone) importance_[layer] = measured.importance;
  stores_.push_back(undecided_ ? MakeGrowingStore(context_, MakeStoreFormat(context_.element, {}),
                                                  &cache_.layer(layer))
                               : MakeLayerStore(context_, layer, measured.lazy, &cache_, stores_));
  if (absl::Status status = stores_[layer]->Fill(measured, write); !status.ok()) return status;
  const MergeRole role = plan_->layers[layer].merge;
  if (role == MergeRole::kLower) return absl::OkStatus();  // the layer above fills it
  for (int filled = role == MergeRole::kUpper ? layer - 1 : layer; filled <= layer; ++filled) {
    NoteStore(filled);
    // What is still to be decided keeps the bound of what it may become.
    absl::Status status = undecided_ ? absl::OkStatus() : LowerBound(filled);
    if (status.ok()) status = Settle(filled);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SequenceStore::LowerBound(int layer) {
  size_t& bound = layers_[layer].bound;
  const size_t most = stores_[layer]->MaxBlocks();
  if (most > bound) {
    return absl::InternalError(absl::StrCat("layer ", layer, " may come to hold ", most,
                                            " blocks, its plan allows ", bound));
  }
  bound = most;
  return absl::OkStatus();
}

void SequenceStore::NoteStore(int layer) {
  const LayerStore& store = *stores_[layer];
  layers_[layer].append_segment = store.AppendSegment();
  layers_[layer].counted_step = step_;
  may_edit_ahead_ = may_edit_ahead_ && store.MayEditAhead();
  edit_due_.Set(layer, StepAfter(step_ + 1, store.TokensBeforeEdit()));
  append_due_.Set(layer, step_ + 1);
}

absl::Status SequenceStore::Settle(int layer) {
  LayerState& state = layers_[layer];
  state.owned = cache_.layer(layer).owned_blocks();
  if (state.owned > state.bound) {
    return absl::InternalError(absl::StrCat("layer ", layer, " holds ", state.owned,
                                            " blocks, its plan allows ", state.bound));
  }
  const size_t wanted = state.bound - state.owned;
  const size_t held = reservation_.layer_blocks[layer];
  if (wanted < held) {
    ledger_->Lower(reservation_, layer, held - wanted);
  } else if (wanted > held) {
    ledger_->Raise(reservation_, layer, wanted - held);
  }
  return absl::OkStatus();
}

absl::Status SequenceStore::Decide(const Policy& policy, const PolicyContext& context,
                                   BatchPrompt prompt, ModelRunner* model) {
  CatchUp();
  const int generated = GeneratedAtDecision();
  const int tokens = context_.prompt_tokens + generated;
  const int to_come = context_.appended_tokens - generated;
  absl::StatusOr<std::vector<LayerPlan>> decided =
      AskForDecision(policy, context, *plan_, {tokens, to_come + 1}, importance_);
  if (!decided.ok()) return decided.status();
  decided_plan_ = *plan_;
  decided_plan_.layers = *std::move(decided);
  decided_plan_.decide = DecideAt::kLayer;
  undecided_ = false;
  context_.plan = &decided_plan_;
  context_.appended_tokens = to_come;
  context_.prompt_tokens = tokens;
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    absl::Status status = LayOutAgain(layer, decided_plan_.layers[layer], tokens, prompt, model);
    if (!status.ok()) return status;
  }
  return ShareBounds();
}

absl::Status SequenceStore::ShareBounds() {
  size_t promised = 0, wanted = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    promised += layers_[layer].bound;
    layers_[layer].bound = stores_[layer]->MaxBlocks();
    wanted += layers_[layer].bound;
  }
  if (wanted > promised) {
    return absl::InternalError(absl::StrCat("the layers may come to hold ", wanted,
                                            " blocks, their plan allows ", promised));
  }
  // At no moment is more promised than before.
  ledger_->Cancel(reservation_);
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    if (absl::Status status = Settle(layer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SequenceStore::LayOutAgain(int layer, const LayerPlan& plan, int tokens,
                                        BatchPrompt prompt, ModelRunner* model) {
  LayerBlockTable& table = cache_.layer(layer);
  constexpr int kHeld = 0;  // the one segment of a layer that waits
  const int heads = context_.geometry->num_kv_heads;
  LayerMeasured measured = KeptBy(plan.edit, tokens);
  std::vector<int32_t> kept;
  const auto* best = std::get_if<KeepBest>(&plan.edit);
  if (best != nullptr && measured.kept_tokens < tokens) {
    absl::Status status = prompt.batch->SelectStored(prompt.index, layer, *best, &kept);
    if (!status.ok()) return status;
    measured.kept = kept;
  }
  const auto* ring = std::get_if<KeepRing>(&plan.edit);
  facts_[layer].lazy = ring != nullptr && plan_->importance == LayerImportance::kLazyMass;
  // `tokens` may count the first generated one, which is not the prompt's, and always stays.
  facts_[layer].kept_tokens = measured.kept_tokens - GeneratedAtDecision();
  // It was measured of what the layer held then, which was everything.
  if (measured.kept_tokens < tokens) facts_[layer].attention_recall = -1;

  std::vector<CacheEdit> edits;
  const auto copy = [&](int first, int count, int segment, int first_slot) {
    const SegmentView* from = &table.view()[kHeld];
    edits.push_back(CopyEdit{from, 0, SlotsOf(measured, tokens, heads, first, count), count,
                             &table.view()[segment], first_slot});
  };
  if (decided_plan_.quantization) {
    stores_[layer] = MakeLayerStore(context_, layer, false, &cache_, stores_);
    LayerWrite write;
    if (absl::Status status = stores_[layer]->Fill(measured, &write); !status.ok()) return status;
    for (const TokenRange& range : write.ranges) {
      copy(range.first_token, range.count, range.segment, range.first_slot);
    }
    if (absl::Status status = model->EditCache(edits); !status.ok()) return status;
    table.Truncate(kHeld, 0);
  } else {
    if (measured.kept_tokens < tokens) {
      copy(0, measured.kept_tokens, kHeld, 0);
      if (absl::Status status = model->EditCache(edits); !status.ok()) return status;
      table.Truncate(kHeld, measured.kept_tokens);
    }
    stores_[layer] = ring != nullptr ? AdoptRingStore(context_, *ring, &table, kHeld)
                                     : AdoptGrowingStore(context_, &table, kHeld);
  }
  NoteStore(layer);
  return absl::OkStatus();
}

absl::Status SequenceStore::PrepareStep(int position, std::vector<CacheEdit>* edits) {
  const int next = step_ + 1;
  if (!edit_due_.AnyBy(next)) return absl::OkStatus();
  const size_t before = edits->size();
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    if (!edit_due_.IsBy(layer, next)) continue;
    CatchUpLayer(layer, step_);
    absl::Status status = stores_[layer]->PrepareStep(position, edits);
    if (!status.ok()) return status;
    NoteEdits(layer);
  }
  edit_due_.FindEarliest();
  if (edits->size() == before) return absl::OkStatus();
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    if (absl::Status status = Settle(layer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void SequenceStore::NoteEdits(int layer) {
  edit_due_.Set(layer, StepAfter(step_ + 1, std::max(1, stores_[layer]->TokensBeforeEdit())));
}

absl::Status SequenceStore::FinishEdits() {
  for (const auto& store : stores_) store->FinishEdits();
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    const LayerState& state = layers_[layer];
    // Tables that lag behind have not been edited.
    if (state.append_segment < 0 || state.counted_step == step_) NoteEdits(layer);
    if (absl::Status status = Settle(layer); !status.ok()) return status;
  }
  edit_due_.FindEarliest();
  return absl::OkStatus();
}

DecodeInput SequenceStore::InputAt(int position) {
  DecodeInput input;
  input.position = position;
  input.layers = places_;
  input.step = step_;
  input.changed_at = changed_at_;
  if (plan_->distant) {
    input.skip = plan_->distant->skip;
    input.counts = &distant_counts;
  }
  if (undecided_) {  // on this token
    input.lazy_test = &plan_->first_token_test;
    input.lazy_mass = importance_.data();
  }
  return input;
}

absl::StatusOr<DecodeInput> SequenceStore::Append(int position) {
  ++step_;
  if (!append_due_.AnyBy(step_)) return InputAt(position);
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    if (!append_due_.IsBy(layer, step_)) continue;
    PrefetchAfter(layer);
    if (absl::Status status = AppendToLayer(layer, position); !status.ok()) {
      --step_;  // for layers behind this one nothing has been appended
      return status;
    }
    changed_at_ = step_;
  }
  append_due_.FindEarliest();
  return InputAt(position);
}

void SequenceStore::PrefetchAfter(int layer) const {
  constexpr int kTable = 8, kBlocks = 4;  // so many layers further on
  if (layer + kTable < cache_.num_layers()) cache_.layer(layer + kTable).Prefetch();
  if (layer + kBlocks >= cache_.num_layers()) return;
  const int segment = layers_[layer + kBlocks].append_segment;
  if (segment >= 0) cache_.layer(layer + kBlocks).PrefetchBlocks(segment);
}

absl::Status SequenceStore::AppendToLayer(int layer, int position) {
  LayerBlockTable& table = cache_.layer(layer);
  LayerState& state = layers_[layer];
  int due = step_ + 1;
  if (const int segment = state.append_segment; segment >= 0) {
    CatchUpLayer(layer, step_ - 1);
    absl::StatusOr<int> slot = table.AppendSlot(segment);
    if (!slot.ok()) return slot.status();
    targets_[layer] = {segment, *slot};
    places_[layer] = {table.view(), absl::MakeConstSpan(&targets_[layer], 1), 0, step_};
    state.counted_step = step_;
    // After an edit nothing may be where it was.
    due = std::min(due + table.RoomToAppend(segment), edit_due_.of_layer(layer));
  } else {
    const absl::StatusOr<Placement> placed = stores_[layer]->Append(position);
    if (!placed.ok()) return placed.status();
    places_[layer] = {table.view(), placed->targets, placed->score_recent, step_};
    if (placed->is_final) {
      CheckThat(placed->targets.size() == 1, "several targets are said in every step");
      due = edit_due_.of_layer(layer);
    }
  }
  append_due_.Set(layer, due);
  return table.owned_blocks() == state.owned ? absl::OkStatus() : Settle(layer);
}

bool SequenceStore::PrepareAppend() {
  const int next = step_ + 1;
  if (undecided_ || edit_due_.AnyBy(next) || !append_due_.AnyBy(next)) return false;
  bool all = true;
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    if (!append_due_.IsBy(layer, next)) continue;
    PrefetchAfter(layer);
    if (PrepareLayer(layer)) {
      changed_at_ = next;
    } else {
      all = false;
    }
  }
  append_due_.FindEarliest();
  return all;
}

bool SequenceStore::PrepareLayer(int layer) {
  LayerState& state = layers_[layer];
  const int segment = state.append_segment;
  if (segment < 0) return false;
  CatchUpLayer(layer, step_);
  LayerBlockTable& table = cache_.layer(layer);
  if (!table.TakeAhead(segment)) return false;
  if (table.owned_blocks() != state.owned && !Settle(layer).ok()) {
    table.ReleaseAhead(segment);
    state.owned = table.owned_blocks();  // Append is to find what is wrong
    return false;
  }
  targets_[layer] = {segment, table.next_slot(segment)};
  places_[layer] = {table.view(), absl::MakeConstSpan(&targets_[layer], 1), 0, step_ + 1};
  append_due_.Set(layer,
                  std::min(step_ + 1 + table.RoomToAppend(segment), edit_due_.of_layer(layer)));
  return true;
}

void SequenceStore::Unprepare() {
  for (int layer = 0; layer < cache_.num_layers(); ++layer) {
    const LayerState& state = layers_[layer];
    if (places_[layer].as_of <= step_ || state.append_segment < 0) continue;
    if (state.counted_step > step_) continue;  // appended, by an Append that failed
    cache_.layer(layer).ReleaseAhead(state.append_segment);
    CheckThat(Settle(layer).ok(), "a layer that gives blocks back keeps to its bound");
    append_due_.Set(layer, step_ + 1);
  }
}

void SequenceStore::CatchUpLayer(int layer, int step) {
  DecodeInput::Layer& place = places_[layer];
  LayerState& state = layers_[layer];
  if (state.append_segment < 0 || step <= state.counted_step) return;
  cache_.layer(layer).AppendSlots(state.append_segment, step - state.counted_step);
  state.counted_step = step;
  targets_[layer].slot += step - place.as_of;
  place.as_of = step;
}

void SequenceStore::CatchUp() {
  for (int layer = 0; layer < cache_.num_layers(); ++layer) CatchUpLayer(layer, step_);
}

}  // namespace ziggurat
