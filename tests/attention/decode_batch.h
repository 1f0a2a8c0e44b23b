// Batches of sequences to decode, and what decode attention gives for them.
#pragma once

#include "tests/attention/test_cache.h"

namespace ziggurat {

struct Decoded {
  std::vector<float> out, lse;
};

inline Decoded RunDecode(AttentionBackend& backend, const AttentionShape& shape,
                         const std::vector<DecodeItem>& items, const std::vector<float>& q,
                         PoolView pool) {
  Decoded result{std::vector<float>(q.size(), NAN),
                 std::vector<float>(items.size() * shape.num_q_heads, NAN)};
  backend.DecodeAttention(shape, items, q.data(), pool, result.out.data(), result.lse.data());
  return result;
}

inline ElementType QueryElement(Encoding encoding) {
  return encoding == Encoding::kBf16 ? ElementType::kBf16 : ElementType::kF32;
}
/// Codes stand for exact numbers: only plain bf16 may be multiplied with less than f32 has.
inline double Tolerance(Encoding encoding) { return Tolerance(QueryElement(encoding)); }

/// Queries as a bf16 model has them: already rounded where the cache is bf16.
inline std::vector<float> Queries(Encoding encoding, const AttentionShape& shape, size_t items,
                                  uint32_t seed) {
  return RandomTensor(QueryElement(encoding), items * shape.num_q_heads * shape.head_dim, seed)
      .floats();
}

/// Sequences whose caches lie in one pool; for each its segments.
struct Batch {
  Batch(const AttentionShape& shape, const std::vector<std::vector<SegmentSpec>>& sequences,
        size_t block_bytes = 0)
      : pool(block_bytes != 0
                 ? block_bytes
                 : CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim),
             BlocksFor(shape, sequences, block_bytes)) {
    uint32_t seed = 0;
    for (const std::vector<SegmentSpec>& specs : sequences) {
      segments.emplace_back();
      for (const SegmentSpec& spec : specs) {
        const int heads = spec.heads != 0 ? spec.heads : shape.num_kv_heads;
        segments.back().push_back(
            TakeSegment(pool, spec.format, spec.first_head, heads, shape.head_dim, spec.slots));
        FillSegment(pool.view(), segments.back().back(), shape.head_dim, ++seed);
      }
    }
    for (const auto& list : segments) items.push_back({list});
  }
  /// One segment of all heads for each length.
  Batch(const CacheFormat& format, const AttentionShape& shape, const std::vector<int>& lengths,
        size_t block_bytes = 0)
      : Batch(shape, OneSegmentEach(format, lengths), block_bytes) {}

  static std::vector<std::vector<SegmentSpec>> OneSegmentEach(const CacheFormat& format,
                                                              const std::vector<int>& lengths) {
    std::vector<std::vector<SegmentSpec>> sequences;
    for (int length : lengths) sequences.push_back({{format, length}});
    return sequences;
  }
  static size_t BlocksFor(const AttentionShape& shape,
                          const std::vector<std::vector<SegmentSpec>>& sequences,
                          size_t block_bytes) {
    size_t blocks = 0;
    for (const auto& specs : sequences) blocks += TestCache::BlocksFor(shape, specs, block_bytes);
    return blocks;
  }
  TestPool pool;
  std::deque<std::vector<SegmentView>> segments;
  std::vector<DecodeItem> items;
};

}  // namespace ziggurat
