// The int4 numbers of docs/block_layout.md, section "A worked example": tokens that every backend
// writes into a table's segment lie at exactly these bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attention/bfloat16.h"
#include "block_manager/layer_block_table.h"
#include "tests/attention/backends.h"

namespace ziggurat {
namespace {

constexpr int kHeads = 2, kDim = 32, kGroup = 32, kTokens = 96;
constexpr int kHead = 1, kChannel = 7, kSlot = 85;

/// [kTokens, kHeads, kDim] numbers, all `background`.
struct Tokens {
  explicit Tokens(float background) : numbers(size_t{kTokens} * kHeads * kDim, background) {}
  float& at(int token, int channel) { return numbers[(token * kHeads + kHead) * kDim + channel]; }
  std::vector<float> numbers;
};

float Bf16At(const std::byte* block, size_t byte) {
  uint16_t bits = 0;
  std::memcpy(&bits, block + byte, sizeof(bits));
  return Bf16ToFloat(bits);
}

TEST(WorkedExampleTest, Int4TokensLieAtTheDocumentedBytes) {
  const CacheGeometry geometry{1, kHeads, kDim, CacheGeometry::DefaultBlockBytes(kHeads, kDim)};
  ASSERT_EQ(geometry.block_bytes, 4096u);
  const CacheFormat format = {Encoding::kInt4, kGroup};
  ASSERT_TRUE(geometry.CheckFormat(format).ok());

  // The third group of keys, tokens 64 .. 95, has scale 0.5 and zero -1 in this channel; the one
  // group of values of token 85 has scale 0.25 and zero 2. Every other group is constant.
  Tokens k(-1), v(2);
  k.at(95, kChannel) = -1 + 15 * 0.5f;
  k.at(kSlot, kChannel) = -1 + 11 * 0.5f;
  v.at(kSlot, 31) = 2 + 15 * 0.25f;
  v.at(kSlot, kChannel) = 2 + 6 * 0.25f;

  for (const auto& backend : BackendsWith(2)) {
    SCOPED_TRACE(std::string(backend->name()));
    const auto pool = *BlockPool::Create(8, geometry.block_bytes);
    LayerBlockTable table(pool.get(), &geometry);
    ASSERT_TRUE(table.Extend(table.AddSegment({.format = format}), kTokens).ok());
    const SegmentView& view = table.view()[0];
    EXPECT_EQ(table.blocks(), 2u + 1u);
    backend->WriteTokens({kHeads, kHeads, kDim, 1},
                         {ElementType::kF32, k.numbers.data(), v.numbers.data()},
                         TokenChoice::From(0, kTokens), pool->view(), view, 0);

    const std::byte* codes = pool->view().Block(view.keys.blocks[1]);
    EXPECT_EQ(codes[2135], std::byte{11 << 4});  // channel 6 below it: code 0
    EXPECT_EQ(codes[3411], std::byte{6 << 4});
    const std::byte* scales = pool->view().Block(view.key_scales.blocks[0]);
    EXPECT_EQ(Bf16At(scales, 2574), 0.5f);
    EXPECT_EQ(Bf16At(scales, 2638), -1.0f);
    EXPECT_EQ(Bf16At(scales, 2730), 0.25f);
    EXPECT_EQ(Bf16At(scales, 2794), 2.0f);
  }
}

}  // namespace
}  // namespace ziggurat
