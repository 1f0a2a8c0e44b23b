#include "block_manager/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "tests/block_manager/resident_memory.h"

namespace ziggurat {
namespace {

std::unique_ptr<BlockPool> MakePool(size_t num_blocks, size_t block_bytes = 1024) {
  absl::StatusOr<std::unique_ptr<BlockPool>> pool = BlockPool::Create(num_blocks, block_bytes);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(BlockPoolTest, CreateRefusesSizesThatMakeNoPool) {
  using absl::StatusCode;
  EXPECT_EQ(BlockPool::Create(0, 1024).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::Create(4, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::Create(4, 1000).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::Create(size_t{1} << 32, 64).status().code(), StatusCode::kInvalidArgument);
}

TEST(BlockPoolTest, CreateSaysSoWhenTheMemoryCannotBeReserved) {
  const size_t most_blocks = std::numeric_limits<BlockId>::max();
  const size_t huge_block = size_t{1} << 40;
  EXPECT_EQ(BlockPool::Create(most_blocks, huge_block).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(BlockPool::Create(1024, huge_block).status().code(),  // 1 PiB > the address space
            absl::StatusCode::kResourceExhausted);
}

TEST(BlockPoolTest, TakesLowestNumbersFirstAndReusesTheLastFreed) {
  const auto pool = MakePool(8);
  std::vector<BlockId> blocks(4);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
  EXPECT_EQ(blocks, (std::vector<BlockId>{0, 1, 2, 3}));

  pool->Release({blocks[1]});
  pool->Release({blocks[2]});
  std::vector<BlockId> next(3);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(next)).ok());
  EXPECT_EQ(next, (std::vector<BlockId>{2, 1, 4}));
  EXPECT_EQ(pool->high_water_blocks(), 5u);

  pool->Release({0, 1, 2, 3, 4});
  EXPECT_EQ(pool->used_blocks(), 0u);
  EXPECT_EQ(pool->high_water_blocks(), 5u);
  EXPECT_TRUE(pool->CheckIntegrity({}).ok());
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  const auto pool = MakePool(4);
  std::vector<BlockId> blocks(3);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());

  std::vector<BlockId> too_many(2);
  const absl::Status status = pool->Allocate(absl::MakeSpan(too_many));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->used_blocks(), 3u);
  EXPECT_EQ(pool->high_water_blocks(), 3u);
  EXPECT_TRUE(pool->CheckIntegrity(blocks).ok());

  EXPECT_TRUE(pool->Allocate({}).ok());
  std::vector<BlockId> last(1);
  EXPECT_TRUE(pool->Allocate(absl::MakeSpan(last)).ok());
  EXPECT_TRUE(pool->Allocate({}).ok());
  EXPECT_EQ(pool->free_blocks(), 0u);
  pool->Release(blocks);
  pool->Release(last);
}

TEST(BlockPoolTest, BlockIsFreeOnlyWhenItsLastReferenceIsDropped) {
  const auto pool = MakePool(4);
  std::vector<BlockId> blocks(2);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
  pool->AddReference(blocks);
  EXPECT_EQ(pool->reference_count(blocks[0]), 2u);
  EXPECT_TRUE(pool->CheckIntegrity({blocks[0], blocks[1], blocks[0], blocks[1]}).ok());

  pool->Release(blocks);
  EXPECT_EQ(pool->used_blocks(), 2u);
  pool->Release(blocks);
  EXPECT_EQ(pool->used_blocks(), 0u);
}

TEST(BlockPoolTest, BlocksDoNotOverlap) {
  const auto pool = MakePool(16, 128);
  std::vector<BlockId> blocks(16);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId id : blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->view().Block(id)) % 64, 0u);
    std::memset(pool->view().Block(id), static_cast<int>(id), 128);
  }
  for (const BlockId id : blocks) {
    for (int i = 0; i < 128; ++i) {
      ASSERT_EQ(static_cast<BlockId>(pool->view().Block(id)[i]), id);
    }
  }
  pool->Release(blocks);
}

TEST(BlockPoolTest, CheckIntegrityFindsLostAndDoublyOwnedBlocks) {
  const auto pool = MakePool(4);
  std::vector<BlockId> blocks(2);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
  EXPECT_TRUE(pool->CheckIntegrity({0, 1}).ok());
  EXPECT_EQ(pool->CheckIntegrity({0}).code(), absl::StatusCode::kInternal);           // lost
  EXPECT_EQ(pool->CheckIntegrity({0, 1, 1}).code(), absl::StatusCode::kInternal);     // twice
  EXPECT_EQ(pool->CheckIntegrity({0, 1, 3}).code(), absl::StatusCode::kInternal);     // free
  EXPECT_EQ(pool->CheckIntegrity({0, 1, 4711}).code(), absl::StatusCode::kInternal);  // unknown
  pool->Release(blocks);
}

TEST(BlockPoolDeathTest, AbortsOnOurOwnMistakes) {
  const auto pool = MakePool(4);
  std::vector<BlockId> blocks(1);
  ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
  EXPECT_DEATH(pool->Release({0, 0}), "release of block 0, which is free");
  EXPECT_DEATH(pool->Release({3}), "release of block 3, which is free");
  EXPECT_DEATH(pool->Release({4}), "release of block 4, which does not exist");
  EXPECT_DEATH(pool->AddReference({1}), "reference to block 1, which is free");
  pool->Release(blocks);
}

TEST(BlockPoolDeathTest, DestructorAbortsWhileBlocksAreInUse) {
  EXPECT_DEATH(
      {
        const auto pool = MakePool(4);
        std::vector<BlockId> blocks(3);
        static_cast<void>(pool->Allocate(absl::MakeSpan(blocks)));
      },
      "3 of 4 blocks are in use");
}

constexpr size_t kMiB = size_t{1} << 20;

TEST(BlockPoolMemoryTest, CreatingAPoolTakesNoMemoryButItsBookkeeping) {
  if (!kResidentMemoryIsOurs) {
    GTEST_SKIP() << "resident memory says nothing under a sanitizer";
  }
  const size_t block_bytes = 8192;
  const size_t num_blocks = 1024 * kMiB / block_bytes;
  const size_t before = ResidentBytes();
  const auto pool = MakePool(num_blocks, block_bytes);
  const size_t grown = ResidentBytes() - before;
  EXPECT_LT(grown, kMiB + num_blocks * (sizeof(uint32_t) + sizeof(BlockId)));
}

// Once with small pages only, and once far enough that huge pages come in.
TEST(BlockPoolMemoryTest, ResidentMemoryFollowsTheHighWaterMark) {
  if (!kResidentMemoryIsOurs) {
    GTEST_SKIP() << "resident memory says nothing under a sanitizer";
  }
  const size_t block_bytes = 8192;
  const auto pool = MakePool(1024 * kMiB / block_bytes, block_bytes);
  std::vector<BlockId> blocks;
  for (const size_t mib : {1, 8, 60, 100, 150}) {
    const size_t before = ResidentBytes();
    const size_t more_bytes = mib * kMiB - blocks.size() * block_bytes;
    std::vector<BlockId> more(more_bytes / block_bytes);
    ASSERT_TRUE(pool->Allocate(absl::MakeSpan(more)).ok());
    for (const BlockId id : more) {
      std::memset(pool->view().Block(id), 1, block_bytes);
    }
    blocks.insert(blocks.end(), more.begin(), more.end());
    const size_t grown = ResidentBytes() - before;
    const size_t huge_page_slack = mib > 64 ? 2 * kMiB : 0;
    EXPECT_GE(grown + huge_page_slack + kMiB / 4, more_bytes) << mib << " MiB";
    EXPECT_LE(grown, more_bytes + huge_page_slack + kMiB / 2) << mib << " MiB";
  }

  // What is freed and taken again costs nothing more.
  const size_t before = ResidentBytes();
  for (int round = 0; round < 10; ++round) {
    pool->Release(blocks);
    ASSERT_TRUE(pool->Allocate(absl::MakeSpan(blocks)).ok());
    for (const BlockId id : blocks) {
      std::memset(pool->view().Block(id), round, 64);
    }
  }
  EXPECT_LT(ResidentBytes() - before, kMiB);
  pool->Release(blocks);
}

}  // namespace
}  // namespace ziggurat
