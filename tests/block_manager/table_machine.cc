// The operations. Checks are in table_machine_checks.cc.
#include "tests/block_manager/table_machine.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstring>

#include "tests/block_manager/table_snapshot.h"

namespace ziggurat {
namespace {

constexpr size_t kMostSegments = 4;  // of a layer

const PlaneView& ViewOf(const SegmentView& view, PlaneRole role) {
  switch (role) {
    case PlaneRole::kCodes:
      return view.values;
    case PlaneRole::kScales:
      return view.value_scales;
    case PlaneRole::kNorms:
      return view.key_norms;
    case PlaneRole::kScores:
      return view.scores;
  }
  return view.values;
}

}  // namespace

TableMachine::TableMachine(int num_sequences, size_t pool_blocks, CacheGeometry geometry)
    : geometry_(geometry), pool_(*BlockPool::Create(pool_blocks, geometry.block_bytes)) {
  RC_ASSERT(geometry_.Validate().ok());
  for (const CacheFormat& format : AllFormats(geometry_.head_dim)) {
    if (!format.values_only && format.group != 1) {
      formats_.push_back(format);
    }
  }
  for (int i = 0; i < num_sequences; ++i) {
    real_.emplace_back(pool_.get(), &geometry_);
    model_.emplace_back(geometry_.num_layers);
  }
}

void TableMachine::Run(const Operation& op) {
  const size_t sequence = op.sequence % real_.size();
  const int layer = static_cast<int>(op.layer % geometry_.num_layers);
  LayerBlockTable& table = real_[sequence].layer(layer);
  ModelLayer& model = model_[sequence][layer];
  switch (op.kind) {
    case Kind::kAddSegment:
      return AddSegment(op, table, model);
    case Kind::kShareSegment:
      return ShareSegment(op, sequence, layer);
    case Kind::kRefreshShared:  // in any order: a segment may follow one that has yet to follow
      for (int i = 0; i < geometry_.num_layers; ++i) {
        RefreshShared(sequence, (layer + i) % geometry_.num_layers);
      }
      return;
    case Kind::kAddValuesSegment:
      return AddValuesSegment(op, sequence, layer);
    case Kind::kRefreshKeys:
      return RefreshKeys(sequence, layer);
    case Kind::kExtend:
      return Extend(op, table, model);
    case Kind::kAppend:
      return Append(op, table, model);
    case Kind::kTakeAhead:
      return TakeAhead(op, table, model);
    case Kind::kTruncate:
      return Truncate(op, sequence, layer);
    case Kind::kRemoveFirst:
      return RemoveFirst(op, sequence, layer);
    case Kind::kMakeRing:
      return MakeRing(op, table, model);
    case Kind::kClearLayer:
      table.Clear();
      model.clear();
      return;
    case Kind::kClearSequence:
      for (int l = 0; l < geometry_.num_layers; ++l) real_[sequence].layer(l).Clear();
      model_[sequence].assign(geometry_.num_layers, {});
      return;
    case Kind::kReplaceSequence:  // finished; another takes its place
      real_[sequence] = SequenceCache(pool_.get(), &geometry_);
      model_[sequence].assign(geometry_.num_layers, {});
      return;
    case Kind::kMoveSequence:
      std::swap(real_[sequence], real_[op.segment % real_.size()]);
      std::swap(model_[sequence], model_[op.segment % real_.size()]);
      return;
  }
}

void TableMachine::Finish() {
  real_.clear();
  model_.clear();
  RC_ASSERT(live_blocks_ == 0u);
  RC_ASSERT(pool_->used_blocks() == 0u);
  RC_ASSERT(pool_->CheckIntegrity({}).ok());
  RC_ASSERT(pool_->high_water_blocks() == counts_.high_water);
}

// ---- New segments ------------------------------------------------------------------------------

/// Half the time plain numbers, else any format; usually all heads, else a group of one or two.
SegmentOptions TableMachine::AnyShape(const Operation& op) const {
  SegmentOptions options;
  options.format = op.tokens % 2 == 0 ? formats_[op.tokens / 2 % formats_.size()]
                                      : KeyValueFormat(op.tokens / 2 % 2 == 0 ? ElementType::kBf16
                                                                              : ElementType::kF32);
  options.num_kv_heads = geometry_.num_kv_heads;
  if (op.shape % 4 == 0) {
    options.num_kv_heads = 1 + static_cast<int>(op.shape / 4 % 2);
    options.first_kv_head =
        static_cast<int>(op.shape / 8 % (geometry_.num_kv_heads - options.num_kv_heads + 1));
  }
  return options;
}

int TableMachine::Push(ModelLayer& model, ModelSegment segment) {
  segment.shape =
      ExpectedPlanes(segment.options.format, segment.options.num_kv_heads, geometry_.head_dim);
  segment.planes.resize(segment.shape.size());
  segment.identity = ++next_stamp_;
  model.push_back(std::move(segment));
  return static_cast<int>(model.size()) - 1;
}

void TableMachine::AddSegment(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
  if (model.size() >= kMostSegments) {
    return;
  }
  ModelSegment segment;
  segment.options = AnyShape(op);
  if (op.shape / 64 % 3 == 0 && !HasGroups(segment.options.format.encoding)) {
    segment.options.ring =
        RingShape{static_cast<int>(op.shape / 256 % 9), static_cast<int>(1 + op.tokens / 2 % 60)};
  }
  const int index = table.AddSegment(segment.options);
  RC_ASSERT(index == Push(model, std::move(segment)));
}

ModelSegment* TableMachine::Partner(const Operation& op, size_t sequence, int layer, Place* place) {
  place->layer =
      static_cast<int>((layer + 1 + op.shape % (geometry_.num_layers - 1)) % geometry_.num_layers);
  ModelLayer& other = model_[sequence][place->layer];
  if (other.empty() || model_[sequence][layer].size() >= kMostSegments) {
    return nullptr;
  }
  place->segment = static_cast<int>(op.segment % other.size());
  return &other[place->segment];
}

void TableMachine::ShareSegment(const Operation& op, size_t sequence, int layer) {
  Place place;
  ModelSegment* theirs = Partner(op, sequence, layer, &place);
  if (theirs == nullptr || theirs->options.ring || theirs->values_only()) {
    return;
  }
  SequenceCache& real = real_[sequence];
  const int index = real.layer(layer).ShareSegment(real.layer(place.layer), place.segment);
  theirs->is_shared = true;
  ModelSegment ours;
  ours.options = theirs->options;
  ours.source = theirs->identity;
  ours.refers = true;
  RC_ASSERT(index == Push(model_[sequence][layer], std::move(ours)));
  // Follows in the model what the call has done.
  ModelSegment& pushed = model_[sequence][layer].back();
  pushed.planes = theirs->planes;
  pushed.slot_tokens = theirs->slot_tokens;
  ++counts_.shared;
}

void TableMachine::AddValuesSegment(const Operation& op, size_t sequence, int layer) {
  Place place;
  ModelSegment* theirs = Partner(op, sequence, layer, &place);
  if (theirs == nullptr || theirs->values_only() || theirs->options.format.merged) {
    return;
  }
  ModelSegment ours;
  ours.options.format = {theirs->options.format.encoding, theirs->options.format.group, true};
  const bool one_head = op.tokens % 3 == 0;
  ours.options.num_kv_heads = one_head ? 1 : theirs->options.num_kv_heads;
  ours.options.first_kv_head =
      theirs->options.first_kv_head + (one_head ? theirs->options.num_kv_heads - 1 : 0);
  ours.options.ring = theirs->options.ring;
  SequenceCache& real = real_[sequence];
  const int index =
      real.layer(layer).AddValuesSegment(ours.options, real.layer(place.layer), place.segment);
  theirs->is_lent = true;
  ours.source = theirs->identity;
  RC_ASSERT(index == Push(model_[sequence][layer], std::move(ours)));
  RefreshKeys(sequence, layer);
  ++counts_.lent;
}

// ---- Following another layer -------------------------------------------------------------------

bool TableMachine::Find(size_t sequence, uint64_t identity, Place* place) const {
  for (int layer = 0; layer < geometry_.num_layers; ++layer) {
    const ModelLayer& model = model_[sequence][layer];
    for (size_t i = 0; i < model.size(); ++i) {
      if (model[i].identity == identity) {
        *place = {layer, static_cast<int>(i)};
        return true;
      }
    }
  }
  return false;
}

void TableMachine::RefreshShared(size_t sequence, int layer) {
  ModelLayer& model = model_[sequence][layer];
  for (size_t i = 0; i < model.size(); ++i) {
    Place theirs;
    if (model[i].refers && Find(sequence, model[i].source, &theirs)) {
      Follow(sequence, {layer, static_cast<int>(i)}, theirs);
    }
  }
}

void TableMachine::Follow(size_t sequence, const Place& ours, const Place& theirs) {
  ModelSegment& segment = model_[sequence][ours.layer][ours.segment];
  const ModelSegment& source = model_[sequence][theirs.layer][theirs.segment];
  counts_.followed += segment.slots() != source.slots();
  counts_.shrunk += segment.slots() > source.slots();
  SequenceCache& real = real_[sequence];
  real.layer(ours.layer).RefreshShared(ours.segment, real.layer(theirs.layer), theirs.segment);
  segment.planes = source.planes;
  segment.slot_tokens = source.slot_tokens;
}

void TableMachine::RefreshKeys(size_t sequence, int layer) {
  ModelLayer& model = model_[sequence][layer];
  for (size_t i = 0; i < model.size(); ++i) {
    Place place;
    if (!model[i].values_only() || !Find(sequence, model[i].source, &place)) {
      continue;
    }
    SequenceCache& real = real_[sequence];
    real.layer(layer).RefreshKeys(static_cast<int>(i), real.layer(place.layer), place.segment);
    const ModelSegment& theirs = model_[sequence][place.layer][place.segment];
    model[i].keys.clear();
    for (size_t p = 0; p < theirs.shape.size(); ++p) {
      const PlaneRole role = theirs.shape[p].role;
      if (role == PlaneRole::kCodes || role == PlaneRole::kScales) {
        model[i].keys.push_back(theirs.planes[p]);
      }
    }
    model[i].key_slots = theirs.slots();
  }
}

/// Of a layer that has one. What others share is where most can go wrong: half of the time that.
int TableMachine::AnySegment(const Operation& op, const ModelLayer& model) {
  if (op.shape % 2 == 0) {
    for (size_t i = 0; i < model.size(); ++i) {
      if (model[i].is_shared && !model[i].refers) {
        return static_cast<int>(i);
      }
    }
  }
  return static_cast<int>(op.segment % model.size());
}

// ---- Growth ------------------------------------------------------------------------------------

/// Adds tokens and the blocks that they need, stamping each one that is new.
void TableMachine::GrowModel(const LayerBlockTable& table, int index, ModelSegment* segment,
                             int tokens) {
  for (int i = 0; i < tokens; ++i) {
    segment->slot_tokens.push_back(segment->tokens_seen++);
  }
  for (size_t p = 0; p < segment->shape.size(); ++p) {
    const ExpectedPlane& plane = segment->shape[p];
    const BlockId* ids = ViewOf(table.view()[index], plane.role).blocks;
    ModelBlocks& blocks = segment->planes[p];
    while (blocks.size() < plane.BlocksFor(geometry_.block_bytes, segment->slots())) {
      const uint64_t stamp = ++next_stamp_;
      std::memcpy(pool_->view().Block(ids[blocks.size()]), &stamp, sizeof(stamp));
      blocks.push_back(std::make_shared<ModelBlock>(&live_blocks_, stamp));
    }
  }
  counts_.high_water = std::max(counts_.high_water, live_blocks_);
}

void TableMachine::Extend(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
  if (model.empty()) {
    return;
  }
  const int index = AnySegment(op, model);
  ModelSegment& segment = model[index];
  if (segment.refers) {
    return;
  }
  const int tokens = std::min(static_cast<int>(op.tokens % 160), segment.Room());
  const size_t missing = segment.Missing(geometry_.block_bytes, segment.slots() + tokens);
  RC_ASSERT(table.BlocksToAppend(index, tokens) == missing);
  if (live_blocks_ + missing > pool_->num_blocks()) {
    const TableSnapshot before(table);
    RC_ASSERT(table.Extend(index, tokens).code() == absl::StatusCode::kResourceExhausted);
    RC_ASSERT(TableSnapshot(table) == before);
    ++counts_.refused;
    return;
  }
  RC_ASSERT(table.Extend(index, tokens).ok());
  GrowModel(table, index, &segment, tokens);
}

void TableMachine::Append(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
  if (model.empty()) {
    return;
  }
  const int index = AnySegment(op, model);
  for (uint32_t i = 0; i <= op.tokens % 24; ++i) {
    if (!AppendOne(table, index, &model[index])) {
      return;
    }
  }
}

// The slot that AppendSlot should answer with is found by looking for the oldest token.
bool TableMachine::AppendOne(LayerBlockTable& table, int index, ModelSegment* segment) {
  std::vector<int64_t>& slots = segment->slot_tokens;
  const auto& ring = segment->options.ring;
  const bool overwrites = ring && segment->slots() == ring->slots();
  if (segment->refers || (!overwrites && segment->Room() < 1)) {
    return false;
  }
  const size_t missing = overwrites ? 0 : segment->Missing(geometry_.block_bytes, slots.size() + 1);
  RC_ASSERT(table.BlocksToAppend(index, 1) == missing);
  if (live_blocks_ + missing > pool_->num_blocks()) {
    const TableSnapshot before(table);
    RC_ASSERT(table.AppendSlot(index).status().code() == absl::StatusCode::kResourceExhausted);
    RC_ASSERT(TableSnapshot(table) == before);
    ++counts_.refused;
    return false;
  }
  const absl::StatusOr<int> slot = table.AppendSlot(index);
  RC_ASSERT(slot.ok());
  if (overwrites) {
    const auto oldest = std::min_element(slots.begin() + ring->sinks, slots.end());
    RC_ASSERT(*slot == oldest - slots.begin());
    *oldest = segment->tokens_seen++;
    ++counts_.overwritten;
  } else {
    RC_ASSERT(*slot == segment->slots());
    GrowModel(table, index, segment, 1);
  }
  return true;
}

void TableMachine::TakeAhead(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
  if (model.empty()) return;
  const int index = AnySegment(op, model);
  ModelSegment& segment = model[index];
  const auto& ring = segment.options.ring;
  const bool overwrites = ring && segment.slots() == ring->slots();
  const TableSnapshot before(table);
  const int room = table.RoomToAppend(index);
  const bool is_alone = !segment.refers && !segment.is_shared && !segment.is_lent;
  const bool may = is_alone && !overwrites && !segment.values_only();
  const size_t missing =
      room > 0 || !may ? 0 : segment.Missing(geometry_.block_bytes, segment.slots() + 1);
  const bool fits = live_blocks_ + missing <= pool_->num_blocks();
  RC_ASSERT(table.TakeAhead(index) == (room > 0 || (may && fits)));
  const size_t taken = fits ? missing : 0;
  counts_.ahead += taken;
  counts_.high_water = std::max(counts_.high_water, live_blocks_ + taken);
  RC_ASSERT(pool_->used_blocks() == live_blocks_ + taken);
  RC_ASSERT(table.view()[index].num_slots == segment.slots());
  RC_ASSERT(table.CheckIntegrity().ok());
  if (op.tokens % 3 == 0 || overwrites || table.RoomToAppend(index) == 0) {
    if (may) table.ReleaseAhead(index);
    RC_ASSERT(TableSnapshot(table) == before);
    return;
  }
  const int count = 1 + static_cast<int>(op.tokens / 3 % table.RoomToAppend(index));
  table.AppendSlots(index, count);
  GrowModel(table, index, &segment, count);
}

// ---- Shrinking and rings -----------------------------------------------------------------------

bool TableMachine::MayShrink(size_t sequence, const ModelSegment& segment) const {
  bool may = !segment.is_lent;
  for (const ModelLayer& layer : model_[sequence]) {
    for (const ModelSegment& other : layer) {
      if (other.refers && other.source == segment.identity) {
        may = may && MayShrink(sequence, other);
      }
    }
  }
  return may;
}

void TableMachine::Truncate(const Operation& op, size_t sequence, int layer) {
  ModelLayer& model = model_[sequence][layer];
  if (model.empty()) {
    return;
  }
  const int index = AnySegment(op, model);
  ModelSegment& segment = model[index];
  if (segment.refers || !segment.is_in_order() || !MayShrink(sequence, segment)) {
    return;
  }
  const int slots = static_cast<int>(op.tokens % (segment.slots() + 1));
  counts_.truncated += slots < segment.slots();
  real_[sequence].layer(layer).Truncate(index, slots);
  segment.slot_tokens.resize(slots);
  for (size_t p = 0; p < segment.shape.size(); ++p) {
    segment.planes[p].resize(segment.shape[p].BlocksFor(geometry_.block_bytes, slots));
  }
  FollowAll(sequence, {layer, index});
}

void TableMachine::RemoveFirst(const Operation& op, size_t sequence, int layer) {
  ModelLayer& model = model_[sequence][layer];
  if (model.empty()) {
    return;
  }
  const int index = AnySegment(op, model);
  ModelSegment& segment = model[index];
  LayerBlockTable& table = real_[sequence].layer(layer);
  // Mostly whole blocks.
  const uint32_t unit = op.tokens % 8 == 0 ? 1 : 16;
  const int slots = static_cast<int>(op.tokens / 8 % (segment.slots() / unit + 2) * unit);
  bool in_whole_blocks = true;
  for (const ExpectedPlane& plane : segment.shape) {
    const size_t blocks = plane.BlocksFor(geometry_.block_bytes, slots);
    in_whole_blocks = in_whole_blocks && plane.BlocksFor(geometry_.block_bytes, slots + 1) > blocks;
  }
  const bool is_alone =
      !segment.refers && !segment.is_shared && !segment.is_lent && !segment.values_only();
  const bool may = is_alone && in_whole_blocks && !segment.options.ring && slots <= segment.slots();
  RC_ASSERT(table.CanRemoveFirst(index, slots) == may);
  if (!may) return;
  counts_.cut_in_front += slots > 0;
  table.RemoveFirst(index, slots);
  segment.slot_tokens.erase(segment.slot_tokens.begin(), segment.slot_tokens.begin() + slots);
  for (size_t p = 0; p < segment.shape.size(); ++p) {
    const size_t blocks = segment.shape[p].BlocksFor(geometry_.block_bytes, slots);
    segment.planes[p].erase(segment.planes[p].begin(),
                            segment.planes[p].begin() + static_cast<ptrdiff_t>(blocks));
  }
}

/// All that refer to the segment, and those that refer to them.
void TableMachine::FollowAll(size_t sequence, const Place& place) {
  const uint64_t identity = model_[sequence][place.layer][place.segment].identity;
  for (int layer = 0; layer < geometry_.num_layers; ++layer) {
    const ModelLayer& model = model_[sequence][layer];
    for (size_t i = 0; i < model.size(); ++i) {
      if (model[i].refers && model[i].source == identity) {
        const Place follower = {layer, static_cast<int>(i)};
        Follow(sequence, follower, place);
        FollowAll(sequence, follower);
      }
    }
  }
}

void TableMachine::MakeRing(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
  if (model.empty()) {
    return;
  }
  const int index = AnySegment(op, model);
  ModelSegment& segment = model[index];
  if (segment.options.ring || segment.refers || segment.is_shared ||
      HasGroups(segment.options.format.encoding)) {
    return;
  }
  RingShape ring{static_cast<int>(op.shape % 9), static_cast<int>(1 + op.tokens % 40)};
  ring.recent = std::max(ring.recent, segment.slots() - ring.sinks);
  table.MakeRing(index, ring);
  segment.options.ring = ring;
  ++counts_.ringed;
}

// ---- What was done -----------------------------------------------------------------------------

void MachineCounts::Add(const MachineCounts& other) {
  refused += other.refused;
  ahead += other.ahead;
  overwritten += other.overwritten;
  shared += other.shared;
  followed += other.followed;
  shrunk += other.shrunk;
  lent += other.lent;
  truncated += other.truncated;
  cut_in_front += other.cut_in_front;
  ringed += other.ringed;
  high_water = std::max(high_water, other.high_water);
}

std::ostream& operator<<(std::ostream& os, const MachineCounts& counts) {
  return os << "high water " << counts.high_water << ", " << counts.refused << " refused, "
            << counts.ahead << " blocks taken ahead, " << counts.overwritten
            << " slots overwritten, " << counts.shared << " shared, " << counts.followed
            << " followed (" << counts.shrunk << " shrunk), " << counts.lent << " lent, "
            << counts.truncated << " truncated, " << counts.cut_in_front << " cut in front, "
            << counts.ringed << " made rings";
}

}  // namespace ziggurat
