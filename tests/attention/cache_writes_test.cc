// Plain writes into blocks: exactly the slots that were meant, in the layout of segment_view.h.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

/// What a segment's elements should be; everything else in the pool must stay as it was.
struct Expectation {
  Expectation(TestPool& test_pool, int dim)
      : pool(test_pool), head_dim(dim), before(pool.bytes()) {}
  void Key(const SegmentView& s, int head, int slot, const Tensor& k, size_t from) {
    for (int c = 0; c < head_dim; ++c) {
      PutInto(s.encoding, KeyAddress(pool.view(), s, head, slot, c), k.at(from + c));
    }
  }
  void Value(const SegmentView& s, int head, int slot, const Tensor& v, size_t from) {
    for (int c = 0; c < head_dim; ++c) {
      PutInto(s.encoding, ValueAddress(pool.view(), s, head, slot, c, head_dim), v.at(from + c));
    }
  }
  void PutInto(Encoding encoding, std::byte* address, float value) {
    Put(encoding == Encoding::kF32 ? ElementType::kF32 : ElementType::kBf16,
        before.data() + (address - pool.view().base), value);
  }
  TestPool& pool;
  int head_dim;
  std::vector<std::byte> before;
};

class CacheWrites : public testing::TestWithParam<std::tuple<ElementType, ElementType, int>> {};

TEST_P(CacheWrites, GatherEachHeadsTokensFromASlotWithinABlock) {
  const auto [element, stored, head_dim] = GetParam();
  constexpr int kTokens = 200, kHeads = 3, kCount = 71, kFirstSlot = 13;
  const AttentionShape shape = Shape(6, kHeads, head_dim);
  const Tensor k = RandomTensor(element, kTokens * kHeads * head_dim, 1);
  const Tensor v = RandomTensor(element, kTokens * kHeads * head_dim, 2);
  for (auto& backend : AllBackends()) {
    for (int first_head : {0, 1}) {
      TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim), 40);
      const int heads = kHeads - first_head;
      const SegmentView s = TakeSegment(pool, stored, first_head, heads, head_dim, 100);
      std::vector<int32_t> indices(heads * kCount);
      std::mt19937 random(5);
      for (int32_t& index : indices) index = static_cast<int32_t>(random() % kTokens);
      Expectation expected(pool, head_dim);
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < kCount; ++i) {
          const size_t from =
              (static_cast<size_t>(indices[head * kCount + i]) * kHeads + first_head + head) *
              head_dim;
          expected.Key(s, first_head + head, kFirstSlot + i, k, from);
          expected.Value(s, first_head + head, kFirstSlot + i, v, from);
        }
      }
      backend->WriteTokens(shape, {element, k.data(), v.data()},
                           TokenChoice::Listed(indices.data(), kCount, kCount), pool.view(), s,
                           kFirstSlot);
      EXPECT_TRUE(pool.bytes() == expected.before) << backend->name() << " head " << first_head;
    }
  }
}

TEST_P(CacheWrites, TakeARangeOfRowsForAllHeads) {
  const auto [element, stored, head_dim] = GetParam();
  constexpr int kTokens = 60, kHeads = 2;
  const AttentionShape shape = Shape(2, kHeads, head_dim);
  const Tensor k = RandomTensor(element, kTokens * kHeads * head_dim, 1);
  const Tensor v = RandomTensor(element, kTokens * kHeads * head_dim, 2);
  for (auto& backend : AllBackends()) {
    TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim), 40);
    const SegmentView s = TakeSegment(pool, stored, 0, kHeads, head_dim, 50);
    // Values only: the keys are another layer's and stay as they are.
    const SegmentView upper = TakeValuesSegment(pool, s, head_dim);
    Expectation expected(pool, head_dim);
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < 50; ++i) {
        const size_t from = (static_cast<size_t>(7 + i) * kHeads + head) * head_dim;
        expected.Key(s, head, i, k, from);
        expected.Value(s, head, i, v, from);
        expected.Value(upper, head, i, k, from);
      }
    }
    backend->WriteTokens(shape, {element, k.data(), v.data()}, TokenChoice::From(7, 50),
                         pool.view(), s, 0);
    backend->WriteTokens(shape, {element, nullptr, k.data()}, TokenChoice::From(7, 50), pool.view(),
                         upper, 0);
    EXPECT_TRUE(pool.bytes() == expected.before) << backend->name();
  }
}

TEST(TokenChoice, TakesTheFirstOfEachHeadsList) {
  const int32_t of_head[] = {5, 3, 9, 7, 2, 8};
  const TokenChoice listed = TokenChoice::Listed(of_head, 3, 2);
  EXPECT_EQ(listed.At(0, 1), 3);
  EXPECT_EQ(listed.At(1, 0), 7);
  EXPECT_EQ(listed.At(1, 1), 2);
  EXPECT_EQ(TokenChoice::From(4, 2).At(1, 1), 5);
}

// The numbers of docs/block_layout.md, section "A worked example".
TEST(BlockLayout, IsThatOfTheWorkedExample) {
  constexpr int kHeads = 2, kDim = 32, kHead = 1, kChannel = 7, kSlot = 21;
  struct Example {
    ElementType element;
    size_t block, key_byte, value_byte;
  };
  for (const Example& example :
       {Example{ElementType::kBf16, 1, 2262, 3406}, Example{ElementType::kF32, 2, 2292, 3740}}) {
    Tensor k(example.element, 22 * kHeads * kDim), v = k;
    k.set((kSlot * kHeads + kHead) * kDim + kChannel, 1.5f);
    v.set((kSlot * kHeads + kHead) * kDim + kChannel, -2.5f);
    for (auto& backend : AllBackends()) {
      TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, kDim), 8);
      const SegmentView s = TakeSegment(pool, example.element, 0, kHeads, kDim, 22);
      backend->WriteTokens(Shape(4, kHeads, kDim), {example.element, k.data(), v.data()},
                           TokenChoice::From(0, 22), pool.view(), s, 0);
      const std::byte* block = pool.view().Block(s.keys.blocks[example.block]);
      EXPECT_EQ(Get(example.element, block + example.key_byte), 1.5f) << backend->name();
      EXPECT_EQ(Get(example.element, block + example.value_byte), -2.5f) << backend->name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, CacheWrites,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 80, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_to_" +
                                  Name(std::get<1>(instance.param)) + "_" +
                                  std::to_string(std::get<2>(instance.param));
                         });

}  // namespace
}  // namespace ziggurat
