// Blocks that lie further than 4 GiB behind the beginning of their pool.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "attention/cuda/segment_record.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"
#include "tests/attention/decode_batch.h"

namespace ziggurat::cuda {
namespace {

/// The same blocks in a pool that begins 5 GiB earlier. Of what is there nobody reads.
class FarBlocks {
 public:
  explicit FarBlocks(PoolView pool)
      : pool_(pool), shift_(static_cast<BlockId>((uint64_t{5} << 30) / pool.block_bytes)) {}

  PoolView pool() const {
    const auto base = reinterpret_cast<uintptr_t>(pool_.base);
    return {reinterpret_cast<std::byte*>(base - shift_ * pool_.block_bytes), pool_.block_bytes};
  }
  SegmentView Of(SegmentView s) {
    const int slots = SlotsHeld(s);
    for (PlaneView* plane : {&s.keys, &s.values, &s.key_scales, &s.value_scales, &s.key_norms,
                             &s.value_norms, &s.scores, &s.positions}) {
      if (plane->blocks == nullptr) continue;
      std::vector<BlockId>& far = far_[plane->blocks];
      const bool is_new = far.empty();
      for (uint32_t i = 0; is_new && i < BlocksOf(*plane, slots); ++i) {
        far.push_back(plane->blocks[i] + shift_);
      }
      plane->blocks = far.data();
    }
    return s;
  }

 private:
  PoolView pool_;
  BlockId shift_;
  std::map<const BlockId*, std::vector<BlockId>> far_;  ///< planes may share their blocks
};

Decoded Decode(const AttentionShape& shape, const std::vector<DecodeItem>& items,
               const std::vector<float>& q, PoolView pool) {
  Decoded result{std::vector<float>(q.size()),
                 std::vector<float>(items.size() * shape.num_q_heads)};
  const OnDevice device_q(q.data(), q.size() * sizeof(float));
  const OnDevice out(result.out.size() * sizeof(float)), lse(result.lse.size() * sizeof(float));
  DecodeOnDevice(ElementType::kBf16, DecodeWorkers::Alike(kWorkersPerMultiprocessor), shape, items,
                 device_q.get<float>(), pool, out.get<float>(), lse.get<float>());
  out.CopyTo(result.out.data());
  lse.CopyTo(result.lse.data());
  return result;
}

// By each of the ways in which decode attention finds a block.
TEST(CudaFarBlocks, AreAttendedToAsNearOnes) {
  const AttentionShape shape = Shape(4, 2, 64);
  const std::vector<float> q = Queries(Encoding::kBf16, shape, 2, 99);
  for (const CacheFormat& format : {CacheFormat::kF32,   // one slot after the other
                                    CacheFormat::kBf16,  // on tensor cores
                                    Merged({Encoding::kInt8}),
                                    {Encoding::kInt8},  // by way of shared memory
                                    {Encoding::kInt4, 32}}) {
    Batch batch(format, shape, {200, 70});
    const PoolOnDevice pool(batch.pool.view());
    FarBlocks far(pool.view());
    const Decoded near = Decode(shape, batch.items, q, pool.view());
    for (std::vector<SegmentView>& segments : batch.segments) {
      for (SegmentView& segment : segments) segment = far.Of(segment);
    }
    const Decoded result = Decode(shape, batch.items, q, far.pool());
    EXPECT_EQ(result.out, near.out) << Name(format);
    EXPECT_EQ(result.lse, near.lse) << Name(format);
  }
}

TEST(CudaFarBlocks, AreReadAndWrittenAsNearOnes) {
  const AttentionShape shape = Shape(2, 2, 64);
  const auto backend =
      BackendOnDevice({.scratch_bytes = size_t{8} << 20, .upload_bytes = size_t{1} << 20});
  const CacheFormat codes = {Encoding::kInt4, 32};
  TestCache cache(shape, {{CacheFormat::kBf16, 96},
                          {codes, 96},
                          {Scored(CacheFormat::kBf16), 60},
                          {Scored(CacheFormat::kBf16), 60}});
  const auto& s = cache.segments;
  const std::vector<std::byte> filled = cache.pool.bytes();
  const auto copied = [&](bool is_far) {
    cache.pool.Restore(filled);
    {
      const PoolOnDevice pool(cache.pool.view());
      FarBlocks far(pool.view());
      std::vector<SegmentView> views(s.begin(), s.end());
      for (SegmentView& view : views) view = is_far ? far.Of(view) : view;
      // The first straight to codes, the others by way of scratch memory.
      const PoolView where = is_far ? far.pool() : pool.view();
      backend->CopyAll(shape, where, {{&views[0], 32, 64, &views[1], 32}});
      backend->CopyAll(shape, where, {{&views[2], 5, 50, &views[3], 7}});
      TestStream().Synchronize();
    }
    return cache.pool.bytes();
  };
  const std::vector<std::byte> near = copied(false);
  EXPECT_FALSE(near == filled);
  EXPECT_TRUE(copied(true) == near);
}

}  // namespace
}  // namespace ziggurat::cuda
