#include <algorithm>

#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {
namespace {

/// The operands of ColumnSums and WindowScores.
struct TailOnDevice {
  TailOnDevice(const AttentionShape& shape, ElementType element, const void* host_q,
               const float* host_lse, const void* host_k, int n, int rows)
      : q(host_q, size_t{1} * rows * shape.num_q_heads * shape.head_dim * ElementBytes(element)),
        lse(host_lse, size_t{1} * rows * shape.num_q_heads * sizeof(float)),
        k(host_k, size_t{1} * n * shape.num_kv_heads * shape.head_dim * ElementBytes(element)) {}

  OnDevice q, lse, k;
};

}  // namespace

void DeviceTwin::ColumnSums(const AttentionShape& shape, ElementType element, const void* q_rows,
                            const float* lse, const void* k, int n, int rows, int begin, int end,
                            ScoreRows score_rows, float* sums) {
  if (begin >= end) return;
  const size_t heads =
      score_rows == ScoreRows::kQueryHeads ? shape.num_q_heads : shape.num_kv_heads;
  TailOnDevice tail(shape, element, q_rows, lse, k, n, rows);
  OnDevice device_sums(heads * (end - begin) * sizeof(float));
  backend_->ColumnSums(shape, element, tail.q.get(), tail.lse.get<float>(), tail.k.get(), n, rows,
                       begin, end, score_rows, device_sums.get<float>());
  device_sums.CopyTo(sums);
}

void DeviceTwin::WindowScores(const AttentionShape& shape, ElementType element,
                              const void* q_window, const float* lse, const void* k, int n,
                              int window, int kernel, ScorePooling pooling, float* scores) {
  if (n <= window) return;
  TailOnDevice tail(shape, element, q_window, lse, k, n, window);
  OnDevice device_scores(size_t{1} * shape.num_kv_heads * (n - window) * sizeof(float));
  backend_->WindowScores(shape, element, tail.q.get(), tail.lse.get<float>(), tail.k.get(), n,
                         window, kernel, pooling, device_scores.get<float>());
  device_scores.CopyTo(scores);
}

void DeviceTwin::SelectBest(const float* scores, size_t stride, int num_heads, int candidates,
                            int best, int32_t* indices) {
  OnDevice device_scores(scores, ((num_heads - 1) * stride + candidates) * sizeof(float));
  OnDevice device_indices(size_t{1} * num_heads * best * sizeof(int32_t));
  backend_->SelectBest(device_scores.get<float>(), stride, num_heads, candidates, best,
                       device_indices.get<int32_t>());
  device_indices.CopyTo(indices);
}

int DeviceTwin::SelectWindows(const float* scores, int num_heads, int candidates, int review,
                              int best, int budget, int32_t* indices) {
  OnDevice device_scores(scores, size_t{1} * num_heads * candidates * sizeof(float));
  OnDevice device_indices(size_t{1} * budget * sizeof(int32_t));
  const int count = backend_->SelectWindows(device_scores.get<float>(), num_heads, candidates,
                                            review, best, budget, device_indices.get<int32_t>());
  std::vector<int32_t> chosen(budget);
  device_indices.CopyTo(chosen.data());
  std::copy_n(chosen.begin(), count, indices);
  return count;
}

double DeviceTwin::CosineSum(const float* a, const float* b, int rows, int width) {
  const size_t bytes = size_t{1} * rows * width * sizeof(float);
  OnDevice device_a(a, bytes), device_b(b, bytes);
  return backend_->CosineSum(device_a.get<float>(), device_b.get<float>(), rows, width);
}

void DeviceTwin::AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                  const float* q, const float* lse, PoolView pool) {
  const PoolOnDevice device_pool(pool);
  const size_t rows = items.size() * shape.num_q_heads;
  OnDevice device_q(q, rows * shape.head_dim * sizeof(float));
  OnDevice device_lse(lse, rows * sizeof(float));
  backend_->AccumulateScores(shape, items, device_q.get<float>(), device_lse.get<float>(),
                             device_pool.view());
}

double DeviceTwin::SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin,
                            int end, const float* q, const float* lse, PoolView pool) {
  const PoolOnDevice device_pool(pool);
  OnDevice device_q(q, size_t{1} * shape.num_q_heads * shape.head_dim * sizeof(float));
  OnDevice device_lse(lse, shape.num_q_heads * sizeof(float));
  return backend_->SlotMass(shape, segment, begin, end, device_q.get<float>(),
                            device_lse.get<float>(), device_pool.view());
}

}  // namespace ziggurat::cuda
