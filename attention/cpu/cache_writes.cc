// Keys and values go from the workspace, or from a decode step, into blocks.

#include <cstring>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/head_tokens.h"
#include "attention/cpu/parallel.h"

namespace ziggurat::cpu {
namespace {

/// The rows of a workspace tensor that go to the slots of one head.
struct HeadRows {
  HeadRows(const AttentionShape& shape, ElementType element, const void* x, int kv_head,
           HeadIndices indices, int head, int first)
      : base(static_cast<const std::byte*>(x) + kv_head * shape.head_dim * ElementBytes(element)),
        row_bytes(static_cast<size_t>(shape.num_kv_heads) * shape.head_dim * ElementBytes(element)),
        rows(indices.of_head == nullptr ? nullptr : indices.of_head + head * indices.stride),
        first_row(first) {}
  const std::byte* at(size_t i) const {
    return base + row_bytes * (rows == nullptr ? first_row + i : rows[i]);
  }

  const std::byte* base;
  size_t row_bytes;
  const int32_t* rows;
  int first_row;
};

/// The slot that a new token takes in a full scored segment (TokenTarget::kLowestScore). Where
/// every token is too recent: the oldest of them.
int LowestScoredSlot(PoolView pool, const SegmentView& segment, int head, int newest_that_may_go) {
  int lowest = -1, oldest = 0;
  float lowest_score = 0;
  int32_t oldest_position = INT32_MAX;
  const int per_block = static_cast<int>(segment.scores.slots_per_block);
  for (int first = 0; first < segment.num_slots; first += per_block) {
    const float* scores = EntryOf<float>(pool, segment.scores, head, first);
    const int32_t* positions = EntryOf<int32_t>(pool, segment.positions, head, first);
    const int count = std::min(per_block, segment.num_slots - first);
    for (int i = 0; i < count; ++i) {
      if (positions[i] < oldest_position) {
        oldest = first + i;
        oldest_position = positions[i];
      }
      if (positions[i] > newest_that_may_go) continue;
      if (lowest < 0 || scores[i] < lowest_score) {
        lowest = first + i;
        lowest_score = scores[i];
      }
    }
  }
  return lowest < 0 ? oldest : lowest;
}

}  // namespace

void CpuBackend::WriteTokens(const AttentionShape& shape, ElementType element, const void* k,
                             const void* v, HeadIndices indices, int first_row, int count,
                             PoolView pool, const SegmentView& segment, int first_slot) {
  const int dim = shape.head_dim;
  const int unit = IsGrouped(segment.encoding) ? segment.group : 1;  // tokens written together
  const bool writes_keys = k != nullptr && segment.use != SegmentUse::kBorrowedKeys;
  const size_t elements = static_cast<size_t>(unit) * segment.num_kv_heads * dim;
  ParallelRanges(threads_, count / unit, elements, [&](size_t begin, size_t end) {
    std::vector<float> numbers(static_cast<size_t>(unit) * dim);
    std::vector<uint32_t> room;
    const auto write_head = [&](HeadTokens::Side side, int head) {
      const HeadTokens to(pool, segment, side, head, dim);
      const HeadRows rows(shape, element, side == HeadTokens::kKeys ? k : v,
                          segment.first_kv_head + head, indices, head, first_row);
      for (size_t i = begin * unit; i < end * unit; i += unit) {
        const int slot = first_slot + static_cast<int>(i);
        if (EncodingOf(element) == segment.encoding) {
          to.StoreCodes(slot, rows.at(i));
        } else if (IsPlain(segment.encoding)) {
          const ElementType stored =
              segment.encoding == Encoding::kF32 ? ElementType::kF32 : ElementType::kBf16;
          ConvertRange(element, rows.at(i), dim, stored, numbers.data());
          to.StoreCodes(slot, reinterpret_cast<const std::byte*>(numbers.data()));
        } else {
          for (int t = 0; t < unit; ++t) {
            ConvertRange(element, rows.at(i + t), dim, ElementType::kF32,
                         numbers.data() + static_cast<size_t>(t) * dim);
          }
          if (IsGrouped(segment.encoding)) {
            to.WriteGroup(slot, numbers.data(), &room);
          } else {
            to.Write(slot, numbers.data());
          }
        }
      }
    };
    for (int head = 0; head < segment.num_kv_heads; ++head) {
      if (writes_keys) write_head(HeadTokens::kKeys, head);
      write_head(HeadTokens::kValues, head);
    }
  });
}

void CpuBackend::WriteScores(const AttentionShape& /*shape*/, const float* sums, int n,
                             HeadIndices indices, int first_row, int count, PoolView pool,
                             const SegmentView& segment, int first_slot) {
  for (int head = 0; head < segment.num_kv_heads; ++head) {
    const float* of_head = sums + static_cast<size_t>(segment.first_kv_head + head) * n;
    for (int i = 0; i < count; ++i) {
      const int row =
          indices.of_head == nullptr ? first_row + i : indices.of_head[head * indices.stride + i];
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
