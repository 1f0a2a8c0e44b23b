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
  const PoolOnDevice device_pool(pool);
  OnDevice device_k(k, bytes), device_v(v, bytes);
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, segment.num_kv_heads, count, &packed), segment.num_kv_heads);
  backend_->WriteTokens(shape, element, device_k.get(), device_v.get(), rows.view, first_row, count,
                        device_pool.view(), segment, first_slot);
}

void DeviceTwin::WriteScores(const AttentionShape& shape, const float* sums, int n,
                             HeadIndices indices, int first_row, int count, PoolView pool,
                             const SegmentView& segment, int first_slot) {
  const PoolOnDevice device_pool(pool);
  OnDevice device_sums(sums, static_cast<size_t>(shape.num_kv_heads) * n * sizeof(float));
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, segment.num_kv_heads, count, &packed), segment.num_kv_heads);
  backend_->WriteScores(shape, device_sums.get<float>(), n, rows.view, first_row, count,
                        device_pool.view(), segment, first_slot);
}

void DeviceTwin::CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                            HeadIndices slots, int first, int count, const SegmentView& to,
                            int first_slot) {
  const PoolOnDevice device_pool(pool);
  std::vector<int32_t> packed;
  IndicesOnDevice device_slots(Packed(slots, to.num_kv_heads, count, &packed), to.num_kv_heads);
  backend_->CopyTokens(shape, device_pool.view(), from, device_slots.view, first, count, to,
                       first_slot);
}

void DeviceTwin::CopyAll(const AttentionShape& shape, PoolView pool,
                         absl::Span<const TokenCopy> copies) {
  const PoolOnDevice device_pool(pool);
  backend_->CopyAll(shape, device_pool.view(), copies);
}

void DeviceTwin::ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment,
                            int first, int count, float* k, float* v) {
  const PoolOnDevice device_pool(pool);
  const size_t bytes =
      static_cast<size_t>(count) * shape.num_kv_heads * shape.head_dim * sizeof(float);
  OnDevice device_k(bytes), device_v(bytes);
  backend_->ReadTokens(shape, device_pool.view(), segment, first, count, device_k.get<float>(),
                       device_v.get<float>());
  device_k.CopyTo(k);
  device_v.CopyTo(v);
}

void DeviceTwin::WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                           const float* k, const float* v, PoolView pool) {
  const PoolOnDevice device_pool(pool);
  const size_t bytes = items.size() * shape.num_kv_heads * shape.head_dim * sizeof(float);
  OnDevice device_k(k, bytes), device_v(v, bytes);
  backend_->WriteStep(shape, items, device_k.get<float>(), device_v.get<float>(),
                      device_pool.view());
}

void DeviceTwin::MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                             const void* k1, int m, float* angles) {
  const size_t tokens = static_cast<size_t>(shape.num_kv_heads) * m;
  const size_t bytes = tokens * shape.head_dim * ElementBytes(element);
  OnDevice device_k0(k0, bytes), device_k1(k1, bytes), device_angles(tokens * sizeof(float));
  backend_->MergeAngles(shape, element, device_k0.get(), device_k1.get(), m,
                        device_angles.get<float>());
  device_angles.CopyTo(angles);
}

void DeviceTwin::WriteMerged(const AttentionShape& shape, ElementType element, const void* k0,
                             const void* v0, const void* k1, const void* v1, HeadIndices indices,
                             int count, double t, PoolView pool, const SegmentView& lower,
                             const SegmentView& upper, int first_slot) {
  const size_t bytes = static_cast<size_t>(RowsRead(indices, lower.num_kv_heads, 0, count)) *
                       shape.num_kv_heads * shape.head_dim * ElementBytes(element);
  const PoolOnDevice device_pool(pool);
  OnDevice device_k0(k0, bytes), device_v0(v0, bytes), device_k1(k1, bytes), device_v1(v1, bytes);
  std::vector<int32_t> packed;
  IndicesOnDevice rows(Packed(indices, lower.num_kv_heads, count, &packed), lower.num_kv_heads);
  backend_->WriteMerged(shape, element, device_k0.get(), device_v0.get(), device_k1.get(),
                        device_v1.get(), rows.view, count, t, device_pool.view(), lower, upper,
                        first_slot);
}

}  // namespace ziggurat::cuda
