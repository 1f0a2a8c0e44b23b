// Segments built by hand over a plain buffer, and what the twin tests share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "gtest/gtest.h"
#include "tests/attention/backends.h"
#include "tests/support/cache_formats.h"

namespace ziggurat {

// Sanitizers, and the emulators of a GPU's thread blocks (tests/cuda_emulator) and of tiles.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    defined(ZIGGURAT_CUDA_TWIN) || defined(ZIGGURAT_FEWER_SIZES)
constexpr bool kSlowBuild = true;
#else
constexpr bool kSlowBuild = false;
#endif

/// Every head size that backends are checked for.
inline std::vector<int> HeadSizes() {
  if (kSlowBuild) return {8, 32, 80};
  return {8, 16, 32, 64, 80, 96, 128, 256};
}

inline double Tolerance(ElementType element) { return element == ElementType::kF32 ? 1e-5 : 1e-2; }

inline std::string Name(ElementType element) {
  return element == ElementType::kF32 ? "f32" : "bf16";
}

/// Numbers of threads that make a difference.
inline std::vector<int> ThreadCounts() {
#if defined(ZIGGURAT_CUDA_TWIN)
  return {1};
#elif defined(ZIGGURAT_FEWER_SIZES)
  return {2};
#else
  return {1, 2, 3};
#endif
}

/// The reference, and every level with 1, 2 and 3 threads.
inline std::vector<std::unique_ptr<AttentionBackend>> AllBackends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(MakeReferenceBackend());
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int threads : ThreadCounts()) backends.push_back(*MakeCpuBackend(level, threads));
  }
  return backends;
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
  if (a.size() != ref.size()) return INFINITY;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    if (std::isinf(ref[i]) && a[i] == ref[i]) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(ref[i])) return INFINITY;
    difference = std::max(difference, std::abs(double{a[i]} - ref[i]));
    largest = std::max(largest, std::abs(double{ref[i]}));
  }
  return largest == 0 ? difference : difference / largest;
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
    Sizes()[slab_.data()] = slab_.size();
  }
  ~TestPool() { Sizes().erase(slab_.data()); }
  TestPool(const TestPool&) = delete;
  TestPool& operator=(const TestPool&) = delete;
  /// Of the pool behind a view, for backends that have memory of their own.
  static size_t BytesOf(PoolView view) { return Sizes().at(view.base); }
  PoolView view() { return {slab_.data(), block_bytes_}; }
  const std::vector<std::byte>& bytes() const { return slab_; }
  /// Makes every byte what it was when `bytes` were taken.
  void Restore(const std::vector<std::byte>& bytes) {
    std::copy(bytes.begin(), bytes.end(), slab_.begin());
  }
  const BlockId* Take(size_t count) {
    EXPECT_GE(free_.size(), count) << "the test's pool is too small";
    tables_.emplace_back(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
    return tables_.back().data();
  }

 private:
  static std::map<const std::byte*, size_t>& Sizes() {
    static std::map<const std::byte*, size_t> sizes;
    return sizes;
  }

  size_t block_bytes_;
  std::vector<std::byte> slab_;
  std::vector<BlockId> free_;
  std::deque<std::vector<BlockId>> tables_;  ///< stable addresses
};

// ---- Formats -----------------------------------------------------------------------------------

/// Every encoding that a head size allows; grouped ones with every power of two from 8 on that
/// divides it.
inline std::vector<CacheFormat> EncodedFormats(int head_dim) {
  std::vector<CacheFormat> formats;
  for (Encoding encoding : {Encoding::kF32, Encoding::kBf16, Encoding::kInt8, Encoding::kFp8,
                            Encoding::kInt4, Encoding::kInt2}) {
    if (head_dim * EncodingBits(encoding) % 32 != 0) continue;
    if (!IsGrouped(encoding)) formats.push_back({encoding});
    for (uint16_t group : {8, 16, 32, 64, 128}) {
      if (IsGrouped(encoding) && head_dim % group == 0) formats.push_back({encoding, group});
    }
  }
  return formats;
}
/// Those of codes in groups that are no whole vectors, and that a policy may ask for too.
inline std::vector<CacheFormat> UnevenGroups(int head_dim) {
  std::vector<CacheFormat> formats;
  for (Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
    if (head_dim * EncodingBits(encoding) % 32 != 0) continue;
    for (uint16_t group : {2, 4, 5, 12, 20}) {
      if (head_dim % group == 0) formats.push_back({encoding, group});
    }
  }
  return formats;
}
/// "int4x32", "bf16-merged": fit for the name of a test once '-' is replaced.
inline std::string Name(const CacheFormat& format) {
  std::string name(EncodingName(format.encoding));
  if (IsGrouped(format.encoding)) name.append("x").append(std::to_string(format.group));
  return name + CacheFormatName(format).substr(EncodingName(format.encoding).size());
}
inline int RoundUp(int count, int unit) { return (count + unit - 1) / unit * unit; }

// ---- Segments, laid out by the words of block_manager/segment_view.h ---------------------------

/// Blocks of `plane` for `slots` slots, divided into one area for each of `heads` heads.
inline PlaneView TakePlane(TestPool& pool, const PlaneSpec& plane, int heads, int slots) {
  PlaneView view;
  const size_t units = pool.view().block_bytes / plane.unit_bytes;
  view.slots_per_block = static_cast<uint32_t>(units * plane.tokens_per_unit);
  view.head_stride_bytes = static_cast<uint32_t>(units * (plane.unit_bytes / heads));
  view.unit_bytes =
      plane.tokens_per_unit == 1 ? 0 : static_cast<uint32_t>(plane.unit_bytes / heads);
  view.offset_bytes = 0;
  view.blocks = pool.Take((slots + view.slots_per_block - 1) / view.slots_per_block);
  return view;
}
/// The `index`-th of `areas` areas of a head.
inline PlaneView AreaOfPlane(PlaneView plane, int index, int areas) {
  plane.offset_bytes = plane.head_stride_bytes / areas * index;
  return plane;
}
/// The `index`-th of `parts` parts of each group of a head.
inline PlaneView PartOfGroups(PlaneView plane, int index, int parts) {
  plane.offset_bytes = plane.unit_bytes / parts * index;
  return plane;
}

/// An unwritten segment of `slots` slots; of a merged one, as the lower layer sees it. There is
/// room for whole groups.
inline SegmentView TakeSegment(TestPool& pool, const CacheFormat& format, int first_head, int heads,
                               int head_dim, int slots) {
  SegmentView segment;
  segment.encoding = format.encoding;
  segment.group = format.group;
  segment.first_kv_head = first_head;
  segment.num_kv_heads = heads;
  segment.num_slots = slots;
  const int room = RoundUp(slots, segment.UnitTokens());
  const int sides = format.values_only ? 1 : 2;
  const PlaneList list = PlanesOf(format, heads, head_dim);
  for (int p = 0; p < list.count; ++p) {
    const PlaneView plane = TakePlane(pool, list.planes[p], heads, room);
    switch (list.planes[p].role) {
      case PlaneRole::kCodes:
        if (!format.values_only) segment.keys = AreaOfPlane(plane, 0, 2);
        segment.values = AreaOfPlane(plane, sides - 1, sides);
        break;
      case PlaneRole::kScales: {
        const auto side = IsGrouped(format.encoding) ? PartOfGroups : AreaOfPlane;
        if (!format.values_only) segment.key_scales = side(plane, 0, 2);
        segment.value_scales = side(plane, sides - 1, sides);
        break;
      }
      case PlaneRole::kNorms:
        segment.key_norms = AreaOfPlane(plane, 0, 4);
        segment.value_norms = AreaOfPlane(plane, 1, 4);
        break;
      case PlaneRole::kScores:
        segment.scores = AreaOfPlane(plane, 0, 2);
        segment.positions = AreaOfPlane(plane, 1, 2);
        break;
    }
  }
  return segment;
}
inline SegmentView TakeSegment(TestPool& pool, ElementType element, int first_head, int heads,
                               int head_dim, int slots) {
  return TakeSegment(pool, KeyValueFormat(element), first_head, heads, head_dim, slots);
}

/// The format of codes that a segment has.
inline CacheFormat CodesOf(const SegmentView& s) {
  return {s.encoding, static_cast<uint16_t>(s.group)};
}

/// A segment that holds values only of `heads` heads (0: all of them) and attends with the keys of
/// `other`.
inline SegmentView TakeValuesSegment(TestPool& pool, const SegmentView& other, int head_dim,
                                     int first_head = 0, int heads = 0) {
  if (heads == 0) first_head = other.first_kv_head, heads = other.num_kv_heads;
  SegmentView segment =
      TakeSegment(pool, ValuesOnly(CodesOf(other)), first_head, heads, head_dim, other.num_slots);
  segment.keys = other.keys;
  segment.key_scales = other.key_scales;
  for (PlaneView* plane : {&segment.keys, &segment.key_scales}) {
    plane->offset_bytes += (first_head - other.first_kv_head) * plane->head_stride_bytes;
  }
  segment.use = SegmentUse::kBorrowedKeys;
  return segment;
}

/// A merged segment as the upper layer sees it.
inline SegmentView UpperView(const SegmentView& lower) {
  SegmentView upper = lower;
  upper.key_norms.offset_bytes += lower.key_norms.head_stride_bytes / 2;
  upper.value_norms.offset_bytes += lower.value_norms.head_stride_bytes / 2;
  return upper;
}

/// Address of one channel of a key, or of a value, of plain and per-token encodings.
inline std::byte* KeyAddress(PoolView pool, const SegmentView& s, int head, int slot, int channel) {
  const uint32_t slots = s.keys.slots_per_block;
  const uint32_t bytes = EncodingBits(s.encoding) / 8, x = 4 / bytes;
  const size_t index = (channel / x * slots + slot % slots) * size_t{x} + channel % x;
  return pool.Block(s.keys.blocks[slot / slots]) + s.keys.offset_bytes +
         size_t{s.keys.head_stride_bytes} * (head - s.first_kv_head) + index * bytes;
}
inline std::byte* ValueAddress(PoolView pool, const SegmentView& s, int head, int slot, int channel,
                               int head_dim) {
  const uint32_t slots = s.values.slots_per_block;
  return pool.Block(s.values.blocks[slot / slots]) + s.values.offset_bytes +
         size_t{s.values.head_stride_bytes} * (head - s.first_kv_head) +
         (size_t{slot % slots} * head_dim + channel) * (EncodingBits(s.encoding) / 8);
}
/// Address of a slot's 4 bytes in a plane of norms, scores, positions or per-token scales.
inline std::byte* EntryAddress(PoolView pool, const SegmentView& s, const PlaneView& plane,
                               int head, int slot) {
  return pool.Block(plane.blocks[slot / plane.slots_per_block]) + plane.offset_bytes +
         size_t{plane.head_stride_bytes} * (head - s.first_kv_head) +
         size_t{4} * (slot % plane.slots_per_block);
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

// ---- What segments hold ------------------------------------------------------------------------

/// Writes random keys (if `keys`) and values into every slot of the segment, through the reference
/// backend: of grouped encodings into whole groups; directions of length 1 and norms (of both
/// layers) into a merged one; scores, and the positions 0, 1, ... in any order, into a scored one.
inline void FillSegment(PoolView pool, const SegmentView& s, int head_dim, uint32_t seed,
                        bool keys = true) {
  const AttentionShape shape{s.first_kv_head + s.num_kv_heads, s.first_kv_head + s.num_kv_heads,
                             head_dim, 1};
  const int slots = RoundUp(s.num_slots, s.UnitTokens());
  const size_t rows = static_cast<size_t>(slots) * shape.num_kv_heads;
  const ElementType element =
      s.encoding == Encoding::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  Tensor k = RandomTensor(element, rows * head_dim, seed);
  Tensor v = RandomTensor(element, rows * head_dim, seed + 7);
  const bool merged = s.key_norms.blocks != nullptr;
  for (Tensor* x : {&k, &v}) {
    for (size_t row = 0; merged && row < rows; ++row) {
      double squares = 0;
      for (int c = 0; c < head_dim; ++c) squares += std::pow(x->at(row * head_dim + c), 2);
      for (int c = 0; c < head_dim; ++c) {
        x->set(row * head_dim + c,
               static_cast<float>(x->at(row * head_dim + c) / std::sqrt(squares)));
      }
    }
  }
  const auto reference = MakeReferenceBackend();
  reference->WriteTokens(shape, {element, keys ? k.data() : nullptr, v.data()},
                         TokenChoice::From(0, slots), pool, s, 0);
  std::mt19937 random(seed + 13);
  if (merged) {
    std::uniform_real_distribution<float> norm(0.5f, 8.0f);
    const SegmentView upper = UpperView(s);
    for (int head = s.first_kv_head; head < s.first_kv_head + s.num_kv_heads; ++head) {
      for (int slot = 0; slot < s.num_slots; ++slot) {
        for (const SegmentView* layer : {&s, &upper}) {
          for (const PlaneView* plane : {&layer->key_norms, &layer->value_norms}) {
            Put(ElementType::kF32, EntryAddress(pool, s, *plane, head, slot), norm(random));
          }
        }
      }
    }
  }
  if (s.scores.blocks != nullptr) {
    std::vector<int32_t> positions(slots);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<int32_t> of_heads;
    for (int head = 0; head < s.num_kv_heads; ++head) {
      std::shuffle(positions.begin(), positions.end(), random);
      of_heads.insert(of_heads.end(), positions.begin(), positions.end());
    }
    std::uniform_real_distribution<float> score(0, 3);
    std::vector<float> sums(rows);
    for (float& sum : sums) sum = score(random);
    reference->WriteScores(shape, sums.data(), slots,
                           TokenChoice::Listed(of_heads.data(), slots, slots), pool, s, 0);
  }
}

/// A segment to be made: heads = 0 means all.
struct SegmentSpec {
  CacheFormat format = CacheFormat::kF32;
  int slots = 0;
  int first_head = 0;
  int heads = 0;
};

/// A layer's cache of any formats in a pool of its own, filled with random tokens. The keys of a
/// values-only segment stand in a segment of `lenders`, which is not part of the layer.
struct TestCache {
  TestCache(const AttentionShape& shape, const std::vector<SegmentSpec>& specs, uint32_t seed = 1,
            size_t block_bytes = 0)
      : pool(block_bytes != 0
                 ? block_bytes
                 : CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim),
             BlocksFor(shape, specs, block_bytes), seed) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const SegmentSpec& spec = specs[i];
      const int heads = spec.heads != 0 ? spec.heads : shape.num_kv_heads;
      CacheFormat format = spec.format;
      format.values_only = false;
      SegmentView segment =
          TakeSegment(pool, format, spec.first_head, heads, shape.head_dim, spec.slots);
      FillSegment(pool.view(), segment, shape.head_dim, seed + 100 * static_cast<uint32_t>(i));
      if (spec.format.values_only) {
        segment.use = SegmentUse::kDistantKeys;
        lenders.push_back(segment);
        segment = TakeValuesSegment(pool, segment, shape.head_dim);
        FillSegment(pool.view(), segment, shape.head_dim, seed + 50 + static_cast<uint32_t>(i),
                    false);
      }
      segments.push_back(segment);
    }
  }
  static size_t BlocksFor(const AttentionShape& shape, const std::vector<SegmentSpec>& specs,
                          size_t block_bytes) {
    if (block_bytes == 0) {
      block_bytes = CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim);
    }
    size_t blocks = 0;
    for (const SegmentSpec& spec : specs) {
      CacheFormat format = spec.format;
      format.values_only = false;
      const int heads = spec.heads != 0 ? spec.heads : shape.num_kv_heads;
      const PlaneList list = PlanesOf(format, heads, shape.head_dim);
      const int slots = IsGrouped(format.encoding) ? RoundUp(spec.slots, format.group) : spec.slots;
      for (int p = 0; p < list.count; ++p) {
        blocks += 2 * list.planes[p].BlocksFor(block_bytes, slots);
      }
    }
    return blocks;
  }

  TestPool pool;
  std::deque<SegmentView> lenders;
  std::vector<SegmentView> segments;
};

inline AttentionShape Shape(int q_heads, int kv_heads, int head_dim) {
  return {q_heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace ziggurat
