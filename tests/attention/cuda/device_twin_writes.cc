#include <algorithm>

#include "attention/cuda/writes.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {
namespace {

/// Rows of a workspace that a call reads: as many as its list reaches.
int RowsRead(const TokenChoice& list, int heads) {
  int rows = 0;
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < list.count; ++i) rows = std::max(rows, 1 + list.At(head, i));
  }
  return rows;
}

/// A list may end with the last token that is used.
TokenChoice Packed(const TokenChoice& list, int heads, std::vector<int32_t>* memory) {
  if (list.of_head == nullptr) return list;
  for (int head = 0; head < heads; ++head) {
    const int32_t* own = list.of_head + head * list.stride;
    memory->insert(memory->end(), own, own + list.count);
  }
  return TokenChoice::Listed(memory->data(), list.count, list.count);
}

}  // namespace

void DeviceTwin::WriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                             const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                             int first_slot) {
  if (rows.count == 0) return;
  const size_t bytes = static_cast<size_t>(RowsRead(rows, segment.num_kv_heads)) *
                       shape.num_kv_heads * shape.head_dim * ElementBytes(tokens.element);
  const PoolOnDevice device_pool(pool);
  const PairOnDevice device_tokens(tokens, bytes);
  std::vector<int32_t> packed;
  const ChoiceOnDevice device_rows(Packed(rows, segment.num_kv_heads, &packed),
                                   segment.num_kv_heads);
  backend_->WriteTokens(shape, device_tokens.view, device_rows.view, device_pool.view(), segment,
                        first_slot);
}

void DeviceTwin::WriteScores(const AttentionShape& shape, const float* sums, int n,
                             const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                             int first_slot) {
  const PoolOnDevice device_pool(pool);
  OnDevice device_sums(sums, static_cast<size_t>(shape.num_kv_heads) * n * sizeof(float));
  std::vector<int32_t> packed;
  const ChoiceOnDevice device_rows(Packed(rows, segment.num_kv_heads, &packed),
                                   segment.num_kv_heads);
  backend_->WriteScores(shape, device_sums.get<float>(), n, device_rows.view, device_pool.view(),
                        segment, first_slot);
}

void DeviceTwin::CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                            const TokenChoice& slots, const SegmentView& to, int first_slot) {
  const PoolOnDevice device_pool(pool);
  std::vector<int32_t> packed;
  const ChoiceOnDevice device_slots(Packed(slots, to.num_kv_heads, &packed), to.num_kv_heads);
  backend_->CopyTokens(shape, device_pool.view(), from, device_slots.view, to, first_slot);
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
  // As a projection that is turned by no angle.
  const size_t q_width = size_t{1} * shape.num_q_heads * shape.head_dim;
  const size_t kv_width = size_t{1} * shape.num_kv_heads * shape.head_dim;
  const size_t width = q_width + 2 * kv_width, angles = items.size() * shape.head_dim / 2;
  std::vector<float> qkv(items.size() * width), cos(angles, 1.0f), sin(angles, 0.0f);
  for (size_t i = 0; i < items.size(); ++i) {
    float* row = qkv.data() + i * width + q_width;
    std::copy_n(k + i * kv_width, kv_width, row);
    std::copy_n(v + i * kv_width, kv_width, row + kv_width);
  }
  const PoolOnDevice device_pool(pool);
  TableImage image;
  const DeviceItems device_items = image.AddItems(items);
  const TableOnDevice table(device_pool.view(), image);
  const OnDevice device_qkv(qkv.data(), qkv.size() * sizeof(float));
  const OnDevice device_cos(cos.data(), angles * sizeof(float));
  const OnDevice device_sin(sin.data(), angles * sizeof(float));
  const OnDevice device_q(items.size() * q_width * sizeof(float));
  LaunchRotateAndWriteStep(shape, table.view, device_items, ElementType::kF32, device_qkv.get(),
                           device_cos.get<float>(), device_sin.get<float>(), device_q.get<float>(),
                           TestStream().get());
  TestStream().Synchronize();
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

void DeviceTwin::WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                             const KeyValues& upper_tokens, const TokenChoice& rows, double t,
                             PoolView pool, const SegmentView& lower, const SegmentView& upper,
                             int first_slot) {
  const size_t bytes = static_cast<size_t>(RowsRead(rows, lower.num_kv_heads)) *
                       shape.num_kv_heads * shape.head_dim * ElementBytes(lower_tokens.element);
  const PoolOnDevice device_pool(pool);
  const PairOnDevice device_lower(lower_tokens, bytes), device_upper(upper_tokens, bytes);
  std::vector<int32_t> packed;
  const ChoiceOnDevice device_rows(Packed(rows, lower.num_kv_heads, &packed), lower.num_kv_heads);
  backend_->WriteMerged(shape, device_lower.view, device_upper.view, device_rows.view, t,
                        device_pool.view(), lower, upper, first_slot);
}

}  // namespace ziggurat::cuda
