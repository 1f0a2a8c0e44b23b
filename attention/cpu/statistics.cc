// What policies ask of a prompt: attention that keys receive, and how much a layer changes.

#include <algorithm>

#include "attention/cpu/cpu_backend.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Pools scores[0 .. count) over neighbours, zeros beyond the edges.
void Pool(const float* scores, int count, int kernel, WindowPooling pooling, float* out) {
  const int reach = kernel / 2;
  for (int j = 0; j < count; ++j) {
    const int begin = std::max(0, j - reach), end = std::min(count, j + reach + 1);
    float sum = 0, highest = 0;  // scores are not negative
    for (int i = begin; i < end; ++i) {
      sum += scores[i];
      highest = std::max(highest, scores[i]);
    }
    out[j] = pooling == WindowPooling::kAverage ? sum / static_cast<float>(kernel) : highest;
  }
}

}  // namespace

int CpuBackend::column_part_keys() const { return kChunk; }

void CpuBackend::ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                            ScoreRows score_rows, float* sums, size_t stride) {
  if (begin >= end) return;
  const size_t group = shape.group_size(), kv_heads = shape.num_kv_heads;
  const size_t head_bytes = shape.head_dim * ElementBytes(tail.element), width = end - begin;
  // Fewer keys a job where there would be less than a few for each thread.
  const size_t chunks = width * kv_heads / (size_t{4} * threads_ * kChunk);
  const size_t columns = kChunk * std::clamp<size_t>(chunks, 1, kColumnsPerJob / kChunk);
  const size_t parts = (width + columns - 1) / columns;
  scratch_.Reserve(ColumnScratchFloats(group, shape.head_dim));
  // Keys at the beginning are seen by most queries: longest first balances the threads.
  ParallelFor(threads_, kv_heads * parts, [&](size_t i, int thread) {
    const size_t g = i % kv_heads, offset = i / kv_heads * columns;
    ColumnSumsJob job;
    job.head_dim = shape.head_dim;
    job.group_size = shape.group_size();
    job.scale = shape.scale;
    job.first = tail.n - tail.rows;
    job.count = tail.rows;
    job.q = static_cast<const std::byte*>(tail.q_rows) + g * group * head_bytes;
    job.q_row_bytes = shape.num_q_heads * head_bytes;
    job.lse = tail.lse + g * group;
    job.lse_stride = shape.num_q_heads;
    job.k = static_cast<const std::byte*>(tail.k) + g * head_bytes;
    job.kv_row_bytes = kv_heads * head_bytes;
    job.begin = begin + static_cast<int>(offset);
    job.end = std::min(job.begin + static_cast<int>(columns), end);
    job.scratch = scratch_.of(thread);
    if (score_rows == ScoreRows::kQueryHeads) {
      job.sums = sums + g * group * stride + offset;
      job.head_stride = stride;
      Kernels(tail.element).column_sums(job);
      return;
    }
    job.sums = sums + g * stride + offset;
    job.head_stride = 0;
    Kernels(tail.element).column_sums(job);
    for (int t = 0; t < job.end - job.begin; ++t) job.sums[t] /= static_cast<float>(group);
  });
}

void CpuBackend::WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                              WindowPooling pooling, float* scores) {
  const int candidates = tail.n - tail.rows;
  if (candidates <= 0) return;
  column_means_.resize(static_cast<size_t>(shape.num_kv_heads) * candidates);
  ColumnSums(shape, tail, 0, candidates, ScoreRows::kKvHeads, column_means_.data(), candidates);
  for (float& mean : column_means_) mean /= static_cast<float>(tail.rows);
  ParallelFor(threads_, shape.num_kv_heads, [&](size_t g, int) {
    Pool(column_means_.data() + g * candidates, candidates, kernel, pooling,
         scores + g * candidates);
  });
}

double CpuBackend::CosineSum(const float* a, const float* b, int rows, int width) {
  std::vector<double> cosines(rows);
  ParallelRanges(threads_, rows, width, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      cosines[r] = kernels_.cosine(a + r * width, b + r * width, width);
    }
  });
  double sum = 0;  // in one order, whatever the threads
  for (double cosine : cosines) sum += cosine;
  return sum;
}

}  // namespace ziggurat::cpu
