// How near decode attention comes to the memory bandwidth of this GPU, measured in the same run.
//
//   cuda_decode_bench            every case
//   cuda_decode_bench int4       those whose name has these letters
//
// The bandwidth is that of a copy within the device's memory, read and written bytes together. What
// attention must read is the live bytes of its blocks; its time is that of a whole call (plan,
// partial results, merge), the median of many.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/decode.h"
#include "attention/cuda/device.h"
#include "attention/cuda/segment_record.h"
#include "attention/cuda/table_image.h"
#include "bench/cuda/device_timing.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat::cuda {
namespace {

struct Case {
  std::string name;
  CacheFormat format;
  std::vector<int> lengths;
};

constexpr AttentionShape kShape = {32, 8, 128, 0.08838834764831845f};

/// Sequences of these lengths, grown side by side as a daemon grows them, so that the blocks of one
/// are no neighbours.
std::vector<std::unique_ptr<LayerBlockTable>> GrowTables(const Case& c, BlockPool* pool,
                                                         const CacheGeometry* geometry) {
  std::vector<std::unique_ptr<LayerBlockTable>> tables;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    tables.push_back(std::make_unique<LayerBlockTable>(pool, geometry));
    tables.back()->AddSegment({c.format});
  }
  constexpr int kStride = 64;  // whole groups
  for (int at = 0; at < *std::max_element(c.lengths.begin(), c.lengths.end()); at += kStride) {
    for (size_t i = 0; i < tables.size(); ++i) {
      const int more = std::min(kStride, c.lengths[i] - at);
      if (more > 0 && !tables[i]->Extend(0, more).ok()) std::abort();
    }
  }
  return tables;
}

void Run(const Case& c, double copy_bytes_per_second, int processors) {
  const CacheGeometry geometry = {
      1, kShape.num_kv_heads, kShape.head_dim,
      CacheGeometry::DefaultBlockBytes(kShape.num_kv_heads, kShape.head_dim)};
  size_t blocks = 0;
  for (int length : c.lengths) blocks += geometry.BlocksFor(c.format, kShape.num_kv_heads, length);
  auto pool = BlockPool::Create(blocks, geometry.block_bytes);
  if (!pool.ok()) std::abort();
  const auto tables = GrowTables(c, pool->get(), &geometry);
  std::vector<DecodeItem> items;
  double live_bytes = 0;
  for (const auto& table : tables) {
    items.push_back({table->view()});
    live_bytes += static_cast<double>(table->occupancy().live_bytes);
  }
  TableImage image;
  const DeviceItems device_items = image.AddItems(items);
  const DeviceBytes table(absl::MakeConstSpan(image.words()));
  // 0x3c3c is a small bf16, and a code like any other.
  DeviceBytes slab(blocks * geometry.block_bytes, 0x3c);
  const DeviceCache cache{slab.get<unsigned char>(), geometry.block_bytes,
                          table.get<const uint32_t>()};
  DecodeBucket bucket;
  bucket.shape = kShape;
  bucket.max_items = static_cast<int>(items.size());
  bucket.max_runs = bucket.max_items * kShape.num_kv_heads;
  bucket.workers = FindDecodeWorkers(bucket.shape, processors);
  bucket.kernels = KernelOf(ShapeOf(items[0].segments[0]), kShape.head_dim,
                            /*tensor_cores=*/true)
                       .bit();
  const size_t rows = items.size() * kShape.num_q_heads;
  DeviceBytes q(rows * kShape.head_dim * 4, 0x3c), out(rows * kShape.head_dim * 4), lse(rows * 4);
  DeviceBytes scratch(DecodeScratchBytes(bucket));
  const double seconds = SecondsOf(nullptr, [&] {
    LaunchPlanDecode(bucket, cache, device_items, /*stride=*/0, scratch.get<void>(), nullptr);
    LaunchDecodeAttention(bucket, cache, device_items, /*layer=*/0, q.get<float>(),
                          {out.get<float>(), ElementType::kF32, lse.get<float>()},
                          scratch.get<void>(), nullptr);
  });
  Check(cudaGetLastError(), "a launch");
  std::printf("%-34s %9.1f us  %7.3f GB  %7.1f GB/s  %5.1f %% of a copy\n", c.name.c_str(),
              seconds * 1e6, live_bytes / 1e9, live_bytes / seconds / 1e9,
              100 * live_bytes / seconds / copy_bytes_per_second);
}

/// 64 to 32,768, evenly in their logarithms.
std::vector<int> MixedLengths(int count) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    const double length = 64 * std::pow(512, static_cast<double>(i) / (count - 1));
    lengths.push_back(static_cast<int>(length) / 64 * 64);
  }
  return lengths;
}

int Main(const std::string& wanted) {
  const cudaDeviceProp properties = FindGpu();
  const double copy = CopyBytesPerSecond();
  std::printf("%s, %d processors; a copy moves %.1f GB/s\n", properties.name,
              properties.multiProcessorCount, copy / 1e9);
  const std::vector<int> even(64, 8192), one(1, 1024);
  std::vector<Case> cases;
  for (const CacheFormat& format :
       {CacheFormat::kBf16, CacheFormat{Encoding::kInt8}, CacheFormat{Encoding::kFp8},
        CacheFormat{Encoding::kInt4, 32}, CacheFormat{Encoding::kInt2, 32}}) {
    const std::string name = CacheFormatName(format);
    cases.push_back({name + ", 64 x 8,192", format, even});
    cases.push_back({name + ", 64 x 64..32,768", format, MixedLengths(64)});
    cases.push_back({name + ", 1 x 1,024", format, one});
  }
  for (const Case& c : cases) {
    if (c.name.find(wanted) == std::string::npos) continue;
    Run(c, copy, properties.multiProcessorCount);
  }
  return 0;
}

}  // namespace
}  // namespace ziggurat::cuda

int main(int argc, char** argv) { return ziggurat::cuda::Main(argc > 1 ? argv[1] : ""); }
