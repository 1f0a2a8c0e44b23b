#include <algorithm>

#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {
namespace {

/// The bucket that fits these items and no more.
DecodeBucket BucketOf(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                      ElementType compute) {
  DecodeBucket bucket;
  bucket.shape = DeviceShapeOf(shape);
  bucket.max_items = static_cast<int>(items.size());
  bucket.workers = DeviceWarps();
  const int passes = (shape.group_size() + kHeadsPerPass - 1) / kHeadsPerPass;
  for (const DecodeItem& item : items) {
    for (const SegmentView& segment : item.segments) {
      bucket.max_runs += segment.num_kv_heads * passes;
      bucket.distant = bucket.distant || segment.use != SegmentUse::kOwn;
      if (compute == ElementType::kF32 || segment.encoding == Encoding::kF32) continue;
      bucket.tensor_encodings |= 1u << static_cast<int>(segment.encoding);
    }
  }
  return bucket;
}

}  // namespace

void DeviceTwin::DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* q, PoolView pool, float* out, float* lse) {
  const size_t rows = items.size() * shape.num_q_heads, row = shape.num_q_heads;
  std::vector<float> low_q(rows * shape.head_dim), distant_lse(rows);
  std::vector<unsigned long long> counts(2 * items.size());
  const bool distant = std::any_of(items.begin(), items.end(),
                                   [](const DecodeItem& item) { return item.low_q != nullptr; });
  for (size_t i = 0; i < items.size() && distant; ++i) {
    std::copy_n(items[i].low_q, row * shape.head_dim, low_q.data() + i * row * shape.head_dim);
    std::copy_n(items[i].distant_lse, row, distant_lse.data() + i * row);
  }
  OnDevice device_low(low_q.data(), low_q.size() * 4),
      device_counts(counts.data(), counts.size() * 8);
  OnDevice device_distant(distant_lse.data(), rows * 4);
  DistantRows distant_rows;
  if (distant) {
    distant_rows = {device_low.get<float>(), device_distant.get<float>(),
                    device_counts.get<unsigned long long>()};
  }
  TableImage image;
  const DeviceItems device_items = image.AddItems(items, shape, distant_rows);
  CacheOnDevice cache(pool, image);
  const DecodeBucket bucket = BucketOf(shape, items, compute_);
  OnDevice scratch(DecodeScratchBytes(bucket));
  OnDevice device_q(q, rows * shape.head_dim * 4), device_out(rows * shape.head_dim * 4);
  OnDevice device_lse(rows * 4);
  LaunchDecodeAttention(bucket, cache.view, device_items, device_q.get<float>(),
                        device_out.get<float>(), lse == nullptr ? nullptr : device_lse.get<float>(),
                        scratch.get(), kStream);
  device_out.CopyTo(out);
  if (lse != nullptr) device_lse.CopyTo(lse);
  if (!distant) return;
  device_low.CopyTo(low_q.data());
  device_distant.CopyTo(distant_lse.data());
  device_counts.CopyTo(counts.data());
  for (size_t i = 0; i < items.size(); ++i) {
    std::copy_n(low_q.data() + i * row * shape.head_dim, row * shape.head_dim, items[i].low_q);
    std::copy_n(distant_lse.data() + i * row, row, items[i].distant_lse);
    if (items[i].counts == nullptr) continue;
    items[i].counts->attended += counts[2 * i];
    items[i].counts->skipped += counts[2 * i + 1];
  }
}

}  // namespace ziggurat::cuda
