// Tokens go from segment to segment, and back into numbers.

#include <cstring>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/head_tokens.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Carries tokens of one head from a segment to another through memory: one token at a time, or a
/// group where the other segment is written in groups.
///
/// A unit in memory is [keys][values][norms, 4 f32 per token][score and position per token]. A side
/// is a word that says whether bits or f32 numbers follow, and room for the larger of the two: of
/// bits the codes of each token, then the scales.
class UnitCopier {
 public:
  UnitCopier(const AttentionShape& shape, PoolView pool, const SegmentView& from,
             const SegmentView& to, const TokenChoice& slots)
      : pool_(pool),
        from_(from),
        to_(to),
        slots_(slots),
        dim_(shape.head_dim),
        tokens_(to.UnitTokens()),
        side_bytes_(sizeof(uint32_t) + sizeof(float) * tokens_ * dim_),
        has_norms_(from.key_norms.blocks != nullptr && to.key_norms.blocks != nullptr),
        has_scores_(from.scores.blocks != nullptr && to.scores.blocks != nullptr) {}

  int tokens() const { return tokens_; }
  size_t unit_bytes() const { return 2 * side_bytes_ + tokens_ * (4 + 2) * sizeof(float); }
  /// Slot of `from` of the i-th token; `head` counts from the first of `to`.
  int SlotOf(int head, int i) const { return slots_.At(head, i); }

  /// The unit that begins with token i.
  void Load(int head, int i, std::byte* unit) const;
  void Store(int head, int first_slot, const std::byte* unit, std::vector<uint32_t>* room) const;

 private:
  bool WritesKeys() const { return to_.use != SegmentUse::kBorrowedKeys; }
  /// `head` counted from the first of `from`.
  int FromHead(int head) const { return head + to_.first_kv_head - from_.first_kv_head; }
  bool GoesBitForBit(int head, int i) const;
  void LoadSide(HeadTokens::Side side, int head, int i, bool bits, std::byte* to) const;
  void StoreSide(HeadTokens::Side side, int head, int first_slot, const std::byte* from,
                 std::vector<uint32_t>* room) const;
  static PlaneView NormsOfBothLayers(const SegmentView& segment);

  PoolView pool_;
  const SegmentView& from_;
  const SegmentView& to_;
  const TokenChoice& slots_;
  int dim_;
  int tokens_;
  size_t side_bytes_;
  bool has_norms_;
  bool has_scores_;
};

/// A head's four areas of norms lie side by side; the view shows two of them.
PlaneView UnitCopier::NormsOfBothLayers(const SegmentView& segment) {
  PlaneView plane = segment.key_norms;
  const uint32_t head_bytes = 4 * plane.slots_per_block * sizeof(float);
  plane.offset_bytes -= plane.offset_bytes % head_bytes;
  return plane;
}

/// Where encodings are equal and, where scales are shared, the slots are a group of `from`.
bool UnitCopier::GoesBitForBit(int head, int i) const {
  if (from_.encoding != to_.encoding) return false;
  if ((from_.key_norms.blocks == nullptr) != (to_.key_norms.blocks == nullptr)) return false;
  if (tokens_ == 1) return !IsGrouped(to_.encoding) || from_.group == to_.group;
  const int first = SlotOf(head, i);
  if (from_.group != to_.group || first % tokens_ != 0) return false;
  for (int t = 1; t < tokens_; ++t) {
    if (SlotOf(head, i + t) != first + t) return false;
  }
  return true;
}

void UnitCopier::LoadSide(HeadTokens::Side side, int head, int i, bool bits, std::byte* to) const {
  const HeadTokens tokens(pool_, from_, side, FromHead(head), dim_);
  const uint32_t is_bits = bits ? 1 : 0;
  std::memcpy(to, &is_bits, sizeof(is_bits));
  to += sizeof(is_bits);
  for (int t = 0; t < tokens_; ++t) {
    const int slot = SlotOf(head, i + t);
    if (bits) {
      tokens.LoadCodes(slot, to);
      to += tokens.token_bytes();
      continue;
    }
    auto* numbers = reinterpret_cast<float*>(to);
    tokens.Read(slot, numbers);
    to += sizeof(float) * dim_;
    if (from_.key_norms.blocks != nullptr && !has_norms_) {
      const float norm =
          *EntryOf<float>(pool_, side == HeadTokens::kKeys ? from_.key_norms : from_.value_norms,
                          FromHead(head), slot);
      for (int c = 0; c < dim_; ++c) numbers[c] *= norm;
    }
  }
  if (!bits) return;
  const int slot = SlotOf(head, i);
  if (IsPerToken(from_.encoding)) std::memcpy(to, tokens.Scale(slot), sizeof(float));
  if (IsGrouped(from_.encoding)) std::memcpy(to, tokens.GroupScales(slot), size_t{4} * dim_);
}

void UnitCopier::StoreSide(HeadTokens::Side side, int head, int first_slot, const std::byte* from,
                           std::vector<uint32_t>* room) const {
  const HeadTokens tokens(pool_, to_, side, head, dim_);
  uint32_t is_bits;
  std::memcpy(&is_bits, from, sizeof(is_bits));
  from += sizeof(is_bits);
  if (is_bits == 0) {
    const auto* numbers = reinterpret_cast<const float*>(from);
    if (IsGrouped(to_.encoding)) {
      tokens.WriteGroup(first_slot, numbers, room);
    } else {
      tokens.Write(first_slot, numbers);
    }
    return;
  }
  tokens.StoreCodes(first_slot, tokens_, from);
  from += tokens_ * tokens.token_bytes();
  if (IsPerToken(to_.encoding)) std::memcpy(tokens.Scale(first_slot), from, sizeof(float));
  if (IsGrouped(to_.encoding)) {
    std::memcpy(tokens.GroupScales(first_slot), from, size_t{4} * dim_);
  }
}

void UnitCopier::Load(int head, int i, std::byte* unit) const {
  const bool bits = GoesBitForBit(head, i);
  if (WritesKeys()) LoadSide(HeadTokens::kKeys, head, i, bits, unit);
  LoadSide(HeadTokens::kValues, head, i, bits, unit + side_bytes_);
  auto* numbers = reinterpret_cast<float*>(unit + 2 * side_bytes_);
  for (int t = 0; t < tokens_; ++t, numbers += 6) {
    const int slot = SlotOf(head, i + t), from_head = FromHead(head);
    if (has_norms_) {
      const PlaneView plane = NormsOfBothLayers(from_);
      const float* norm = EntryOf<float>(pool_, plane, from_head, slot);
      for (int n = 0; n < 4; ++n) numbers[n] = norm[n * plane.slots_per_block];
    }
    if (has_scores_) {
      std::memcpy(numbers + 4, EntryOf<float>(pool_, from_.scores, from_head, slot), 4);
      std::memcpy(numbers + 5, EntryOf<float>(pool_, from_.positions, from_head, slot), 4);
    }
  }
}

void UnitCopier::Store(int head, int first_slot, const std::byte* unit,
                       std::vector<uint32_t>* room) const {
  if (WritesKeys()) StoreSide(HeadTokens::kKeys, head, first_slot, unit, room);
  StoreSide(HeadTokens::kValues, head, first_slot, unit + side_bytes_, room);
  const auto* numbers = reinterpret_cast<const float*>(unit + 2 * side_bytes_);
  for (int t = 0; t < tokens_; ++t, numbers += 6) {
    const int slot = first_slot + t;
    if (has_norms_) {
      const PlaneView plane = NormsOfBothLayers(to_);
      float* norm = EntryOf<float>(pool_, plane, head, slot);
      for (int n = 0; n < 4; ++n) norm[n * plane.slots_per_block] = numbers[n];
    }
    if (has_scores_) {
      std::memcpy(EntryOf<float>(pool_, to_.scores, head, slot), numbers + 4, 4);
      std::memcpy(EntryOf<float>(pool_, to_.positions, head, slot), numbers + 5, 4);
    }
  }
}

/// Whether the segments are one, seen by one layer or by two.
bool ShareBlocks(const SegmentView& a, const SegmentView& b) {
  return a.values.blocks[0] == b.values.blocks[0];
}

/// Room for one unit: of a token in place, as it happens in every layer of a step.
class UnitBuffer {
 public:
  std::byte* Get(size_t bytes) {
    if (bytes <= sizeof(small_)) return small_;
    if (large_.size() < bytes) large_.resize(bytes);
    return large_.data();
  }

 private:
  alignas(8) std::byte small_[2048 + 64];
  std::vector<std::byte> large_;
};

}  // namespace

void CpuBackend::CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                            const TokenChoice& slots, const SegmentView& to, int first_slot) {
  if (slots.count <= 0) return;
  const UnitCopier copier(shape, pool, from, to, slots);
  const int step = copier.tokens(), units = slots.count / step, heads = to.num_kv_heads;
  const size_t elements = static_cast<size_t>(step) * 2 * shape.head_dim;
  if (!ShareBlocks(from, to)) {
    ParallelRanges(threads_, static_cast<size_t>(heads) * units, elements,
                   [&](size_t begin, size_t end) {
                     UnitBuffer buffer;
                     std::vector<uint32_t> room;
                     std::byte* unit = buffer.Get(copier.unit_bytes());
                     for (size_t i = begin; i < end; ++i) {
                       const int head = static_cast<int>(i) / units;
                       const int token = static_cast<int>(i) % units * step;
                       copier.Load(head, token, unit);
                       copier.Store(head, first_slot + token, unit, &room);
                     }
                   });
    return;
  }
  ParallelRanges(threads_, heads, elements * units, [&](size_t begin, size_t end) {
    UnitBuffer buffer;
    std::vector<uint32_t> room;
    for (int head = static_cast<int>(begin); head < static_cast<int>(end); ++head) {
      // Where no token moves to a higher slot, nothing is overwritten before it was read.
      bool moves_down = true;
      for (int i = 0; i < slots.count; ++i) {
        moves_down = moves_down && copier.SlotOf(head, i) >= first_slot + i;
      }
      const int at_a_time = moves_down ? 1 : units;
      std::byte* memory = buffer.Get(copier.unit_bytes() * at_a_time);
      for (int u = 0; u < units; u += at_a_time) {
        for (int i = 0; i < at_a_time; ++i) {
          copier.Load(head, (u + i) * step, memory + i * copier.unit_bytes());
        }
        for (int i = 0; i < at_a_time; ++i) {
          copier.Store(head, first_slot + (u + i) * step, memory + i * copier.unit_bytes(), &room);
        }
      }
    }
  });
}

void CpuBackend::ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment,
                            int first, int count, float* k, float* v) {
  const size_t dim = shape.head_dim, heads = shape.num_kv_heads;
  ParallelRanges(threads_, count, 2 * heads * dim, [&](size_t begin, size_t end) {
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      const HeadTokens keys(pool, segment, HeadTokens::kKeys, head, shape.head_dim);
      const HeadTokens values(pool, segment, HeadTokens::kValues, head, shape.head_dim);
      for (size_t i = begin; i < end; ++i) {
        const int slot = first + static_cast<int>(i);
        keys.Read(slot, k + (i * heads + head) * dim);
        values.Read(slot, v + (i * heads + head) * dim);
      }
    }
  });
}

}  // namespace ziggurat::cpu
