#include <algorithm>

#include "attention/cuda/statistics.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {
namespace {

/// The operands of ColumnSums and WindowScores.
struct TailOnDevice {
  TailOnDevice(const AttentionShape& shape, const PromptTail& of_host)
      : host(of_host),
        q(host.q_rows,
          size_t{1} * host.rows * shape.num_q_heads * shape.head_dim * ElementBytes(host.element)),
        lse(host.lse, size_t{1} * host.rows * shape.num_q_heads * sizeof(float)),
        k(host.k,
          size_t{1} * host.n * shape.num_kv_heads * shape.head_dim * ElementBytes(host.element)) {}

  PromptTail tail() {
    return {host.element, q.get(), lse.get<float>(), k.get(), host.n, host.rows};
  }

  const PromptTail& host;
  OnDevice q, lse, k;
};

}  // namespace

void DeviceTwin::ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                            ScoreRows score_rows, float* sums, size_t stride) {
  if (begin >= end) return;
  const size_t heads =
      score_rows == ScoreRows::kQueryHeads ? shape.num_q_heads : shape.num_kv_heads;
  TailOnDevice on_device(shape, tail);
  // What is between the rows stays as it is.
  OnDevice device_sums(sums, ((heads - 1) * stride + end - begin) * sizeof(float));
  backend_->ColumnSums(shape, on_device.tail(), begin, end, score_rows, device_sums.get<float>(),
                       stride);
  device_sums.CopyTo(sums);
}

void DeviceTwin::WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                              WindowPooling pooling, float* scores) {
  if (tail.n <= tail.rows) return;
  TailOnDevice on_device(shape, tail);
  OnDevice device_scores(size_t{1} * shape.num_kv_heads * (tail.n - tail.rows) * sizeof(float));
  backend_->WindowScores(shape, on_device.tail(), kernel, pooling, device_scores.get<float>());
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
  TableImage image;
  const DeviceItems device_items = image.AddItems(items);
  const TableOnDevice table(device_pool.view(), image);
  LaunchAccumulateScores(shape, table.view, device_items, device_q.get<float>(),
                         device_lse.get<float>(), TestStream().get());
  TestStream().Synchronize();
}

double DeviceTwin::SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin,
                            int end, const float* q, const float* lse, PoolView pool) {
  const PoolOnDevice device_pool(pool);
  OnDevice device_q(q, size_t{1} * shape.num_q_heads * shape.head_dim * sizeof(float));
  OnDevice device_lse(lse, shape.num_q_heads * sizeof(float));
  TableImage image;
  const uint32_t word = image.AddSegment(segment);
  const TableOnDevice table(device_pool.view(), image);
  const OnDevice scratch(SlotMassScratchBytes(shape)), device_mass(sizeof(double));
  LaunchSlotMass(shape, table.view, word, begin, end, device_q.get<float>(),
                 device_lse.get<float>(), device_mass.get<double>(), scratch.get(),
                 TestStream().get());
  double mass = 0;
  device_mass.CopyTo(&mass);
  return mass;
}

}  // namespace ziggurat::cuda
