// Segments built by hand over a plain buffer, and what the twin tests share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "gtest/gtest.h"

namespace ziggurat {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlowBuild = true;
#else
constexpr bool kSlowBuild = false;
#endif

inline double Tolerance(ElementType element) { return element == ElementType::kF32 ? 1e-5 : 1e-2; }

inline std::string Name(ElementType element) {
  return element == ElementType::kF32 ? "f32" : "bf16";
}

/// The levels that this machine can run.
inline std::vector<CpuLevel> Levels() {
  std::vector<CpuLevel> levels;
  for (CpuLevel level : {CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16}) {
    if (MakeCpuBackend(level, 1).ok()) levels.push_back(level);
  }
  return levels;
}

/// A tensor of elements, kept in memory as the kernels see it.
struct Tensor {
  ElementType element = ElementType::kF32;
  std::vector<std::byte> bytes;

  Tensor() = default;
  Tensor(ElementType type, size_t count) : element(type), bytes(count * ElementBytes(type)) {}
  size_t size() const { return bytes.size() / ElementBytes(element); }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  float at(size_t i) const {
    if (element == ElementType::kBf16) {
      return Bf16ToFloat(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
    }
    return reinterpret_cast<const float*>(bytes.data())[i];
  }
  void set(size_t i, float value) {
    if (element == ElementType::kBf16) {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = FloatToBf16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  std::vector<float> floats() const {
    std::vector<float> out(size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = at(i);
    return out;
  }
};

inline Tensor RandomTensor(ElementType element, size_t count, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  Tensor tensor(element, count);
  for (size_t i = 0; i < count; ++i) tensor.set(i, normal(random));
  return tensor;
}

/// max|a - ref| / max|ref|; infinity where a number is missing. -infinity equals itself.
inline double Deviation(const std::vector<float>& a, const std::vector<float>& ref) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    if (std::isinf(ref[i]) && a[i] == ref[i]) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(ref[i])) return INFINITY;
    difference = std::max(difference, std::abs(double{a[i]} - ref[i]));
    largest = std::max(largest, std::abs(double{ref[i]}));
  }
  return a.size() != ref.size() ? INFINITY : largest == 0 ? difference : difference / largest;
}

/// The largest deviation seen, printed when the case family is done.
struct LargestDeviation {
  explicit LargestDeviation(std::string text) : what(std::move(text)) {}
  ~LargestDeviation() { std::printf("[ deviation ] %-44s %.2e\n", what.c_str(), largest); }
  void See(double deviation) { largest = std::max(largest, deviation); }
  std::string what;
  double largest = 0;
};

/// A pool whose every byte is 0xff, which is NaN in f32 and in bf16: whatever a kernel reads
/// without being allowed to shows in its result.
class TestPool {
 public:
  TestPool(size_t block_bytes, size_t num_blocks, uint32_t seed = 1)
      : block_bytes_(block_bytes),
        slab_(block_bytes * num_blocks, std::byte{0xff}),
        free_(num_blocks) {
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(seed));  // neighbours in no segment
  }
  PoolView view() { return {slab_.data(), block_bytes_}; }
  const std::vector<std::byte>& bytes() const { return slab_; }
  const BlockId* Take(size_t count) {
    EXPECT_GE(free_.size(), count) << "the test's pool is too small";
    tables_.emplace_back(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
    return tables_.back().data();
  }

 private:
  size_t block_bytes_;
  std::vector<std::byte> slab_;
  std::vector<BlockId> free_;
  std::deque<std::vector<BlockId>> tables_;  ///< stable addresses
};

/// A plane of `parts` vectors (K and V: 2, V: 1) per token for `heads` heads.
inline PlaneView TakePlane(TestPool& pool, ElementType element, int heads, int head_dim, int slots,
                           int parts, int part) {
  PlaneView plane;
  const size_t token_bytes = head_dim * ElementBytes(element);
  plane.slots_per_block =
      static_cast<uint32_t>(pool.view().block_bytes / (token_bytes * heads * parts));
  plane.head_stride_bytes = static_cast<uint32_t>(plane.slots_per_block * token_bytes * parts);
  plane.offset_bytes = static_cast<uint32_t>(plane.slots_per_block * token_bytes * part);
  plane.blocks = pool.Take((slots + plane.slots_per_block - 1) / plane.slots_per_block);
  return plane;
}

/// An unwritten segment of `slots` slots with keys and values in the same blocks.
inline SegmentView TakeSegment(TestPool& pool, ElementType element, int first_head, int heads,
                               int head_dim, int slots) {
  SegmentView segment;
  segment.element = element;
  segment.first_kv_head = first_head;
  segment.num_kv_heads = heads;
  segment.num_slots = slots;
  segment.keys = TakePlane(pool, element, heads, head_dim, slots, 2, 0);
  segment.values = segment.keys;
  segment.values.offset_bytes = segment.keys.slots_per_block * head_dim * ElementBytes(element);
  return segment;
}

/// A segment that holds values only and attends with the keys of `other`.
inline SegmentView TakeValuesSegment(TestPool& pool, const SegmentView& other, int head_dim) {
  SegmentView segment = other;
  segment.values =
      TakePlane(pool, other.element, other.num_kv_heads, head_dim, other.num_slots, 1, 0);
  return segment;
}

/// Address of one channel of a key, or of a value, by the words of block_manager/segment_view.h.
inline std::byte* KeyAddress(PoolView pool, const SegmentView& s, int head, int slot, int channel) {
  const uint32_t slots = s.keys.slots_per_block;
  const uint32_t x = 4 / static_cast<uint32_t>(ElementBytes(s.element));
  const size_t index = (channel / x * slots + slot % slots) * size_t{x} + channel % x;
  return pool.Block(s.keys.blocks[slot / slots]) + s.keys.offset_bytes +
         size_t{s.keys.head_stride_bytes} * (head - s.first_kv_head) +
         index * ElementBytes(s.element);
}
inline std::byte* ValueAddress(PoolView pool, const SegmentView& s, int head, int slot, int channel,
                               int head_dim) {
  const uint32_t slots = s.values.slots_per_block;
  return pool.Block(s.values.blocks[slot / slots]) + s.values.offset_bytes +
         size_t{s.values.head_stride_bytes} * (head - s.first_kv_head) +
         (size_t{slot % slots} * head_dim + channel) * ElementBytes(s.element);
}
inline void Put(ElementType element, std::byte* to, float value) {
  const uint16_t half = FloatToBf16(value);
  if (element == ElementType::kF32) {
    std::memcpy(to, &value, 4);
  } else {
    std::memcpy(to, &half, 2);
  }
}
inline float Get(ElementType element, const std::byte* from) {
  float value;
  uint16_t half;
  if (element == ElementType::kF32) {
    std::memcpy(&value, from, 4);
    return value;
  }
  std::memcpy(&half, from, 2);
  return Bf16ToFloat(half);
}

/// Writes random keys (if `keys`) and values into every slot of the segment.
inline void FillSegment(PoolView pool, const SegmentView& s, int head_dim, uint32_t seed,
                        bool keys = true) {
  const size_t count = static_cast<size_t>(s.num_kv_heads) * s.num_slots * head_dim;
  const Tensor k = RandomTensor(s.element, count, seed),
               v = RandomTensor(s.element, count, seed + 7);
  size_t i = 0;
  for (int head = s.first_kv_head; head < s.first_kv_head + s.num_kv_heads; ++head) {
    for (int slot = 0; slot < s.num_slots; ++slot) {
      for (int c = 0; c < head_dim; ++c, ++i) {
        if (keys) Put(s.element, KeyAddress(pool, s, head, slot, c), k.at(i));
        Put(s.element, ValueAddress(pool, s, head, slot, c, head_dim), v.at(i));
      }
    }
  }
}

inline AttentionShape Shape(int q_heads, int kv_heads, int head_dim) {
  return {q_heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace ziggurat
