#include <algorithm>

#include "attention/cuda/statistics.h"
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
        k(host_k, size_t{1} * n * shape.num_kv_heads * shape.head_dim * ElementBytes(element)),
        view{element, q.get(), lse.get<const float>(), k.get(), n, rows} {}

  OnDevice q, lse, k;
  PromptTail view;
};

}  // namespace

void DeviceTwin::ColumnSums(const AttentionShape& shape, ElementType element, const void* q_rows,
                            const float* lse, const void* k, int n, int rows, int begin, int end,
                            ScoreRows score_rows, float* sums) {
  if (begin >= end) return;
  const bool query_heads = score_rows == ScoreRows::kQueryHeads;
  const size_t heads = query_heads ? shape.num_q_heads : shape.num_kv_heads;
  TailOnDevice tail(shape, element, q_rows, lse, k, n, rows);
  OnDevice device_sums(heads * (end - begin) * sizeof(float));
  LaunchColumnSums(DeviceShapeOf(shape), tail.view, begin, end, query_heads,
                   device_sums.get<float>(), kStream);
  device_sums.CopyTo(sums);
}

void DeviceTwin::WindowScores(const AttentionShape& shape, ElementType element,
                              const void* q_window, const float* lse, const void* k, int n,
                              int window, int kernel, ScorePooling pooling, float* scores) {
  if (n <= window) return;
  TailOnDevice tail(shape, element, q_window, lse, k, n, window);
  OnDevice scratch(WindowScoresScratchBytes(DeviceShapeOf(shape), n, window));
  OnDevice device_scores(size_t{1} * shape.num_kv_heads * (n - window) * sizeof(float));
  LaunchWindowScores(DeviceShapeOf(shape), tail.view, kernel, pooling, device_scores.get<float>(),
                     scratch.get(), kStream);
  device_scores.CopyTo(scores);
}

void DeviceTwin::SelectBest(const float* scores, int num_heads, int candidates, int best,
                            int32_t* indices) {
  OnDevice device_scores(scores, size_t{1} * num_heads * candidates * sizeof(float));
  OnDevice device_indices(size_t{1} * num_heads * best * sizeof(int32_t));
  LaunchSelectBest(device_scores.get<float>(), num_heads, candidates, best,
                   device_indices.get<int32_t>(), kStream);
  device_indices.CopyTo(indices);
}

int DeviceTwin::SelectWindows(const float* scores, int num_heads, int candidates, int review,
                              int best, int budget, int32_t* indices) {
  OnDevice device_scores(scores, size_t{1} * num_heads * candidates * sizeof(float));
  OnDevice device_indices(size_t{1} * budget * sizeof(int32_t)), device_count(sizeof(int32_t));
  OnDevice scratch(SelectWindowsScratchBytes(candidates, review));
  LaunchSelectWindows(device_scores.get<float>(), num_heads, candidates, review, best, budget,
                      device_indices.get<int32_t>(), device_count.get<int32_t>(), scratch.get(),
                      kStream);
  int32_t count = 0;
  device_count.CopyTo(&count);
  std::vector<int32_t> chosen(budget);
  device_indices.CopyTo(chosen.data());
  std::copy_n(chosen.begin(), count, indices);
  return count;
}

double DeviceTwin::CosineSum(const float* a, const float* b, int rows, int width) {
  const size_t bytes = size_t{1} * rows * width * sizeof(float);
  OnDevice device_a(a, bytes), device_b(b, bytes), scratch(CosineSumScratchBytes(rows));
  OnDevice device_sum(sizeof(double));
  LaunchCosineSum(device_a.get<float>(), device_b.get<float>(), rows, width,
                  device_sum.get<double>(), scratch.get(), kStream);
  double sum = 0;
  device_sum.CopyTo(&sum);
  return sum;
}

void DeviceTwin::AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                  const float* q, const float* lse, PoolView pool) {
  TableImage image;
  const DeviceItems device_items = image.AddItems(items, shape);
  CacheOnDevice cache(pool, image);
  const size_t rows = items.size() * shape.num_q_heads;
  OnDevice device_q(q, rows * shape.head_dim * sizeof(float));
  OnDevice device_lse(lse, rows * sizeof(float));
  LaunchAccumulateScores(DeviceShapeOf(shape), cache.view, device_items, device_q.get<float>(),
                         device_lse.get<float>(), kStream);
  cache.pool.CopyTo(pool.base);
}

double DeviceTwin::SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin,
                            int end, const float* q, const float* lse, PoolView pool) {
  TableImage image;
  const uint32_t word = image.AddSegment(segment);
  CacheOnDevice cache(pool, image);
  OnDevice device_q(q, size_t{1} * shape.num_q_heads * shape.head_dim * sizeof(float));
  OnDevice device_lse(lse, shape.num_q_heads * sizeof(float)), device_mass(sizeof(double));
  OnDevice scratch(SlotMassScratchBytes(DeviceShapeOf(shape)));
  LaunchSlotMass(DeviceShapeOf(shape), cache.view, word, begin, end, device_q.get<float>(),
                 device_lse.get<float>(), device_mass.get<double>(), scratch.get(), kStream);
  double mass = 0;
  device_mass.CopyTo(&mass);
  return mass;
}

}  // namespace ziggurat::cuda
