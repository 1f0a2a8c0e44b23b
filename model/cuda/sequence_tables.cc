#include "model/cuda/sequence_tables.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ziggurat::cuda {
namespace {

template <typename Record>
constexpr uint32_t WordsOf(int count) {
  return static_cast<uint32_t>(sizeof(Record) / sizeof(uint32_t)) * static_cast<uint32_t>(count);
}

constexpr uint32_t kSlotsWord = offsetof(DeviceSegment, num_slots) / sizeof(uint32_t);
constexpr uint32_t kTargetSlotWord = offsetof(DeviceTarget, slot) / sizeof(uint32_t);

bool Grows(const DecodeInput::Layer& given) {
  return given.targets.size() == 1 && given.targets[0].slot >= 0;
}

}  // namespace

void StepKinds::Add(const StepKinds& other) {
  runs = std::max(runs, other.runs);
  kernels |= other.kernels;
  distant = distant || other.distant;
  scored = scored || other.scored;
}

uint32_t SequenceTables::WordsFor(int num_layers, int rows, size_t num_blocks) {
  // Extents are powers of two, and lists have room to grow. A layer has up to four segments for the
  // most part. A block stands in several lists where layers share it, as PoD's keys are.
  constexpr size_t kOfLayer =
      256 + 8 * 4 + sizeof(DeviceItem) / sizeof(uint32_t) + sizeof(DeviceGrowth) / sizeof(uint32_t);
  constexpr size_t kOfBlock = 16;
  const size_t words = 1024 + kOfLayer * num_layers * rows + kOfBlock * num_blocks;
  return static_cast<uint32_t>(std::min<size_t>(words, StepTable::kFull - 1));
}

SequenceTables::SequenceTables(const AttentionShape& heads, ElementType compute, int num_layers,
                               int rows, uint32_t capacity_words, const DistantRows& distant)
    : heads_(heads),
      compute_(compute),
      num_layers_(num_layers),
      capacity_(rows),
      distant_(distant),
      table_(capacity_words) {
  items_.count = table_.Allocate(2);
  items_.items = table_.Allocate(WordsOf<DeviceItem>(num_layers * rows));
  items_.growths = table_.Allocate(WordsOf<DeviceGrowth>(num_layers * rows));
  items_.layers = num_layers;
  items_.capacity = rows;
}

uint32_t SequenceTables::ItemWord(int row, int layer) const {
  return items_.items + WordsOf<DeviceItem>(layer * capacity_ + row);
}

uint32_t SequenceTables::GrowthWord(int row, int layer) const {
  return items_.growths + WordsOf<DeviceGrowth>(layer * capacity_ + row);
}

DeviceItems SequenceTables::items(int layer, int capacity) const {
  return {ItemWord(0, layer), items_.count, capacity};
}

uint32_t SequenceTables::layer_stride() const { return ItemWord(0, 1) - ItemWord(0, 0); }

uint32_t SequenceTables::segment_word(size_t input, int layer, int segment) const {
  return rows_[rows_of_inputs_[input]].layers[layer].table.records +
         WordsOf<DeviceSegment>(segment);
}

absl::Status SequenceTables::Update(absl::Span<const DecodeInput> inputs) {
  if (static_cast<int>(inputs.size()) > capacity_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a step of ", inputs.size(), " sequences on a device made ready for ", capacity_));
  }
  if (!HasTheRowsOf(inputs)) FindRows(inputs);
  kinds_ = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int row = rows_of_inputs_[i];
    if (absl::Status status = UpdateRow(row, inputs[i]); !status.ok()) {
      // What the table says of the rows is not to be relied on.
      while (!rows_.empty()) RemoveLast();
      rows_of_inputs_.clear();
      return status;
    }
    kinds_.Add(rows_[row].kinds);
  }
  return absl::OkStatus();
}

void SequenceTables::Prepare(absl::Span<const DecodeInput> inputs) {
  for (const DecodeInput& input : inputs) {
    const auto it = row_of_.find(input.sequence);
    if (it == row_of_.end() || UpdateRow(it->second, input).ok()) continue;
    ForgetTold(&rows_[it->second]);  // the update says so, if there is still no room by then
    return;
  }
}

bool SequenceTables::HasTheRowsOf(absl::Span<const DecodeInput> inputs) const {
  if (inputs.size() != rows_of_inputs_.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (rows_[rows_of_inputs_[i]].sequence != inputs[i].sequence) return false;
  }
  return true;
}

void SequenceTables::FindRows(absl::Span<const DecodeInput> inputs) {
  DropGone(inputs);
  rows_of_inputs_.clear();
  for (const DecodeInput& input : inputs) {
    const auto [place, is_new] = row_of_.try_emplace(input.sequence, rows_.size());
    if (is_new) {
      Row& row = rows_.emplace_back();
      row.sequence = input.sequence;
      ForgetTold(&row);
      row.layers.resize(num_layers_);
      for (Layer& layer : row.layers) layer.table.records = StepTable::kFull;
    }
    rows_of_inputs_.push_back(place->second);
  }
  table_.Set(items_.count, static_cast<uint32_t>(inputs.size()));
}

/// Where a row changes hands every layer is told anew: nothing is known of what it was told.
void SequenceTables::DropGone(absl::Span<const DecodeInput> inputs) {
  for (Row& row : rows_) row.is_live = false;
  for (const DecodeInput& input : inputs) {
    if (const auto it = row_of_.find(input.sequence); it != row_of_.end()) {
      rows_[it->second].is_live = true;
    }
  }
  for (int row = static_cast<int>(rows_.size()) - 1; row >= 0; --row) {
    if (rows_[row].is_live) continue;
    if (row + 1 < static_cast<int>(rows_.size())) {
      std::swap(rows_[row], rows_.back());
      row_of_[rows_[row].sequence] = row;
      ForgetTold(&rows_[row]);
    }
    RemoveLast();
  }
}

/// Every layer will be told anew.
void SequenceTables::ForgetTold(Row* row) {
  row->changed_at = DecodeInput::kUnknown;
  row->as_of.assign(num_layers_, -1);
}

void SequenceTables::RemoveLast() {
  row_of_.erase(rows_.back().sequence);
  for (Layer& layer : rows_.back().layers) Release(&layer);
  rows_.pop_back();
}

void SequenceTables::Release(Layer* layer) {
  if (layer->table.records != StepTable::kFull) {
    ResendCounts(*layer);
    table_.RemoveLayer(&layer->table);
  }
  ReleaseTargets(layer);
  *layer = {};
  layer->table.records = StepTable::kFull;
}

void SequenceTables::ReleaseTargets(Layer* layer) {
  if (layer->num_targets == 0) return;
  ResendTargets(*layer);
  table_.Free(layer->targets, WordsOf<DeviceTarget>(layer->num_targets));
  layer->num_targets = 0;
}

/// The device may have counted on since it was told; whoever has the words next must find there
/// what the mirror says.
void SequenceTables::ResendCounts(const Layer& layer) {
  for (int i = 0; i < static_cast<int>(layer.table.segments.size()); ++i) {
    table_.Resend(layer.table.records + WordsOf<DeviceSegment>(i) + kSlotsWord);
  }
}

void SequenceTables::ResendTargets(const Layer& layer) {
  for (int t = 0; t < layer.num_targets; ++t) {
    table_.Resend(layer.targets + WordsOf<DeviceTarget>(t) + kTargetSlotWord);
  }
}

absl::Status SequenceTables::UpdateRow(int row_index, const DecodeInput& input) {
  Row& row = rows_[row_index];
  if (row.changed_at == input.changed_at && input.changed_at != DecodeInput::kUnknown) {
    return absl::OkStatus();
  }
  for (int layer = 0; layer < num_layers_; ++layer) {
    if (row.as_of[layer] == input.layers[layer].as_of) continue;
    if (!UpdateLayer(row_index, layer, input)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the device's table of ", table_.capacity_words(), " words is full"));
    }
  }
  row.changed_at = input.changed_at;
  row.kinds = {};
  for (const Layer& layer : row.layers) row.kinds.Add(layer.kinds);
  return absl::OkStatus();
}

bool SequenceTables::MakeRoom(const DecodeInput::Layer& given, Layer* layer) {
  const int segments = static_cast<int>(given.view.size());
  const int targets = static_cast<int>(given.targets.size());
  if (layer->table.records == StepTable::kFull ||
      static_cast<int>(layer->table.segments.size()) < segments) {
    Release(layer);
    if (!table_.AddLayer(segments, &layer->table)) return false;
  }
  if (layer->num_targets >= targets) return true;
  ReleaseTargets(layer);
  layer->targets = table_.Allocate(WordsOf<DeviceTarget>(targets));
  if (layer->targets == StepTable::kFull) return false;
  layer->num_targets = targets;
  return true;
}

bool SequenceTables::UpdateLayer(int row, int layer_index, const DecodeInput& input) {
  Layer& layer = rows_[row].layers[layer_index];
  const DecodeInput::Layer& given = input.layers[layer_index];
  const DecodeItem item{given.view, given.targets};
  if (rows_[row].as_of[layer_index] >= 0 && HasGrownAsTold(input, layer_index, layer) &&
      table_.AddBlocks(item, &layer.table)) {
    rows_[row].as_of[layer_index] = given.as_of;
    return true;
  }
  if (!MakeRoom(given, &layer)) return false;
  if (!table_.UpdateLayer(item, &layer.table)) return false;
  ResendCounts(layer);
  ResendTargets(layer);
  for (size_t t = 0; t < given.targets.size(); ++t) {
    const uint32_t word = layer.targets + WordsOf<DeviceTarget>(static_cast<int>(t));
    table_.Put(word, DeviceTarget{given.targets[t].segment, given.targets[t].slot});
  }
  PutItem(row, layer_index, input);
  PutGrowth(row, layer_index, input);
  rows_[row].as_of[layer_index] = given.as_of;
  layer.kinds = KindsOf(layer, given.view.size());
  Remember(input, layer_index, &layer);
  return true;
}

void SequenceTables::Remember(const DecodeInput& input, int layer_index, Layer* layer) {
  const DecodeInput::Layer& given = input.layers[layer_index];
  layer->told.segments.clear();
  if (!Grows(given)) return;
  for (const SegmentView& view : given.view) layer->told.segments.push_back(ShapeOf(view));
  layer->told.target = given.targets[0];
  layer->told.as_of = given.as_of;
  layer->told.score_recent = given.score_recent;
  layer->told.skip = static_cast<float>(input.skip);
}

/// Whether the device's own count (BeginStep) comes out as the layer is now.
bool SequenceTables::HasGrownAsTold(const DecodeInput& input, int layer_index, const Layer& layer) {
  const DecodeInput::Layer& given = input.layers[layer_index];
  const Told& told = layer.told;
  if (told.segments.empty() || !Grows(given) || given.view.size() != told.segments.size()) {
    return false;
  }
  const TokenTarget& target = given.targets[0];
  if (target.segment != told.target.segment ||
      target.slot != told.target.slot + given.as_of - told.as_of ||
      given.score_recent != told.score_recent || static_cast<float>(input.skip) != told.skip) {
    return false;
  }
  for (size_t i = 0; i < told.segments.size(); ++i) {
    DeviceSegment shape = ShapeOf(given.view[i]);
    if (static_cast<int>(i) == target.segment) {
      const int base = told.segments[i].num_slots;
      const int counted = target.slot >= base ? target.slot + 1 : base;
      if (std::max(shape.num_slots, target.slot + 1) != counted) return false;
      shape.num_slots = base;
    }
    if (std::memcmp(&shape, &told.segments[i], sizeof(shape)) != 0) return false;
  }
  return true;
}

void SequenceTables::PutItem(int row, int layer_index, const DecodeInput& input) {
  const Layer& layer = rows_[row].layers[layer_index];
  const DecodeInput::Layer& given = input.layers[layer_index];
  DeviceItem item;  // its position is the device's to fill in
  item.segments = layer.table.records;
  item.num_segments = static_cast<int32_t>(given.view.size());
  item.targets = layer.targets;
  item.num_targets = static_cast<int32_t>(given.targets.size());
  item.score_recent = given.score_recent;
  item.skip = static_cast<float>(input.skip);
  item.low_q = distant_.low_q + static_cast<size_t>(row) * heads_.num_q_heads * heads_.head_dim;
  item.distant_lse = distant_.distant_lse + static_cast<size_t>(row) * heads_.num_q_heads;
  item.counts = distant_.counts + 2 * static_cast<size_t>(row);
  table_.Put(ItemWord(row, layer_index), item);
}

void SequenceTables::PutGrowth(int row, int layer_index, const DecodeInput& input) {
  const Layer& layer = rows_[row].layers[layer_index];
  const DecodeInput::Layer& given = input.layers[layer_index];
  DeviceGrowth growth;
  if (Grows(given)) {
    const TokenTarget& target = given.targets[0];
    growth.num_slots = layer.table.records + WordsOf<DeviceSegment>(target.segment) + kSlotsWord;
    growth.slot = layer.targets + kTargetSlotWord;
    growth.base_slots = given.view[target.segment].num_slots;
    growth.base_slot = target.slot;
    growth.as_of = given.as_of;
  }
  table_.Put(GrowthWord(row, layer_index), growth);
}

StepKinds SequenceTables::KindsOf(const Layer& layer, size_t num_segments) const {
  StepKinds kinds;
  const auto* records =
      reinterpret_cast<const DeviceSegment*>(table_.mirror().data() + layer.table.records);
  for (size_t i = 0; i < num_segments; ++i) {
    const DeviceSegment& segment = records[i];
    // Of empty ones too: the split of a step gives each of them rows of its own.
    kinds.runs += RunsOf(heads_, segment.num_kv_heads);
    kinds.distant = kinds.distant || segment.use != static_cast<int32_t>(SegmentUse::kOwn);
    kinds.scored = kinds.scored || segment.scores.exists();
    kinds.kernels |= KernelOf(segment, heads_.head_dim, compute_ == ElementType::kBf16).bit();
  }
  return kinds;
}

}  // namespace ziggurat::cuda
