// A pool that has too few blocks, at every place where blocks are taken: the table stays as it was,
// and goes on as if nothing had happened once there are enough.
#include <gtest/gtest.h>

#include <functional>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

/// Takes blocks away from the pool.
class Filler {
 public:
  Filler(BlockPool* pool, size_t blocks) : pool_(pool), blocks_(blocks) {
    EXPECT_TRUE(pool->Allocate(absl::MakeSpan(blocks_)).ok());
  }
  ~Filler() { GiveBack(blocks_.size()); }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

  size_t size() const { return blocks_.size(); }
  const std::vector<BlockId>& blocks() const { return blocks_; }
  void GiveBack(size_t count) {
    pool_->Release(absl::MakeConstSpan(blocks_).last(count));
    blocks_.resize(blocks_.size() - count);
  }

 private:
  BlockPool* pool_;
  std::vector<BlockId> blocks_;
};

/// A pair of layers of a format, and what is done to them one call after the other.
struct Pair {
  explicit Pair(BlockPool* pool, const CacheGeometry* geometry)
      : low(pool, geometry), high(pool, geometry) {}
  LayerBlockTable low;
  LayerBlockTable high;
};
struct Step {
  const char* name;
  std::function<absl::Status(Pair&)> run;
};

absl::Status AppendTo(LayerBlockTable& table, int segment) {
  return table.AppendSlot(segment).status();
}

/// Growth of every kind, in both layers; only what asks the pool may fail.
std::vector<Step> Script(const CacheFormat& format) {
  std::vector<Step> steps;
  const auto add = [&](const char* name, std::function<absl::Status(Pair&)> run) {
    steps.push_back({name, std::move(run)});
  };
  add("add segments", [format](Pair& pair) {
    pair.low.AddSegment({.format = format});
    pair.low.AddSegment({.format = CacheFormat::kBf16});
    pair.high.ShareSegment(pair.low, 0);
    pair.high.AddSegment({.ring = RingShape{4, 40}});
    pair.high.AddValuesSegment({.format = CacheFormat::kBf16Values}, pair.low, 1);
    return absl::OkStatus();
  });
  add("extend", [](Pair& pair) { return pair.low.Extend(0, 96); });
  add("extend the tail", [](Pair& pair) { return pair.low.Extend(1, 33); });
  add("refresh", [](Pair& pair) {
    pair.high.RefreshShared(0, pair.low, 0);
    pair.high.RefreshKeys(2, pair.low, 1);
    return absl::OkStatus();
  });
  add("extend the values", [](Pair& pair) { return pair.high.Extend(2, 33); });
  add("extend the ring", [](Pair& pair) { return pair.high.Extend(1, 30); });
  for (int i = 0; i < 40; ++i) {
    add("append", [](Pair& pair) { return AppendTo(pair.low, 0); });
    add("append to the ring", [](Pair& pair) { return AppendTo(pair.high, 1); });
  }
  add("shrink", [](Pair& pair) {
    pair.low.Truncate(0, 32);
    pair.high.RefreshShared(0, pair.low, 0);
    return absl::OkStatus();
  });
  add("extend again", [](Pair& pair) { return pair.low.Extend(0, 300); });
  add("refresh again", [](Pair& pair) {
    pair.high.RefreshShared(0, pair.low, 0);
    return absl::OkStatus();
  });
  return steps;
}

class TableExhaustionTest : public TableFixture {
 protected:
  void ExpectConserved(const Pair& pair, const Filler& filler) const {
    std::vector<BlockId> owners = filler.blocks();
    for (const LayerBlockTable* table : {&pair.low, &pair.high}) {
      ASSERT_TRUE(table->CheckIntegrity().ok()) << table->CheckIntegrity();
      table->AppendReferences(&owners);
    }
    ASSERT_TRUE(pool_->CheckIntegrity(owners).ok()) << pool_->CheckIntegrity(owners);
  }
};

// For every number of free blocks at the start. Refused is exactly what does not fit: all or
// nothing, whichever of the planes it is that fails.
TEST_F(TableExhaustionTest, RefusedGrowthLeavesEveryTableAsItWas) {
  constexpr size_t kPoolBlocks = 48;
  size_t refusals = 0;
  for (const CacheFormat& format :
       {CacheFormat::kF32, CacheFormat{Encoding::kInt8}, kInt4, CacheFormat{Encoding::kInt2, 8},
        Merged(CacheFormat::kBf16), Merged({Encoding::kFp8}), Merged(kInt4),
        Scored({Encoding::kInt8})}) {
    for (size_t free = 0; free <= kPoolBlocks; ++free) {
      MakePool(kPoolBlocks + 32);
      Filler filler(pool_.get(), pool_->num_blocks() - free);
      Pair pair(pool_.get(), &geometry_);
      for (const Step& step : Script(format)) {
        const TableSnapshot low(pair.low), high(pair.high);
        const size_t used = pool_->used_blocks();
        size_t given = 0;
        absl::Status status = step.run(pair);
        for (; !status.ok(); status = step.run(pair)) {
          ++refusals;
          const std::string what = FormatText(format) + ": " + step.name;
          ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << what;
          ASSERT_EQ(pool_->used_blocks(), used - given) << what;
          ASSERT_TRUE(TableSnapshot(pair.low) == low) << what;
          ASSERT_TRUE(TableSnapshot(pair.high) == high) << what;
          ExpectConserved(pair, filler);
          ASSERT_GT(filler.size(), 0u) << what;
          filler.GiveBack(1);
          ++given;
        }
        // One block at a time was given until it went: it took them all.
        if (given > 0) {
          ASSERT_EQ(pool_->free_blocks(), 0u) << step.name;
        }
        ExpectConserved(pair, filler);
      }
    }
  }
  EXPECT_GT(refusals, 1000u);
}

}  // namespace
}  // namespace ziggurat
