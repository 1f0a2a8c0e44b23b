// Writes into blocks: exactly the slots that were meant, in the layout of segment_view.h.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

std::vector<std::unique_ptr<AttentionBackend>> AllBackends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(MakeReferenceBackend());
  for (CpuLevel level : Levels()) {
    for (int threads : {1, 2, 3}) backends.push_back(*MakeCpuBackend(level, threads));
  }
  return backends;
}

/// What a segment's elements should be; everything else in the pool must stay as it was.
struct Expectation {
  Expectation(TestPool& test_pool, int dim)
      : pool(test_pool), head_dim(dim), before(pool.bytes()) {}
  void Key(const SegmentView& s, int head, int slot, const Tensor& k, size_t from) {
    for (int c = 0; c < head_dim; ++c) {
      PutInto(s.element, KeyAddress(pool.view(), s, head, slot, c), k.at(from + c));
    }
  }
  void Value(const SegmentView& s, int head, int slot, const Tensor& v, size_t from) {
    for (int c = 0; c < head_dim; ++c) {
      PutInto(s.element, ValueAddress(pool.view(), s, head, slot, c, head_dim), v.at(from + c));
    }
  }
  void PutInto(ElementType element, std::byte* address, float value) {
    Put(element, before.data() + (address - pool.view().base), value);
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
      backend->WriteTokens(shape, element, k.data(), v.data(), indices.data(), 0, kCount,
                           pool.view(), s, kFirstSlot);
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
    backend->WriteTokens(shape, element, k.data(), v.data(), nullptr, 7, 50, pool.view(), s, 0);
    backend->WriteTokens(shape, element, nullptr, k.data(), nullptr, 7, 50, pool.view(), upper, 0);
    EXPECT_TRUE(pool.bytes() == expected.before) << backend->name();
  }
}

TEST_P(CacheWrites, PutOneTokenOfEachItemWhereItBelongs) {
  const auto [element, stored, head_dim] = GetParam();
  (void)element;  // a step's keys and values are f32
  constexpr int kHeads = 2, kItems = 9;
  const AttentionShape shape = Shape(4, kHeads, head_dim);
  const Tensor k = RandomTensor(ElementType::kF32, kItems * kHeads * head_dim, 1);
  const Tensor v = RandomTensor(ElementType::kF32, kItems * kHeads * head_dim, 2);
  for (auto& backend : AllBackends()) {
    TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim), 200);
    std::vector<std::vector<SegmentView>> lists;
    std::vector<DecodeItem> items;
    std::vector<int> segment_index, slots;
    Expectation expected(pool, head_dim);
    for (int i = 0; i < kItems; ++i) {
      lists.push_back({TakeSegment(pool, stored, 0, kHeads, head_dim, 20 + i),
                       TakeSegment(pool, stored, 1, 1, head_dim, 33 + i)});
      segment_index.push_back(i % 2);
      slots.push_back(19 + i);
      const SegmentView& s = lists[i][segment_index[i]];
      for (int head = s.first_kv_head; head < s.first_kv_head + s.num_kv_heads; ++head) {
        const size_t from = (static_cast<size_t>(i) * kHeads + head) * head_dim;
        expected.Key(s, head, slots[i], k, from);
        expected.Value(s, head, slots[i], v, from);
      }
    }
    for (const auto& list : lists) items.push_back({list});
    backend->WriteStep(shape, items, segment_index, slots, static_cast<const float*>(k.data()),
                       static_cast<const float*>(v.data()), pool.view());
    EXPECT_TRUE(pool.bytes() == expected.before) << backend->name();
  }
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
      backend->WriteTokens(Shape(4, kHeads, kDim), example.element, k.data(), v.data(), nullptr, 0,
                           22, pool.view(), s, 0);
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
