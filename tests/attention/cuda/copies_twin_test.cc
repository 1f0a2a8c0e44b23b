// Copies of many ranges, as many at a time as memory allows.
#include <gtest/gtest.h>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/writes.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {
namespace {

std::unique_ptr<CudaBackend> BackendWith(size_t scratch_bytes, size_t upload_bytes) {
  CudaBackendOptions options;
  options.scratch_bytes = scratch_bytes;
  options.upload_bytes = upload_bytes;
  const std::shared_ptr<Stream> stream(std::shared_ptr<Stream>(), &TestStream());  // not owned
  return *CudaBackend::Create(stream, options, nullptr);
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
  const std::vector<std::byte> filled = cache.pool.bytes();
  const auto reference = MakeReferenceBackend();
  reference->CopyAll(shape, cache.pool.view(), copies);
  const std::vector<std::byte> expected = cache.pool.bytes();
  ASSERT_FALSE(expected == filled);
  const size_t of_one = CopyScratchBytes(shape.num_kv_heads, 2 * kGroup, shape.head_dim);
  // All at once; some at once; one by one, and that in two pieces; little room for what is told.
  for (const auto& [scratch_bytes, upload_bytes] :
       {std::pair(100 * of_one, size_t{1} << 20), std::pair(5 * of_one / 2, size_t{1} << 20),
        std::pair(of_one / 2, size_t{1} << 20), std::pair(100 * of_one, size_t{8} << 10)}) {
    cache.pool.Restore(filled);
    {
      const PoolOnDevice pool(cache.pool.view());
      BackendWith(scratch_bytes, upload_bytes)->CopyAll(shape, pool.view(), copies);
      TestStream().Synchronize();
    }
    EXPECT_TRUE(cache.pool.bytes() == expected) << scratch_bytes << " " << upload_bytes;
  }
}

}  // namespace
}  // namespace ziggurat::cuda
