#include "block_manager/occupancy.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "block_manager/check.h"

namespace ziggurat {
namespace {

double ChargedBlocks(const BlockPool& pool, const std::vector<BlockId>& blocks) {
  double charged = 0;
  for (const BlockId id : blocks) {
    charged += 1.0 / pool.reference_count(id);
  }
  return charged;
}

}  // namespace

LayerOccupancy& LayerOccupancy::operator+=(const LayerOccupancy& other) {
  blocks += other.blocks;
  owned_blocks += other.owned_blocks;
  owned_live_bytes += other.owned_live_bytes;
  borrowed_blocks += other.borrowed_blocks;
  charged_blocks += other.charged_blocks;
  live_bytes += other.live_bytes;
  tail_waste_bytes += other.tail_waste_bytes;
  tokens += other.tokens;
  return *this;
}

// `tokens` is left at 0: segments side by side (head groups) do not add up.
LayerOccupancy LayerBlockTable::SegmentOccupancy(int segment) const {
  const Segment& s = segments_[segment];
  const auto num_slots = static_cast<size_t>(views_[segment].num_slots);
  const PlaneList list = PlanesOfSegment(s);
  LayerOccupancy result;
  for (int p = 0; p < list.count; ++p) {
    result.blocks += s.planes[p].size();
    result.live_bytes += list.planes[p].LiveBytes(num_slots);
    if (s.may_be_referred) {
      result.charged_blocks += ChargedBlocks(*pool_, s.planes[p]);
    }
  }
  if (!s.may_be_referred) {
    result.charged_blocks = static_cast<double>(result.blocks);
  }
  result.owned_blocks = s.is_frozen ? 0 : result.blocks;
  result.owned_live_bytes = s.is_frozen ? 0 : result.live_bytes;
  result.borrowed_blocks = s.borrowed_keys.size() + s.borrowed_scales.size();
  result.charged_blocks +=
      ChargedBlocks(*pool_, s.borrowed_keys) + ChargedBlocks(*pool_, s.borrowed_scales);
  result.tail_waste_bytes = result.blocks * geometry_->block_bytes - result.live_bytes;
  return result;
}

// The head that most slots cover is the first head of some segment.
size_t LayerBlockTable::LongestHeadTokens(const std::optional<CacheFormat>& only) const {
  size_t longest = 0;
  for (const SegmentView& candidate : views_) {
    const int head = candidate.first_kv_head;
    size_t tokens = 0;
    for (int i = 0; i < num_segments(); ++i) {
      const SegmentView& view = views_[i];
      const bool covers =
          view.first_kv_head <= head && head < view.first_kv_head + view.num_kv_heads;
      if (covers && (!only || segments_[i].options.format == *only)) {
        tokens += static_cast<size_t>(view.num_slots);
      }
    }
    longest = std::max(longest, tokens);
  }
  return longest;
}

LayerOccupancy LayerBlockTable::occupancy() const {
  LayerOccupancy result;
  for (int i = 0; i < num_segments(); ++i) {
    result += SegmentOccupancy(i);
  }
  result.tokens = LongestHeadTokens(std::nullopt);
  return result;
}

void LayerBlockTable::AddOccupancyByFormat(std::map<CacheFormat, LayerOccupancy>* by_format) const {
  absl::InlinedVector<CacheFormat, 4> formats;  // each once
  for (int i = 0; i < num_segments(); ++i) {
    // A segment without slots may hold references to another layer's keys already.
    if (views_[i].num_slots == 0 && segments_[i].borrowed_keys.empty()) continue;
    const CacheFormat& format = segments_[i].options.format;
    (*by_format)[format] += SegmentOccupancy(i);
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
      formats.push_back(format);
    }
  }
  for (const CacheFormat& format : formats) {
    (*by_format)[format].tokens += LongestHeadTokens(format);
  }
}

void CacheOccupancy::Add(const SequenceCache& sequence) {
  CheckThat(sequence.num_layers() == static_cast<int>(layers.size()),
            "sequences of one model have the same layers");
  for (int i = 0; i < sequence.num_layers(); ++i) {
    const LayerOccupancy layer = sequence.layer(i).occupancy();
    layers[i] += layer;
    total += layer;
    sequence.layer(i).AddOccupancyByFormat(&formats);
  }
}

absl::Status CheckIntegrity(const BlockPool& pool,
                            absl::Span<const SequenceCache* const> sequences) {
  std::vector<BlockId> owners;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (absl::Status status = sequences[i]->CheckIntegrity(); !status.ok()) {
      return absl::InternalError(absl::StrCat("sequence ", i, ": ", status.message()));
    }
    sequences[i]->AppendReferences(&owners);
  }
  return pool.CheckIntegrity(owners);
}

}  // namespace ziggurat
