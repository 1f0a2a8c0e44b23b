// Merges of the tails of many pairs of layers, as many at a time as memory allows.
#include <gtest/gtest.h>

#include "attention/cuda/writes.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {
namespace {

constexpr int kPairs = 7;

/// The segments of some pairs: tails, merged tokens as either layer sees them, retained ones.
class Pairs {
 public:
  Pairs(const AttentionShape& shape, const CacheFormat& format, int count, int retained)
      : cache_(shape, Specs(format, count, retained)) {
    for (int i = 0; i < kPairs; ++i) upper_.push_back(UpperView(cache_.segments[5 * i + 2]));
    for (int i = 0; i < kPairs; ++i) {
      const SegmentView* s = &cache_.segments[size_t{5} * i];
      const int unit = format.UnitTokens();
      merges_.push_back({.lower_tail = &s[0],
                         .upper_tail = &s[1],
                         .count = count,
                         .retained = retained,
                         .t = 0.1 * i,
                         .lower_merged = &s[2],
                         .upper_merged = &upper_[i],
                         .first_merged_slot = 3 * unit,
                         .lower_retained = &s[3],
                         .upper_retained = &s[4],
                         .first_retained_slot = 2 * unit});
    }
  }

  TestCache& cache() { return cache_; }
  std::vector<TailMerge>& merges() { return merges_; }

 private:
  static std::vector<SegmentSpec> Specs(const CacheFormat& format, int count, int retained) {
    const int unit = format.UnitTokens();
    CacheFormat merged = format;
    merged.merged = true;
    std::vector<SegmentSpec> specs;
    for (int i = 0; i < kPairs; ++i) {
      specs.push_back({CacheFormat::kBf16, count + i});
      specs.push_back({CacheFormat::kBf16, count});
      specs.push_back({merged, 3 * unit + count - retained});
      specs.push_back({format, 2 * unit + retained});
      specs.push_back({format, 2 * unit + retained});
    }
    return specs;
  }

  TestCache cache_;
  std::vector<SegmentView> upper_;
  std::vector<TailMerge> merges_;
};

CudaBackendOptions OptionsFor(const AttentionShape& shape, int count, size_t scratch_bytes) {
  CudaBackendOptions options;
  options.scratch_bytes =
      std::max(scratch_bytes, MergeScratchBytes(shape.num_kv_heads, count, shape.head_dim));
  options.lend_bytes = TailMergeBytes(shape, count);
  options.upload_bytes = size_t{1} << 16;
  return options;
}

enum class Way { kTogether, kByThePrimitives };

/// The pool after the merges.
std::vector<std::byte> Merged(const AttentionShape& shape, Pairs& pairs,
                              const CudaBackendOptions& options, Way way) {
  const std::vector<std::byte> before = pairs.cache().pool.bytes();
  {
    const auto backend = BackendOnDevice(options);
    const PoolOnDevice pool(pairs.cache().pool.view());
    if (way == Way::kTogether) {
      backend->MergeTails(shape, pool.view(), pairs.merges());
    } else {
      backend->PromptBackend::MergeTails(shape, pool.view(), pairs.merges());
    }
    TestStream().Synchronize();
    if (way == Way::kByThePrimitives) {
      EXPECT_EQ(backend->edit_seconds(), 0);
    } else if (options.scratch_bytes >= size_t{1} << 20) {
      EXPECT_GT(backend->edit_seconds(), 0);
    }
  }
  std::vector<std::byte> after = pairs.cache().pool.bytes();
  EXPECT_FALSE(after == before);
  pairs.cache().pool.Restore(before);
  return after;
}

TEST(CudaMerges, OfManyPairsAreThoseOfOneAfterTheOther) {
  const AttentionShape shape = Shape(4, 2, 32);
  const CacheFormat int4 = {.encoding = Encoding::kInt4, .group = 8};
  for (const CacheFormat& format : {CacheFormat::kBf16, CacheFormat{Encoding::kInt8}, int4}) {
    for (const int retained : {0, 8, 32}) {
      constexpr int kCount = 32;
      Pairs pairs(shape, format, kCount, retained);
      const std::vector<std::byte> expected =
          Merged(shape, pairs, OptionsFor(shape, kCount, size_t{1} << 20), Way::kByThePrimitives);
      const TailMergeExtent extent = {kCount, retained, 1, 1};
      const size_t of_one = TailMergeScratchBytes(extent, shape.num_kv_heads, shape.head_dim);
      // All at once, two at once.
      for (const size_t scratch : {size_t{1} << 20, 5 * of_one / 2}) {
        EXPECT_TRUE(Merged(shape, pairs, OptionsFor(shape, kCount, scratch), Way::kTogether) ==
                    expected)
            << Name(format) << " " << retained << " " << scratch;
      }
    }
  }
}

TEST(CudaMerges, OfUnequalOnesGoApartAndThoseTooLargeByThePrimitives) {
  const AttentionShape shape = Shape(3, 3, 80);
  Pairs pairs(shape, CacheFormat::kBf16, 20, 4);
  pairs.merges()[2].count = 19;
  pairs.merges()[3].count = 0;
  pairs.merges()[3].retained = 0;
  pairs.merges()[5].retained = 0;
  const auto options = [&](size_t scratch) { return OptionsFor(shape, 20, scratch); };
  const std::vector<std::byte> expected =
      Merged(shape, pairs, options(size_t{1} << 20), Way::kByThePrimitives);
  EXPECT_TRUE(Merged(shape, pairs, options(size_t{1} << 20), Way::kTogether) == expected);
  EXPECT_TRUE(Merged(shape, pairs, options(0), Way::kTogether) == expected);
}

}  // namespace
}  // namespace ziggurat::cuda
