// What the tests of block tables share: a small pool and a geometry of two layers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "block_manager/sequence_cache.h"
#include "tests/block_manager/format_list.h"
#include "tests/block_manager/table_snapshot.h"

namespace ziggurat {

inline constexpr int kKvHeads = 4;
inline constexpr int kHeadDim = 32;
inline constexpr size_t kBlockBytes = 64 * kKvHeads * kHeadDim;  // 16 tokens of bf16 K and V

/// 64 tokens of codes a block, 256 of scales.
inline constexpr CacheFormat kInt4 = {Encoding::kInt4, 32};

class TableFixture : public ::testing::Test {
 protected:
  void MakePool(size_t blocks) {
    pool_ = *BlockPool::Create(blocks, kBlockBytes);
    ASSERT_TRUE(geometry_.Validate().ok());
  }
  void SetUp() override { MakePool(64); }

  LayerBlockTable MakeTable() { return LayerBlockTable(pool_.get(), &geometry_); }

  static std::vector<int> Append(LayerBlockTable& table, int segment, int tokens) {
    std::vector<int> slots;
    for (int i = 0; i < tokens; ++i) {
      const absl::StatusOr<int> slot = table.AppendSlot(segment);
      EXPECT_TRUE(slot.ok()) << slot.status();
      slots.push_back(slot.value_or(-1));
    }
    return slots;
  }

  size_t BlocksOf(const CacheFormat& format, int slots, int heads = kKvHeads) const {
    return ExpectedBlocks(format, heads, kHeadDim, kBlockBytes, static_cast<size_t>(slots));
  }

  /// Every table is sound, and the pool's counts are exactly the references that they hold.
  void ExpectConserved(std::initializer_list<const LayerBlockTable*> tables) const {
    std::vector<BlockId> owners;
    for (const LayerBlockTable* table : tables) {
      EXPECT_TRUE(table->CheckIntegrity().ok()) << table->CheckIntegrity();
      table->AppendReferences(&owners);
    }
    EXPECT_TRUE(pool_->CheckIntegrity(owners).ok()) << pool_->CheckIntegrity(owners);
  }

  CacheGeometry geometry_{2, kKvHeads, kHeadDim, kBlockBytes};
  std::unique_ptr<BlockPool> pool_;
};

}  // namespace ziggurat
