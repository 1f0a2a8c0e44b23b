#include <algorithm>

#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {

namespace {

/// The bucket that fits these items and no more.
DecodeBucket BucketOf(ElementType compute, const DecodeWorkers& workers,
                      const AttentionShape& shape, absl::Span<const DecodeItem> items) {
  DecodeBucket bucket;
  bucket.shape = shape;
  bucket.max_items = static_cast<int>(items.size());
  bucket.workers = workers;
  bucket.kernels = 0;
  for (const DecodeItem& item : items) {
    for (const SegmentView& segment : item.segments) {
      bucket.max_runs += RunsOf(shape, segment.num_kv_heads);
      bucket.distant = bucket.distant || segment.use != SegmentUse::kOwn;
      bucket.kernels |=
          KernelOf(ShapeOf(segment), shape.head_dim, compute == ElementType::kBf16).bit();
    }
  }
  // Items without segments have results too.
  if (bucket.kernels == 0) bucket.kernels = DecodeKernel::Plain().bit();
  return bucket;
}

}  // namespace

void DecodeOnDevice(ElementType compute, const DecodeWorkers& workers, const AttentionShape& shape,
                    absl::Span<const DecodeItem> items, const float* q, PoolView pool, float* out,
                    float* lse) {
  const DecodeBucket bucket = BucketOf(compute, workers, shape, items);
  std::vector<unsigned long long> counts(2 * items.size());
  const OnDevice counted(counts.data(), counts.size() * sizeof(counts[0]));
  TableImage image;
  const DeviceItems device_items =
      image.AddItems(items, bucket.distant ? counted.get<unsigned long long>() : nullptr);
  const TableOnDevice table(pool, image);
  const OnDevice scratch(DecodeScratchBytes(bucket));
  const cudaStream_t stream = TestStream().get();
  LaunchPlanDecode(bucket, table.view, device_items, /*stride=*/0, scratch.get(), stream);
  LaunchDecodeAttention(bucket, table.view, device_items, /*layer=*/0, q,
                        {out, ElementType::kF32, lse}, scratch.get(), stream);
  counted.CopyTo(counts.data());
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].counts == nullptr || !bucket.distant) continue;
    items[i].counts->attended += counts[2 * i];
    items[i].counts->skipped += counts[2 * i + 1];
  }
}

DeviceTwin::DeviceTwin(ElementType compute, int multiprocessors)
    : compute_(compute),
      workers_(DecodeWorkers::Alike(kWorkersPerMultiprocessor * multiprocessors)) {
  CudaBackendOptions options;
  options.scratch_bytes = size_t{64} << 20;
  options.upload_bytes = size_t{4} << 20;
  backend_ = BackendOnDevice(options);
}

void DeviceTwin::DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* q, PoolView pool, float* out, float* lse) {
  const size_t row = shape.num_q_heads, rows = items.size() * row;
  const size_t q_row = row * shape.head_dim;
  std::vector<float> low_q(rows * shape.head_dim), distant_lse(rows);
  const bool distant = std::any_of(items.begin(), items.end(),
                                   [](const DecodeItem& item) { return item.low_q != nullptr; });
  for (size_t i = 0; i < items.size() && distant; ++i) {
    std::copy_n(items[i].low_q, q_row, low_q.data() + i * q_row);
    std::copy_n(items[i].distant_lse, row, distant_lse.data() + i * row);
  }
  OnDevice device_low(low_q.data(), low_q.size() * 4), device_distant(distant_lse.data(), rows * 4);
  std::vector<DecodeItem> device_items(items.begin(), items.end());
  for (size_t i = 0; i < items.size() && distant; ++i) {
    device_items[i].low_q = device_low.get<float>() + i * q_row;
    device_items[i].distant_lse = device_distant.get<float>() + i * row;
  }
  const PoolOnDevice device_pool(pool);
  OnDevice device_q(q, rows * shape.head_dim * 4), device_out(rows * shape.head_dim * 4);
  OnDevice device_lse(rows * 4);
  DecodeOnDevice(compute_, workers_, shape, device_items, device_q.get<float>(), device_pool.view(),
                 device_out.get<float>(), lse == nullptr ? nullptr : device_lse.get<float>());
  device_out.CopyTo(out);
  if (lse != nullptr) device_lse.CopyTo(lse);
  if (!distant) return;
  device_low.CopyTo(low_q.data());
  device_distant.CopyTo(distant_lse.data());
  for (size_t i = 0; i < items.size(); ++i) {
    std::copy_n(low_q.data() + i * q_row, q_row, items[i].low_q);
    std::copy_n(distant_lse.data() + i * row, row, items[i].distant_lse);
  }
}

}  // namespace ziggurat::cuda
