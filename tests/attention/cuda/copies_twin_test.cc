// Copies of many ranges, as many at a time as memory allows.
#include <gtest/gtest.h>

#include "attention/cuda/writes.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {
namespace {

std::unique_ptr<CudaBackend> BackendWith(size_t scratch_bytes, size_t upload_bytes) {
  CudaBackendOptions options;
  options.scratch_bytes = scratch_bytes;
  options.upload_bytes = upload_bytes;
  return BackendOnDevice(options);
}

/// The copies of a backend on the device, against the reference's.
void ExpectTheReferences(const AttentionShape& shape, TestCache& cache,
                         const std::vector<TokenCopy>& copies, size_t scratch_bytes,
                         size_t upload_bytes) {
  const std::vector<std::byte> filled = cache.pool.bytes();
  MakeReferenceBackend()->CopyAll(shape, cache.pool.view(), copies);
  const std::vector<std::byte> expected = cache.pool.bytes();
  EXPECT_FALSE(expected == filled);
  cache.pool.Restore(filled);
  {
    const PoolOnDevice pool(cache.pool.view());
    const auto backend = BackendWith(scratch_bytes, upload_bytes);
    backend->CopyAll(shape, pool.view(), copies);
    TestStream().Synchronize();
    EXPECT_GT(backend->edit_seconds(), 0);
  }
  EXPECT_TRUE(cache.pool.bytes() == expected) << scratch_bytes << " " << upload_bytes;
  cache.pool.Restore(filled);
}

TEST(CudaCopies, GoInAsManyPiecesAsMemoryAsksFor) {
  constexpr int kSequences = 9, kGroup = 16;
  const AttentionShape shape = Shape(4, 2, 32);
  const CacheFormat codes = {.encoding = Encoding::kInt4, .group = kGroup};
  std::vector<SegmentSpec> specs;
  for (int i = 0; i < kSequences; ++i) {
    specs.push_back({CacheFormat::kBf16, 2 * kGroup + 5 + i});
    specs.push_back({codes, 8 * kGroup});
  }
  TestCache cache(shape, specs);
  std::vector<TokenCopy> copies;
  for (int i = 0; i < kSequences; ++i) {
    const SegmentView &open = cache.segments[2 * i], &coded = cache.segments[2 * i + 1];
    // Behind the first blocks, of which a copy is told nothing.
    copies.push_back({&open, 0, 2 * kGroup, &coded, 6 * kGroup});
    copies.push_back({&open, 2 * kGroup, 5 + i, &open, 0});
  }
  const size_t of_one = CopyScratchBytes(shape.num_kv_heads, 2 * kGroup, shape.head_dim);
  // All at once; some at once; one by one, and that in two pieces; little room for what is told.
  for (const auto& [scratch_bytes, upload_bytes] :
       {std::pair(100 * of_one, size_t{1} << 20), std::pair(5 * of_one / 2, size_t{1} << 20),
        std::pair(of_one / 2, size_t{1} << 20), std::pair(100 * of_one, size_t{8} << 10)}) {
    ExpectTheReferences(shape, cache, copies, scratch_bytes, upload_bytes);
  }
}

TEST(CudaCopies, OfSegmentsOfAllKindsGoTogether) {
  const AttentionShape shape = Shape(4, 4, 32);
  const CacheFormat int8 = {.encoding = Encoding::kInt8};
  CacheFormat values_only = CacheFormat::kBf16, merged = CacheFormat::kBf16;
  values_only.values_only = true;
  merged.merged = true;
  TestCache cache(shape, {{CacheFormat::kBf16, 70},
                          {CacheFormat::kBf16, 70},
                          {CacheFormat::kBf16, 70, 1, 2},
                          {int8, 70, 1, 2},
                          {merged, 70},
                          {merged, 70},
                          {CacheFormat::kBf16, 70},
                          {values_only, 70}});
  const auto& s = cache.segments;
  ExpectTheReferences(shape, cache,
                      {{&s[4], 50, 1, &s[5], 19},
                       {&s[0], 20, 12, &s[1], 40},
                       {&s[2], 33, 30, &s[3], 17},
                       {&s[0], 0, 0, &s[1], 0},
                       {&s[6], 64, 6, &s[7], 1}},
                      size_t{8} << 20, size_t{1} << 20);
}

TEST(CudaCopies, AreToldOfTheirBlocksAlone) {
  // A list that begins later is named by where its block 0 would be, modulo 2^32.
  const AttentionShape shape = Shape(2, 1, 16);
  TestCache cache(shape, {{CacheFormat::kBf16, 40}, {CacheFormat::kBf16, 2000}});
  for (int slot = 0; slot < 2000; slot += 8) {
    ExpectTheReferences(shape, cache, {{&cache.segments[0], 3, 1, &cache.segments[1], slot}},
                        size_t{1} << 20, size_t{1} << 20);
  }
}

TEST(CudaCopies, OfAGroupFitTheScratchMemoryOfShortPrompts) {
  const AttentionShape shape = Shape(8, 8, 128);
  const int group = shape.head_dim;  // the largest there is
  TestCache cache(shape, {{{Encoding::kInt8}, group},
                          {{Encoding::kInt4, static_cast<uint16_t>(group)}, group}});
  ExpectTheReferences(shape, cache, {{&cache.segments[0], 0, group, &cache.segments[1], 0}},
                      ScratchBytesFor(shape, 1), size_t{1} << 20);
}

TEST(CudaCopies, OfVeryUnequalLengthsAreAsOneAfterTheOther) {
  const AttentionShape shape = Shape(2, 1, 16);
  TestCache cache(shape, {{CacheFormat::kBf16, 2000}, {CacheFormat::kBf16, 2000}});
  const SegmentView &from = cache.segments[0], &to = cache.segments[1];
  std::vector<TokenCopy> copies = {{&from, 100, 900, &to, 0}};
  for (int i = 0; i < 150; ++i) copies.push_back({&from, 7 * i, 1, &to, 900 + 3 * i});
  ExpectTheReferences(shape, cache, copies, size_t{8} << 20, size_t{1} << 20);
}

}  // namespace
}  // namespace ziggurat::cuda
