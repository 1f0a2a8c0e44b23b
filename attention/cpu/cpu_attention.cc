// How decode attention, prefill attention and the window scores are cut into jobs.

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/parallel.h"

namespace ziggurat::cpu {
namespace {

/// A decode job covers up to this many slots: long enough that the start, where nothing has been
/// fetched ahead, costs little, short enough to spread one sequence over threads.
constexpr int kSlotsPerTask = 1024;
/// Query rows (tokens x group) of a prefill job: they share the packing of each chunk of keys.
constexpr int kRowsPerTile = 128;
/// Keys of one job of the window scores.
constexpr int kKeysPerTask = 4 * kChunk;

HeadBlocks HeadArea(PoolView pool, const SegmentView& segment, const PlaneView& plane,
                    int kv_head) {
  const size_t head = static_cast<size_t>(kv_head - segment.first_kv_head);
  return {pool.base + head * plane.head_stride_bytes + plane.offset_bytes, pool.block_bytes,
          plane.blocks, plane.slots_per_block};
}

}  // namespace

// ---- Decode ------------------------------------------------------------------------------------

void CpuBackend::PlanDecode(const AttentionShape& shape, absl::Span<const DecodeItem> items) {
  tasks_.clear();
  first_task_.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      first_task_.push_back(tasks_.size());
      for (const SegmentView& segment : items[i].segments) {
        if (g < segment.first_kv_head || g >= segment.first_kv_head + segment.num_kv_heads)
          continue;
        if (segment.num_slots == 0) continue;
        // Parts of about equal length, on whole chunks.
        const int parts = (segment.num_slots + kSlotsPerTask - 1) / kSlotsPerTask;
        const int length = (segment.num_slots / parts + kChunk) / kChunk * kChunk;
        for (int begin = 0; begin < segment.num_slots; begin += length) {
          const int end = std::min(begin + length, segment.num_slots);
          tasks_.push_back({&segment, static_cast<int>(i), g, begin, end});
        }
      }
    }
  }
  first_task_.push_back(tasks_.size());
}

void CpuBackend::DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* q, PoolView pool, float* out, float* lse) {
  const int group = shape.group_size(), dim = shape.head_dim;
  PlanDecode(shape, items);
  const size_t partial_floats = static_cast<size_t>(group) * dim;
  partial_.resize(tasks_.size() * partial_floats);
  partial_lse_.resize(tasks_.size() * group);
  ReserveScratch(ScratchFloats(group, dim));
  ParallelFor(threads_, tasks_.size(), [&](size_t i, int thread) {
    const DecodeTask& task = tasks_[i];
    const size_t first_head = static_cast<size_t>(task.item) * shape.num_q_heads +
                              static_cast<size_t>(task.kv_head) * group;
    DecodeJob job;
    job.head_dim = dim;
    job.num_queries = group;
    job.scale = shape.scale;
    job.q = q + first_head * dim;
    job.keys = HeadArea(pool, *task.segment, task.segment->keys, task.kv_head);
    job.values = HeadArea(pool, *task.segment, task.segment->values, task.kv_head);
    job.begin = task.begin;
    job.end = task.end;
    job.scratch = scratch_[thread].data();
    job.out = partial_.data() + i * partial_floats;
    job.lse = partial_lse_.data() + i * group;
    Kernels(task.segment->element).decode(job);
  });
  MergeDecode(shape, items.size(), out, lse);
}

void CpuBackend::MergeDecode(const AttentionShape& shape, size_t num_items, float* out,
                             float* lse) {
  const size_t group = shape.group_size(), dim = shape.head_dim;
  ParallelRanges(threads_, num_items * shape.num_kv_heads, group * dim,
                 [&](size_t begin, size_t end) {
                   for (size_t unit = begin; unit < end; ++unit) {
                     for (size_t j = 0; j < group; ++j) {
                       const size_t row = unit * group + j;
                       AttentionState<float> state{out + row * dim};
                       for (size_t i = first_task_[unit]; i < first_task_[unit + 1]; ++i) {
                         Merge(AttentionState<float>{partial_.data() + (i * group + j) * dim,
                                                     partial_lse_[i * group + j]},
                               static_cast<int>(dim), &state);
                       }
                       if (first_task_[unit] == first_task_[unit + 1])
                         std::fill_n(state.output, dim, 0.0f);
                       if (lse != nullptr) lse[row] = state.lse;
                     }
                   }
                 });
}

// ---- Prefill -----------------------------------------------------------------------------------

void CpuBackend::PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                  ElementType element, const void* q, const void* k, const void* v,
                                  void* out, float* lse) {
  const int group = shape.group_size(), dim = shape.head_dim;
  const size_t head_bytes = dim * ElementBytes(element);
  const size_t q_row_bytes = shape.num_q_heads * head_bytes;
  const size_t kv_row_bytes = shape.num_kv_heads * head_bytes;
  const int tile = std::max(1, kRowsPerTile / group);

  struct Task {
    int sequence, kv_head, first;
  };
  std::vector<Task> tasks;
  for (int s = 0; s < sequences.num_sequences(); ++s) {
    for (int first = 0; first < sequences.length(s); first += tile) {
      for (int g = 0; g < shape.num_kv_heads; ++g) tasks.push_back({s, g, first});
    }
  }
  // The later in its sequence, the more keys a tile attends to: longest first balances the threads.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.first > b.first; });

  ReserveScratch(ScratchFloats(static_cast<size_t>(tile) * group, dim));
  ParallelFor(threads_, tasks.size(), [&](size_t i, int thread) {
    const Task& task = tasks[i];
    const size_t start = sequences.offsets[task.sequence];
    const size_t q_offset = (start + task.first) * q_row_bytes + task.kv_head * group * head_bytes;
    const size_t kv_offset = start * kv_row_bytes + task.kv_head * head_bytes;
    PrefillJob job;
    job.head_dim = dim;
    job.group_size = group;
    job.scale = shape.scale;
    job.first = task.first;
    job.count = std::min(tile, sequences.length(task.sequence) - task.first);
    job.q = static_cast<const std::byte*>(q) + q_offset;
    job.out = static_cast<std::byte*>(out) + q_offset;
    job.q_row_bytes = q_row_bytes;
    job.k = static_cast<const std::byte*>(k) + kv_offset;
    job.v = static_cast<const std::byte*>(v) + kv_offset;
    job.kv_row_bytes = kv_row_bytes;
    job.lse = lse + (start + task.first) * shape.num_q_heads + task.kv_head * group;
    job.lse_stride = shape.num_q_heads;
    job.scratch = scratch_[thread].data();
    Kernels(element).prefill(job);
  });
}

// ---- Statistics --------------------------------------------------------------------------------

namespace {

/// Pools scores[0 .. count) over neighbours, zeros beyond the edges.
void Pool(const float* scores, int count, int kernel, ScorePooling pooling, float* out) {
  const int reach = kernel / 2;
  for (int j = 0; j < count; ++j) {
    const int begin = std::max(0, j - reach), end = std::min(count, j + reach + 1);
    float sum = 0, highest = 0;  // scores are not negative
    for (int i = begin; i < end; ++i) {
      sum += scores[i];
      highest = std::max(highest, scores[i]);
    }
    out[j] = pooling == ScorePooling::kAverage ? sum / static_cast<float>(kernel) : highest;
  }
}

}  // namespace

void CpuBackend::WindowScores(const AttentionShape& shape, ElementType element,
                              const void* q_window, const float* lse, const void* k, int n,
                              int window, int kernel, ScorePooling pooling, float* scores) {
  const int candidates = n - window;
  if (candidates <= 0) return;
  const int group = shape.group_size();
  const size_t head_bytes = shape.head_dim * ElementBytes(element);
  const size_t parts = (candidates + kKeysPerTask - 1) / kKeysPerTask;
  column_means_.resize(static_cast<size_t>(shape.num_kv_heads) * candidates);
  ReserveScratch(ScratchFloats(static_cast<size_t>(window) * group, shape.head_dim));
  ParallelFor(threads_, shape.num_kv_heads * parts, [&](size_t i, int thread) {
    const size_t g = i / parts;
    WindowScoresJob job;
    job.head_dim = shape.head_dim;
    job.group_size = group;
    job.scale = shape.scale;
    job.window = window;
    job.q = static_cast<const std::byte*>(q_window) + g * group * head_bytes;
    job.q_row_bytes = shape.num_q_heads * head_bytes;
    job.lse = lse + g * group;
    job.lse_stride = shape.num_q_heads;
    job.k = static_cast<const std::byte*>(k) + g * head_bytes;
    job.kv_row_bytes = shape.num_kv_heads * head_bytes;
    job.begin = static_cast<int>(i % parts) * kKeysPerTask;
    job.end = std::min(job.begin + kKeysPerTask, candidates);
    job.scores = column_means_.data() + g * candidates + job.begin;
    job.scratch = scratch_[thread].data();
    Kernels(element).window_scores(job);
  });
  ParallelFor(threads_, shape.num_kv_heads, [&](size_t g, int) {
    Pool(column_means_.data() + g * candidates, candidates, kernel, pooling,
         scores + g * candidates);
  });
}

}  // namespace ziggurat::cpu
