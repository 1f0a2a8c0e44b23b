#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/reference/elements.h"
#include "attention/reference/reference_backend.h"
#include "attention/reference/stored_segment.h"

namespace ziggurat::reference {
namespace {

/// One token of one head, as f32.
std::vector<float> LoadToken(const AttentionShape& shape, ElementType element, const void* x,
                             size_t row, int kv_head) {
  const size_t first = (row * shape.num_kv_heads + kv_head) * shape.head_dim;
  std::vector<float> token;
  for (int c = 0; c < shape.head_dim; ++c) {
    token.push_back(static_cast<float>(LoadElement(element, x, first + c)));
  }
  return token;
}

/// Writes `tokens`, of head_dim numbers each, into slots first_slot, ... of one head.
void WriteHead(const StoredSegment& to, Side side, int kv_head, int first_slot,
               const std::vector<std::vector<float>>& tokens) {
  const int group = to.view().UnitTokens();
  for (size_t i = 0; i < tokens.size(); i += group) {
    const int slot = first_slot + static_cast<int>(i);
    if (!IsGrouped(to.view().encoding)) {
      to.WriteToken(side, kv_head, slot, tokens[i].data());
      continue;
    }
    std::vector<float> whole;
    for (int t = 0; t < group; ++t) {
      whole.insert(whole.end(), tokens[i + t].begin(), tokens[i + t].end());
    }
    to.WriteGroup(side, kv_head, slot, whole.data());
  }
}

}  // namespace

void ReferenceBackend::WriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                                   const TokenChoice& rows, PoolView pool,
                                   const SegmentView& segment, int first_slot) {
  const StoredSegment to(pool, segment, shape.head_dim);
  for (int head = 0; head < segment.num_kv_heads; ++head) {
    const int kv_head = segment.first_kv_head + head;
    std::vector<std::vector<float>> keys, values;
    for (int i = 0; i < rows.count; ++i) {
      const int row = rows.At(head, i);
      if (tokens.k != nullptr) {
        keys.push_back(LoadToken(shape, tokens.element, tokens.k, row, kv_head));
      }
      values.push_back(LoadToken(shape, tokens.element, tokens.v, row, kv_head));
    }
    if (to.owns(Side::kKeys)) WriteHead(to, Side::kKeys, kv_head, first_slot, keys);
    WriteHead(to, Side::kValues, kv_head, first_slot, values);
  }
}

void ReferenceBackend::WriteScores(const AttentionShape& shape, const float* sums, int n,
                                   const TokenChoice& rows, PoolView pool,
                                   const SegmentView& segment, int first_slot) {
  const StoredSegment to(pool, segment, shape.head_dim);
  for (int head = 0; head < segment.num_kv_heads; ++head) {
    const int kv_head = segment.first_kv_head + head;
    for (int i = 0; i < rows.count; ++i) {
      const int row = rows.At(head, i);
      to.SetScore(kv_head, first_slot + i, sums[static_cast<size_t>(kv_head) * n + row]);
      to.SetPosition(kv_head, first_slot + i, row);
    }
  }
}

// ---- Copies ------------------------------------------------------------------------------------

namespace {

/// Everything about a token of a head but its keys and values.
struct Attributes {
  float norms[4] = {};
  float score = 0;
  int32_t position = 0;
};

/// Tokens of one side of a head that are encoded together, as bits and as numbers.
struct Unit {
  bool bit_for_bit;
  std::vector<std::vector<ChannelBits>> bits;
  std::vector<std::vector<float>> numbers;
};

/// Bit for bit where the encodings are equal and, where scales are shared, the slots are a group of
/// `from` in order.
bool GoesBitForBit(const SegmentView& from, const std::vector<int>& slots, const SegmentView& to) {
  if (from.encoding != to.encoding) return false;
  if ((from.key_norms.blocks == nullptr) != (to.key_norms.blocks == nullptr)) return false;
  if (!IsGrouped(to.encoding)) return true;
  if (from.group != to.group || slots[0] % to.group != 0) return false;
  for (size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] != slots[0] + static_cast<int>(t)) return false;
  }
  return true;
}

Unit LoadUnit(const StoredSegment& from, Side side, int kv_head, const std::vector<int>& slots,
              int head_dim, const StoredSegment& to) {
  Unit unit{GoesBitForBit(from.view(), slots, to.view()), {}, {}};
  for (int slot : slots) {
    std::vector<ChannelBits> bits;
    std::vector<float> numbers;
    for (int c = 0; c < head_dim; ++c) {
      if (unit.bit_for_bit) bits.push_back(from.LoadBits(side, kv_head, slot, c));
      numbers.push_back(static_cast<float>(to.is_merged() ? from.Direction(side, kv_head, slot, c)
                                                          : from.Decoded(side, kv_head, slot, c)));
    }
    unit.bits.push_back(bits);
    unit.numbers.push_back(numbers);
  }
  return unit;
}

void StoreUnit(const Unit& unit, const StoredSegment& to, Side side, int kv_head, int first_slot) {
  if (!unit.bit_for_bit) return WriteHead(to, side, kv_head, first_slot, unit.numbers);
  for (size_t t = 0; t < unit.bits.size(); ++t) {
    for (size_t c = 0; c < unit.bits[t].size(); ++c) {
      to.StoreBits(side, kv_head, first_slot + static_cast<int>(t), static_cast<int>(c),
                   unit.bits[t][c]);
    }
  }
}

}  // namespace

void ReferenceBackend::CopyTokens(const AttentionShape& shape, PoolView pool,
                                  const SegmentView& from_view, const TokenChoice& slots,
                                  const SegmentView& to_view, int first_slot) {
  const StoredSegment from(pool, from_view, shape.head_dim), to(pool, to_view, shape.head_dim);
  const int group = to_view.UnitTokens();
  const bool norms = from.is_merged() && to.is_merged();
  const bool scores = from.is_scored() && to.is_scored();
  for (int head = 0; head < to_view.num_kv_heads; ++head) {
    const int g = to_view.first_kv_head + head;
    // All are read before any is written.
    std::vector<Attributes> attributes(slots.count);
    std::vector<Unit> units[2];
    for (int i = 0; i < slots.count; i += group) {
      std::vector<int> unit_slots;
      for (int t = i; t < i + group; ++t) unit_slots.push_back(slots.At(head, t));
      for (Side side : kSides) {
        units[static_cast<int>(side)].push_back(
            LoadUnit(from, side, g, unit_slots, shape.head_dim, to));
      }
      for (int t = 0; t < group; ++t) {
        Attributes& token = attributes[i + t];
        for (int n = 0; norms && n < 4; ++n) token.norms[n] = from.AnyNorm(n, g, unit_slots[t]);
        if (scores) token.score = from.Score(g, unit_slots[t]);
        if (scores) token.position = from.Position(g, unit_slots[t]);
      }
    }
    for (int i = 0; i < slots.count; ++i) {
      const int slot = first_slot + i;
      for (Side side : kSides) {
        if (!to.owns(side) || i % group != 0) continue;
        StoreUnit(units[static_cast<int>(side)][i / group], to, side, g, slot);
      }
      for (int n = 0; norms && n < 4; ++n) to.SetAnyNorm(n, g, slot, attributes[i].norms[n]);
      if (scores) to.SetScore(g, slot, attributes[i].score);
      if (scores) to.SetPosition(g, slot, attributes[i].position);
    }
  }
}

void ReferenceBackend::ReadTokens(const AttentionShape& shape, PoolView pool,
                                  const SegmentView& segment, int first, int count, float* k,
                                  float* v) {
  const StoredSegment from(pool, segment, shape.head_dim);
  for (int i = 0; i < count; ++i) {
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      for (int c = 0; c < shape.head_dim; ++c, ++k, ++v) {
        *k = static_cast<float>(from.Decoded(Side::kKeys, g, first + i, c));
        *v = static_cast<float>(from.Decoded(Side::kValues, g, first + i, c));
      }
    }
  }
}

// ---- A decode step -----------------------------------------------------------------------------

namespace {

/// The slot that a new token takes in a full scored segment (TokenTarget::kLowestScore); a score
/// that is NaN counts as infinity. Where every token is too recent: the oldest of them.
int LowestScoredSlot(const StoredSegment& segment, int kv_head, int newest_that_may_go) {
  const auto score = [&](int slot) {
    const double stored = segment.Score(kv_head, slot);
    return stored != stored ? INFINITY : stored;
  };
  int lowest = -1, oldest = 0;
  for (int slot = 0; slot < segment.view().num_slots; ++slot) {
    if (segment.Position(kv_head, slot) < segment.Position(kv_head, oldest)) oldest = slot;
    if (segment.Position(kv_head, slot) > newest_that_may_go) continue;
    if (lowest < 0 || score(slot) < score(lowest)) lowest = slot;
  }
  return lowest < 0 ? oldest : lowest;
}

}  // namespace

void ReferenceBackend::WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* k, const float* v, PoolView pool) {
  for (size_t i = 0; i < items.size(); ++i) {
    const DecodeItem& item = items[i];
    for (const TokenTarget& target : item.targets) {
      const SegmentView& segment = item.segments[target.segment];
      const StoredSegment to(pool, segment, shape.head_dim);
      for (int head = 0; head < segment.num_kv_heads; ++head) {
        const int g = segment.first_kv_head + head;
        const int slot = target.slot == TokenTarget::kLowestScore
                             ? LowestScoredSlot(to, g, item.position - item.score_recent)
                             : target.slot;
        to.WriteToken(Side::kKeys, g, slot, LoadToken(shape, ElementType::kF32, k, i, g).data());
        to.WriteToken(Side::kValues, g, slot, LoadToken(shape, ElementType::kF32, v, i, g).data());
        if (to.is_scored()) to.SetScore(g, slot, 0);
        if (to.is_scored()) to.SetPosition(g, slot, item.position);
      }
    }
  }
}

}  // namespace ziggurat::reference
