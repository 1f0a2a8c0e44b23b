// Writes into segments of every encoding: where codes and scales lie, what they stand for, and that
// the backends are twins bit for bit.

#include <bit>

#include "attention/fp8.h"
#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

/// One number of one side of a segment, decoded by the words of block_manager/segment_view.h alone.
struct Reader {
  enum Side { kKeys, kValues };
  struct Number {
    double value;
    double step;  ///< from this code's number to the next one's
  };

  template <typename T>
  static T Load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  Number Get(Side side, int head, int slot, int c) const {
    const int bits = EncodingBits(s.encoding), x = 32 / bits;
    const PlaneView& plane = side == kKeys ? s.keys : s.values;
    const size_t slots = plane.slots_per_block, lane = slot % slots;
    const std::byte* area = pool.Block(plane.blocks[slot / slots]) +
                            size_t{plane.head_stride_bytes} * (head - s.first_kv_head) +
                            plane.offset_bytes;
    const size_t bit = side == kKeys ? (c / x * slots + lane) * 32 + c % x * bits
                                     : lane * head_dim * bits + size_t{1} * c * bits;
    const std::byte* at = area + bit / 8;
    if (s.encoding == Encoding::kF32) return {Load<float>(at), 0};
    if (s.encoding == Encoding::kBf16) {
      const double value = Bf16ToFloat(Load<uint16_t>(at));
      return {value, std::abs(value) * 0x1p-7};
    }
    const int code = Load<uint8_t>(at) >> bit % 8 & ((1 << bits) - 1);
    if (s.encoding == Encoding::kInt8 || s.encoding == Encoding::kFp8) {
      const float scale = Load<float>(
          EntryAddress(pool, s, side == kKeys ? s.key_scales : s.value_scales, head, slot));
      if (s.encoding == Encoding::kInt8) return {scale * static_cast<int8_t>(code), scale};
      const double number = E4m3ToFloat(static_cast<uint8_t>(code));
      return {scale * number, scale * std::max(std::abs(number) / 8, 0x1p-9)};
    }
    const PlaneView& scales = side == kKeys ? s.key_scales : s.value_scales;
    const size_t per_block = scales.slots_per_block;
    const std::byte* unit = pool.Block(scales.blocks[slot / per_block]) + scales.offset_bytes +
                            size_t{scales.head_stride_bytes} * (head - s.first_kv_head) +
                            slot % per_block / s.group * scales.unit_bytes;
    const int in_group = slot % s.group;
    const int index = side == kKeys ? c : in_group * (head_dim / s.group) + c / s.group;
    const double scale = Bf16ToFloat(Load<uint16_t>(unit + 2 * index));
    return {scale * code + Bf16ToFloat(Load<uint16_t>(unit + 2 * (head_dim + index))), scale};
  }

  PoolView pool;
  const SegmentView& s;
  int head_dim;
};

/// Which row of the workspace each head's slots hold.
struct Rows {
  TokenChoice list() const { return TokenChoice::Listed(of_head.data(), count, count); }
  int at(int head, int i) const { return of_head[head * count + i]; }
  int count;
  std::vector<int32_t> of_head;
};

Rows RandomRows(int heads, int count, int tokens, uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows{count, std::vector<int32_t>(static_cast<size_t>(heads) * count)};
  for (int32_t& row : rows.of_head) row = static_cast<int32_t>(random() % tokens);
  return rows;
}

class CodedWrites : public testing::TestWithParam<int> {
 protected:
  static constexpr int kTokens = 300, kHeads = 3;
  int head_dim() const { return GetParam(); }
  AttentionShape shape() const { return Shape(2 * kHeads, kHeads, head_dim()); }
  size_t block_bytes() const { return CacheGeometry::DefaultBlockBytes(kHeads, head_dim()); }
  Tensor RandomRowsOf(ElementType element, uint32_t seed) const {
    return RandomTensor(element, static_cast<size_t>(kTokens) * kHeads * head_dim(), seed, 3);
  }
};

TEST_P(CodedWrites, LieWhereTheLayoutSaysAndAreWithinHalfAStep) {
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    for (int first_head : {0, 1}) {
      const int heads = kHeads - first_head, unit = std::max<int>(format.group, 1);
      const int count = RoundUp(131, unit), first_slot = 2 * unit;
      const Tensor k = RandomRowsOf(ElementType::kF32, 1), v = RandomRowsOf(ElementType::kF32, 2);
      const Rows rows = RandomRows(heads, count, kTokens, 3);
      TestPool pool(block_bytes(), 300);
      const SegmentView s =
          TakeSegment(pool, format, first_head, heads, head_dim(), count + first_slot);
      const auto reference = MakeReferenceBackend();
      reference->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()}, rows.list(),
                             pool.view(), s, first_slot);
      const Reader reader{pool.view(), s, head_dim()};
      double worst = 0;  // in steps
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < count; ++i) {
          const size_t from =
              (static_cast<size_t>(rows.at(head, i)) * kHeads + first_head + head) * head_dim();
          for (int c = 0; c < head_dim(); ++c) {
            for (auto side : {Reader::kKeys, Reader::kValues}) {
              const double x = (side == Reader::kKeys ? k : v).at(from + c);
              const auto stored = reader.Get(side, first_head + head, first_slot + i, c);
              const double error = std::abs(stored.value - x);
              if (stored.step > 0) {
                worst = std::max(worst, error / stored.step);
              } else {
                ASSERT_EQ(stored.value, x) << Name(format);
              }
            }
          }
        }
      }
      // Grouped: the lowest and the highest of a group may be out of reach, since scale and zero
      // are bf16; but by less than half a step where the numbers of a group are not all alike.
      EXPECT_LE(worst, 0.5 + 1e-3) << Name(format);
      EXPECT_GE(worst, IsPlain(format.encoding) ? 0 : 0.4) << Name(format) << ": too good";
    }
  }
}

TEST_P(CodedWrites, AreReadBackAsTheyLie) {
  std::vector<CacheFormat> formats = EncodedFormats(head_dim());
  for (const CacheFormat& format : UnevenGroups(head_dim())) formats.push_back(format);
  for (const CacheFormat& format : formats) {
    const int slots = RoundUp(75, std::max<int>(format.group, 1)), first = 3;
    TestCache cache(shape(), {{format, slots}});
    const SegmentView& s = cache.segments[0];
    const Reader reader{cache.pool.view(), s, head_dim()};
    for (auto& backend : AllBackends()) {
      const size_t size = static_cast<size_t>(slots - first) * kHeads * head_dim();
      std::vector<float> k(size, NAN), v(size, NAN);
      backend->ReadTokens(shape(), cache.pool.view(), s, first, slots - first, k.data(), v.data());
      size_t i = 0;
      for (int slot = first; slot < slots; ++slot) {
        for (int head = 0; head < kHeads; ++head) {
          for (int c = 0; c < head_dim(); ++c, ++i) {
            ASSERT_EQ(k[i], static_cast<float>(reader.Get(Reader::kKeys, head, slot, c).value))
                << Name(format) << " " << backend->name();
            ASSERT_EQ(v[i], static_cast<float>(reader.Get(Reader::kValues, head, slot, c).value))
                << Name(format) << " " << backend->name();
          }
        }
      }
    }
  }
}

/// The pool after a backend wrote rows into every format, from slot 2 * unit on.
std::vector<std::byte> Written(AttentionBackend& backend, const AttentionShape& shape,
                               const CacheFormat& format, int first_head, const Tensor& k,
                               const Tensor& v, const Rows* rows, int count) {
  const int heads = shape.num_kv_heads - first_head, unit = std::max<int>(format.group, 1);
  const int slots = count + 2 * unit;
  TestPool pool(CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim),
                TestCache::BlocksFor(shape, {{format, slots, first_head, heads}}, 0));
  const SegmentView s = TakeSegment(pool, format, first_head, heads, shape.head_dim, slots);
  backend.WriteTokens(shape, {k.element, k.data(), v.data()},
                      rows == nullptr ? TokenChoice::From(5, count) : rows->list(), pool.view(), s,
                      2 * unit);
  return pool.bytes();
}

TEST_P(CodedWrites, AreTheSameBitForBitInEveryBackend) {
  const auto backends = AllBackends();
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const Tensor k = RandomRowsOf(element, 1), v = RandomRowsOf(element, 2);
    for (const CacheFormat& format : EncodedFormats(head_dim())) {
      // Odd counts, and enough of them for several threads.
      for (int wanted : {1, 37, 131}) {
        const int count = RoundUp(wanted, std::max<int>(format.group, 1));
        const Rows rows = RandomRows(kHeads, count, kTokens, 3);
        for (int first_head : {0, 1}) {
          const Rows* of_heads = wanted == 37 ? nullptr : &rows;  // a range of rows for all heads
          const auto expected =
              Written(*backends[0], shape(), format, first_head, k, v, of_heads, count);
          for (size_t b = 1; b < backends.size(); ++b) {
            EXPECT_TRUE(Written(*backends[b], shape(), format, first_head, k, v, of_heads, count) ==
                        expected)
                << Name(format) << " of " << Name(element) << " count " << count << " "
                << backends[b]->name();
          }
        }
      }
    }
  }
}

TEST_P(CodedWrites, InGroupsThatAreNoWholeVectorsAreTheSameToo) {
  const auto backends = AllBackends();
  const Tensor k = RandomRowsOf(ElementType::kF32, 1), v = RandomRowsOf(ElementType::kF32, 2);
  for (const CacheFormat& format : UnevenGroups(head_dim())) {
    const int count = RoundUp(37, format.group);
    const Rows rows = RandomRows(kHeads, count, kTokens, 3);
    const auto expected = Written(*backends[0], shape(), format, 0, k, v, &rows, count);
    for (size_t b = 1; b < backends.size(); ++b) {
      EXPECT_TRUE(Written(*backends[b], shape(), format, 0, k, v, &rows, count) == expected)
          << Name(format) << " " << backends[b]->name();
    }
  }
}

TEST_P(CodedWrites, OfWhatIsNoNumberSpreadNoFurtherThanItsGroup) {
  const float wrong[] = {NAN, INFINITY, -INFINITY, 3e38f};
  const auto backends = AllBackends();
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    const int unit = std::max<int>(format.group, 1), count = RoundUp(64, unit);
    Tensor k = RandomRowsOf(ElementType::kF32, 1), v = RandomRowsOf(ElementType::kF32, 2);
    // Token 5 + 10 of head 1 has all of them.
    constexpr int kBadToken = 10, kBadHead = 1;
    for (size_t i = 0; i < std::size(wrong); ++i) {
      const size_t at = ((5 + kBadToken) * kHeads + kBadHead) * head_dim() + i;
      k.set(at, wrong[i]);
      v.set(at, wrong[i]);
    }
    TestPool pool(block_bytes(), 50);
    const SegmentView s = TakeSegment(pool, format, 0, kHeads, head_dim(), count);
    backends[0]->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()},
                             TokenChoice::From(5, count), pool.view(), s, 0);
    for (size_t b = 1; b < backends.size(); ++b) {
      TestPool other(block_bytes(), 50);
      const SegmentView t = TakeSegment(other, format, 0, kHeads, head_dim(), count);
      backends[b]->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()},
                               TokenChoice::From(5, count), other.view(), t, 0);
      EXPECT_TRUE(other.bytes() == pool.bytes()) << Name(format) << " " << backends[b]->name();
    }
    const Reader reader{pool.view(), s, head_dim()};
    for (int head = 0; head < kHeads; ++head) {
      for (int slot = 0; slot < count; ++slot) {
        for (int c = 0; c < head_dim(); ++c) {
          const bool bad_key = head == kBadHead && slot / unit == kBadToken / unit &&
                               (IsPerToken(format.encoding) || c < 4);
          const bool bad_value = head == kBadHead && slot == kBadToken &&
                                 (IsPerToken(format.encoding) || c / unit == 0 || c < 4);
          if (!bad_key) {
            ASSERT_TRUE(std::isfinite(reader.Get(Reader::kKeys, head, slot, c).value))
                << Name(format) << " key " << head << " " << slot << " " << c;
          }
          if (!bad_value) {
            ASSERT_TRUE(std::isfinite(reader.Get(Reader::kValues, head, slot, c).value))
                << Name(format) << " value " << head << " " << slot << " " << c;
          }
        }
      }
    }
  }
}

TEST_P(CodedWrites, OfValuesAloneLeaveTheBorrowedKeysAsTheyAre) {
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    const int count = RoundUp(50, std::max<int>(format.group, 1));
    const Tensor k = RandomRowsOf(ElementType::kF32, 1), v = RandomRowsOf(ElementType::kF32, 2);
    for (auto& backend : AllBackends()) {
      TestPool pool(block_bytes(), 50);
      const SegmentView lower = TakeSegment(pool, format, 0, kHeads, head_dim(), count);
      const SegmentView upper = TakeValuesSegment(pool, lower, head_dim(), 1, 2);
      backend->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()},
                           TokenChoice::From(0, count), pool.view(), lower, 0);
      std::vector<double> keys;
      const auto read_keys = [&] {
        std::vector<double> numbers;
        const Reader reader{pool.view(), upper, head_dim()};
        for (int slot = 0; slot < count; ++slot) {
          numbers.push_back(reader.Get(Reader::kKeys, 2, slot, slot % head_dim()).value);
        }
        return numbers;
      };
      const std::vector<double> before = read_keys();
      const std::vector<std::byte> bytes_before = pool.bytes();
      backend->WriteTokens(shape(), {ElementType::kF32, nullptr, v.data()},
                           TokenChoice::From(3, count), pool.view(), upper, 0);
      // Not even where keys are given.
      backend->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()},
                           TokenChoice::From(3, count), pool.view(), upper, 0);
      EXPECT_EQ(read_keys(), before) << Name(format) << " " << backend->name();
      EXPECT_FALSE(pool.bytes() == bytes_before) << "nothing was written";
      // The values are those of the second write.
      const Reader lower_reader{pool.view(), lower, head_dim()};
      const Reader upper_reader{pool.view(), upper, head_dim()};
      const int unit = std::max<int>(format.group, 1);
      if (count <= 2 * unit) continue;  // groups start elsewhere: other codes
      EXPECT_EQ(upper_reader.Get(Reader::kValues, 1, 0, 0).value,
                lower_reader.Get(Reader::kValues, 1, 3, 0).value)
          << Name(format) << " " << backend->name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, CodedWrites, testing::ValuesIn(HeadSizes()),
                         [](const auto& instance) { return std::to_string(instance.param); });

}  // namespace
}  // namespace ziggurat
