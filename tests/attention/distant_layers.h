// PoD's two layers, the upper of which attends to distant tokens with the lower's queries and keys.
#pragma once

#include "tests/attention/decode_batch.h"

namespace ziggurat {

struct DistantDecoded {
  std::vector<float> out, lse, low_q, distant_lse;
  DistantCounts counts;
};

/// Two layers of three KV heads: heads 0 and 2 are grouped, head 1 is not. The lower layer holds
/// the keys of the distant tokens of 0 and 2; the upper one their values alone.
struct TwoLayers {
  static constexpr int kHeads = 3;

  TwoLayers(const AttentionShape& shape, const CacheFormat& format, int near, int distant)
      : pool(CacheGeometry::DefaultBlockBytes(kHeads, shape.head_dim), 600) {
    const CacheFormat plain = KeyValueFormat(QueryElement(format.encoding));
    for (int head = 0; head < kHeads; ++head) {
      lower.push_back(TakeSegment(pool, plain, head, 1, shape.head_dim, near));
      upper.push_back(TakeSegment(pool, plain, head, 1, shape.head_dim, near + head));
      lower.push_back(TakeSegment(pool, format, head, 1, shape.head_dim, distant));
      if (head == 1) {
        upper.push_back(TakeSegment(pool, format, head, 1, shape.head_dim, distant));
      } else {
        lower.back().use = SegmentUse::kDistantKeys;
        upper.push_back(TakeValuesSegment(pool, lower.back(), shape.head_dim));
      }
    }
    uint32_t seed = 0;
    for (const SegmentView& s : lower) FillSegment(pool.view(), s, shape.head_dim, ++seed);
    for (const SegmentView& s : upper) {
      FillSegment(pool.view(), s, shape.head_dim, ++seed, s.use != SegmentUse::kBorrowedKeys);
    }
  }
  TestPool pool;
  std::vector<SegmentView> lower, upper;
};

/// Both layers of each item, with `skip`; queries of the layers are unequal. Row i of every result
/// is item i's.
inline std::vector<DistantDecoded> RunLayers(AttentionBackend& backend, const AttentionShape& shape,
                                             std::vector<TwoLayers*> caches, PoolView pool,
                                             Encoding encoding, double skip) {
  const size_t row = static_cast<size_t>(shape.num_q_heads) * shape.head_dim;
  std::vector<DistantDecoded> results(caches.size());
  for (DistantDecoded& result : results) {
    result.low_q.assign(row, NAN);
    result.distant_lse.assign(shape.num_q_heads, NAN);
  }
  for (bool is_upper : {false, true}) {
    std::vector<DecodeItem> items;
    std::vector<float> q;
    for (size_t i = 0; i < caches.size(); ++i) {
      DecodeItem item;
      item.segments = is_upper ? caches[i]->upper : caches[i]->lower;
      item.low_q = results[i].low_q.data();
      item.distant_lse = results[i].distant_lse.data();
      item.skip = skip;
      item.counts = &results[i].counts;
      items.push_back(item);
      const auto seed = static_cast<uint32_t>(caches[i]->lower[1].num_slots);
      const Tensor own = RandomTensor(QueryElement(encoding), row, seed + (is_upper ? 1 : 2));
      for (float x : own.floats()) q.push_back(x);
    }
    std::vector<float> out(q.size(), NAN), lse(items.size() * shape.num_q_heads, NAN);
    backend.DecodeAttention(shape, items, q.data(), pool, out.data(), lse.data());
    for (size_t i = 0; i < caches.size(); ++i) {
      DistantDecoded& result = results[i];
      result.out.insert(result.out.end(), out.begin() + i * row, out.begin() + (i + 1) * row);
      result.lse.insert(result.lse.end(), lse.begin() + i * shape.num_q_heads,
                        lse.begin() + (i + 1) * shape.num_q_heads);
    }
  }
  return results;
}

/// What was stored; the rest is still NaN.
inline std::vector<float> Stored(const std::vector<float>& x) {
  std::vector<float> stored;
  std::copy_if(x.begin(), x.end(), std::back_inserter(stored),
               [](float value) { return !std::isnan(value); });
  return stored;
}

}  // namespace ziggurat
