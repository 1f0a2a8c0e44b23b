#include <algorithm>

#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {
namespace {

/// Rows of a workspace that a call reads: as many as its indices reach.
int RowsRead(HeadIndices indices, int heads, int first, int count) {
  int rows = first + count;
  for (int head = 0; head < heads && indices.of_head != nullptr; ++head) {
    const int32_t* own = indices.of_head + head * indices.stride;
    rows = std::max(rows, 1 + *std::max_element(own, own + count));
  }
  return rows;
}

/// HeadIndices may end with the last one that is used.
HeadIndices Packed(HeadIndices indices, int heads, int count, std::vector<int32_t>* memory) {
  if (indices.of_head == nullptr || count == 0) return {};
  for (int head = 0; head < heads; ++head) {
    const int32_t* own = indices.of_head + head * indices.stride;
    memory->insert(memory->end(), own, own + count);
  }
  return {memory->data(), static_cast<size_t>(count)};
}

}  // namespace

void DeviceTwin::WriteTokens(const AttentionShape& shape, ElementType element, const void* k,
                             const void* v, HeadIndices indices, int first_row, int count,
                             PoolView pool, const SegmentView& segment, int first_slot) {
  if (count == 0) return;
  const size_t bytes =
      static_cast<size_t>(RowsRead(indices, segment.num_kv_heads, first_row, count)) *
      shape.num_kv_heads * shape.head_dim * ElementBytes(element);
  TableImage image;
  const TargetSegment target = TargetOf(image, segment);
  CacheOnDevice cache(pool, image);
  OnDevice device_k(k, bytes), device_v(v, bytes);
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, segment.num_kv_heads, count, &packed), segment.num_kv_heads,
                       first_row);
  LaunchWriteTokens(DeviceShapeOf(shape), element, device_k.get(), device_v.get(), rows.view, count,
                    cache.view, target, first_slot, kStream);
  cache.pool.CopyTo(pool.base);
}

void DeviceTwin::WriteScores(const AttentionShape& shape, const float* sums, int n,
                             HeadIndices indices, int first_row, int count, PoolView pool,
                             const SegmentView& segment, int first_slot) {
  TableImage image;
  const TargetSegment target = TargetOf(image, segment);
  CacheOnDevice cache(pool, image);
  OnDevice device_sums(sums, static_cast<size_t>(shape.num_kv_heads) * n * sizeof(float));
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, segment.num_kv_heads, count, &packed), segment.num_kv_heads,
                       first_row);
  LaunchWriteScores(device_sums.get<float>(), n, rows.view, count, cache.view, target, first_slot,
                    kStream);
  cache.pool.CopyTo(pool.base);
}

void DeviceTwin::CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                            HeadIndices slots, int first, int count, const SegmentView& to,
                            int first_slot) {
  TableImage image;
  const uint32_t source = image.AddSegment(from);
  const TargetSegment target = TargetOf(image, to);
  CacheOnDevice cache(pool, image);
  OnDevice scratch(CopyScratchBytes(to.num_kv_heads, count, shape.head_dim));
  std::vector<int32_t> packed;
  IndicesOnDevice device_slots(Packed(slots, to.num_kv_heads, count, &packed), to.num_kv_heads,
                               first);
  LaunchCopyTokens(DeviceShapeOf(shape), cache.view, source, device_slots.view, count, target,
                   first_slot, scratch.get(), kStream);
  cache.pool.CopyTo(pool.base);
}

void DeviceTwin::ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment,
                            int first, int count, float* k, float* v) {
  TableImage image;
  const uint32_t source = image.AddSegment(segment);
  CacheOnDevice cache(pool, image);
  const size_t bytes =
      static_cast<size_t>(count) * shape.num_kv_heads * shape.head_dim * sizeof(float);
  OnDevice device_k(bytes), device_v(bytes);
  LaunchReadTokens(DeviceShapeOf(shape), cache.view, source, first, count, device_k.get<float>(),
                   device_v.get<float>(), kStream);
  device_k.CopyTo(k);
  device_v.CopyTo(v);
}

void DeviceTwin::WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                           const float* k, const float* v, PoolView pool) {
  TableImage image;
  const DeviceItems device_items = image.AddItems(items, shape);
  CacheOnDevice cache(pool, image);
  const size_t bytes = items.size() * shape.num_kv_heads * shape.head_dim * sizeof(float);
  OnDevice device_k(k, bytes), device_v(v, bytes);
  LaunchWriteStep(DeviceShapeOf(shape), cache.view, device_items, device_k.get<float>(),
                  device_v.get<float>(), kStream);
  cache.pool.CopyTo(pool.base);
}

void DeviceTwin::MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                             const void* k1, int m, float* angles) {
  const size_t tokens = static_cast<size_t>(shape.num_kv_heads) * m;
  const size_t bytes = tokens * shape.head_dim * ElementBytes(element);
  OnDevice device_k0(k0, bytes), device_k1(k1, bytes), device_angles(tokens * sizeof(float));
  LaunchMergeAngles(DeviceShapeOf(shape), element, device_k0.get(), device_k1.get(), m,
                    device_angles.get<float>(), kStream);
  device_angles.CopyTo(angles);
}

void DeviceTwin::WriteMerged(const AttentionShape& shape, ElementType element, const void* k0,
                             const void* v0, const void* k1, const void* v1, HeadIndices indices,
                             int count, double t, PoolView pool, const SegmentView& lower,
                             const SegmentView& upper, int first_slot) {
  const size_t bytes = static_cast<size_t>(RowsRead(indices, lower.num_kv_heads, 0, count)) *
                       shape.num_kv_heads * shape.head_dim * ElementBytes(element);
  TableImage image;
  const TargetSegment target = TargetOf(image, lower);
  const uint32_t as_upper = image.AddSegment(upper);
  CacheOnDevice cache(pool, image);
  OnDevice device_k0(k0, bytes), device_v0(v0, bytes), device_k1(k1, bytes), device_v1(v1, bytes);
  OnDevice scratch(MergeScratchBytes(lower.num_kv_heads, count, shape.head_dim));
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, lower.num_kv_heads, count, &packed), lower.num_kv_heads, 0);
  LaunchWriteMerged(DeviceShapeOf(shape), element, device_k0.get(), device_v0.get(),
                    device_k1.get(), device_v1.get(), rows.view, count, t, cache.view, target,
                    as_upper, first_slot, scratch.get(), kStream);
  cache.pool.CopyTo(pool.base);
}

}  // namespace ziggurat::cuda
