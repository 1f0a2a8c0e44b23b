// Keys and values go from the workspace, or from a decode step, into blocks.

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/head_tokens.h"
#include "attention/cpu/write_kernels.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// The rows of a workspace tensor that go to the slots of one head.
struct HeadRows {
  HeadRows(const AttentionShape& shape, ElementType element, const void* x, int kv_head,
           const TokenChoice& list, int head_of_segment)
      : head_bytes(shape.head_dim * ElementBytes(element)),
        base(static_cast<const std::byte*>(x) + kv_head * head_bytes),
        row_bytes(shape.num_kv_heads * head_bytes),
        rows(list),
        head(head_of_segment) {}
  const std::byte* at(int i) const {
    return base + row_bytes * static_cast<size_t>(rows.At(head, i));
  }

  size_t head_bytes;
  const std::byte* base;
  size_t row_bytes;
  const TokenChoice& rows;
  int head;
};

/// The slot that a new token takes in a full scored segment (TokenTarget::kLowestScore). Where
/// every token is too recent: the oldest of them.
int LowestScoredSlot(PoolView pool, const SegmentView& segment, int head, int newest_that_may_go) {
  int lowest = -1, oldest = 0;
  float lowest_score = std::numeric_limits<float>::quiet_NaN();
  const int per_block = static_cast<int>(segment.scores.slots_per_block);
  for (int first = 0; first < segment.num_slots; first += per_block) {
    const int slot = Avx2WriteKernels().lowest_score(
        EntryOf<float>(pool, segment.scores, head, first),
        EntryOf<int32_t>(pool, segment.positions, head, first),
        std::min(per_block, segment.num_slots - first), newest_that_may_go, &lowest_score);
    if (slot >= 0) lowest = first + slot;
  }
  if (lowest >= 0) return lowest;
  const auto position = [&](int slot) {
    return *EntryOf<int32_t>(pool, segment.positions, head, slot);
  };
  for (int slot = 1; slot < segment.num_slots; ++slot) {
    if (position(slot) < position(oldest)) oldest = slot;
  }
  return oldest;
}

}  // namespace

void CpuBackend::WriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                             const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                             int first_slot) {
  const int dim = shape.head_dim;
  const bool is_plain = IsPlain(segment.encoding), is_grouped = IsGrouped(segment.encoding);
  const ElementType stored =
      segment.encoding == Encoding::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  const int unit = segment.UnitTokens();
  const int tile = is_grouped ? unit : HeadTokens::kTokensAtATime;
  const bool writes_keys = tokens.k != nullptr && segment.use != SegmentUse::kBorrowedKeys;
  const size_t elements = static_cast<size_t>(unit) * segment.num_kv_heads * dim;
  ParallelRanges(threads_, rows.count / unit, elements, [&](size_t begin, size_t end) {
    std::vector<float> numbers(static_cast<size_t>(tile) * dim);
    std::vector<std::byte> codes(sizeof(float) * tile * dim);
    std::vector<uint32_t> room;
    // Tokens [i, i + count) of one head.
    const auto write_tile = [&](HeadTokens::Side side, int head, int i, int count) {
      const HeadTokens to(pool, segment, side, head, dim);
      const HeadRows from(shape, tokens.element, side == HeadTokens::kKeys ? tokens.k : tokens.v,
                          segment.first_kv_head + head, rows, head);
      const int slot = first_slot + i;
      for (int t = 0; t < count; ++t) {
        std::byte* code = codes.data() + t * to.token_bytes();
        float* number = numbers.data() + static_cast<size_t>(t) * dim;
        if (is_plain) {
          ConvertRange(tokens.element, from.at(i + t), dim, stored, code);
        } else {
          ConvertRange(tokens.element, from.at(i + t), dim, ElementType::kF32, number);
          if (!is_grouped) to.Encode(slot + t, number, code);
        }
      }
      if (is_grouped) {
        to.WriteGroup(slot, numbers.data(), &room);
      } else {
        to.StoreCodes(slot, count, codes.data());
      }
    };
    // All heads of a tile in turn: they are neighbours in the workspace.
    const int last = static_cast<int>(end) * unit;
    for (int i = static_cast<int>(begin) * unit; i < last; i += tile) {
      const int count = std::min(tile, last - i);
      for (int head = 0; head < segment.num_kv_heads; ++head) {
        if (writes_keys) write_tile(HeadTokens::kKeys, head, i, count);
        write_tile(HeadTokens::kValues, head, i, count);
      }
    }
  });
}

void CpuBackend::WriteScores(const AttentionShape& /*shape*/, const float* sums, int n,
                             const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                             int first_slot) {
  for (int head = 0; head < segment.num_kv_heads; ++head) {
    const float* of_head = sums + static_cast<size_t>(segment.first_kv_head + head) * n;
    for (int i = 0; i < rows.count; ++i) {
      const int row = rows.At(head, i);
      *EntryOf<float>(pool, segment.scores, head, first_slot + i) = of_head[row];
      *EntryOf<int32_t>(pool, segment.positions, head, first_slot + i) = row;
    }
  }
}

void CpuBackend::WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                           const float* k, const float* v, PoolView pool) {
  const size_t dim = shape.head_dim;
  const auto write_target = [&](const DecodeItem& item, size_t i, const TokenTarget& target) {
    const SegmentView& segment = item.segments[target.segment];
    for (int head = 0; head < segment.num_kv_heads; ++head) {
      const int slot =
          target.slot == TokenTarget::kLowestScore
              ? LowestScoredSlot(pool, segment, head, item.position - item.score_recent)
              : target.slot;
      const size_t from = (i * shape.num_kv_heads + segment.first_kv_head + head) * dim;
      HeadTokens(pool, segment, HeadTokens::kKeys, head, shape.head_dim).Write(slot, k + from);
      HeadTokens(pool, segment, HeadTokens::kValues, head, shape.head_dim).Write(slot, v + from);
      if (segment.scores.blocks != nullptr) {
        *EntryOf<float>(pool, segment.scores, head, slot) = 0;
        *EntryOf<int32_t>(pool, segment.positions, head, slot) = item.position;
      }
    }
  };
  ParallelRanges(threads_, items.size(), shape.num_kv_heads * dim, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      for (const TokenTarget& target : items[i].targets) write_target(items[i], i, target);
    }
  });
}

}  // namespace ziggurat::cpu
