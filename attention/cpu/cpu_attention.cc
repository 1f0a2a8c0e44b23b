// How decode attention, prefill attention and the window scores are cut into jobs.

#include <algorithm>
#include <atomic>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Neighbouring heads of a decode job: as many as keep a chunk's keys and values, and those of the
/// next chunk, well inside any L2. What they hold of a block is read as one contiguous run.
constexpr size_t kChunkBytes = 128 << 10;
/// Keys and values of a decode job: long enough to make the merge of its result cheap. A segment
/// that is shorter than a few of these is still cut in up to kFewParts, so that one sequence alone
/// keeps several threads busy.
constexpr size_t kTaskBytes = 2 << 20;
constexpr size_t kSmallTaskBytes = 256 << 10;
constexpr size_t kFewParts = 4;
/// Query rows (tokens x group) of a prefill job: they share the packing of each chunk of keys.
constexpr int kRowsPerTile = 128;
/// Keys of one job of the window scores.
constexpr int kKeysPerTask = 4 * kChunk;
// Tokens of an observation window that are scored at a time: bounds the scratch of a wide window.
constexpr int kWindowTokens = 64;

HeadBlocks HeadAreas(PoolView pool, const SegmentView& segment, const PlaneView& plane,
                     int first_head) {
  const size_t head = static_cast<size_t>(first_head - segment.first_kv_head);
  return {pool.base + head * plane.head_stride_bytes + plane.offset_bytes, pool.block_bytes,
          plane.head_stride_bytes, plane.blocks, plane.slots_per_block};
}

}  // namespace

// ---- Decode ------------------------------------------------------------------------------------

size_t CpuBackend::PlanDecode(const AttentionShape& shape, absl::Span<const DecodeItem> items) {
  const int group = shape.group_size();
  size_t rows = 0;
  tasks_.clear();
  partial_rows_.resize(items.size() * shape.num_kv_heads);
  for (std::vector<size_t>& list : partial_rows_) list.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    for (const SegmentView& segment : items[i].segments) {
      if (segment.num_slots == 0) continue;
      const size_t slot_bytes = 2 * shape.head_dim * ElementBytes(segment.element);
      const int heads = std::clamp<int>(static_cast<int>(kChunkBytes / (kChunk * slot_bytes)), 1,
                                        segment.num_kv_heads);
      // Parts of about equal length, on whole chunks.
      const size_t bytes = segment.num_slots * slot_bytes * heads;
      const size_t few = std::clamp<size_t>(bytes / kSmallTaskBytes, 1, kFewParts);
      const size_t parts = std::max(few, bytes / kTaskBytes);
      const int length =
          static_cast<int>((segment.num_slots + parts * kChunk - 1) / (parts * kChunk)) * kChunk;
      for (int head = 0; head < segment.num_kv_heads; head += heads) {
        const int first_head = segment.first_kv_head + head;
        const int num_heads = std::min(heads, segment.num_kv_heads - head);
        for (int begin = 0; begin < segment.num_slots; begin += length) {
          const int end = std::min(begin + length, segment.num_slots);
          tasks_.push_back(
              {&segment, static_cast<int>(i), first_head, num_heads, begin, end, rows});
          for (int g = 0; g < num_heads; ++g, rows += group) {
            partial_rows_[i * shape.num_kv_heads + first_head + g].push_back(rows);
          }
        }
      }
    }
  }
  return rows;
}

DecodeJob CpuBackend::JobOf(const DecodeTask& task, const AttentionShape& shape, const float* q,
                            PoolView pool, int thread) {
  const size_t dim = shape.head_dim, group = shape.group_size();
  DecodeJob job = {};
  job.head_dim = shape.head_dim;
  job.num_heads = task.num_heads;
  job.group_size = shape.group_size();
  job.scale = shape.scale;
  job.q = q + (static_cast<size_t>(task.item) * shape.num_q_heads + task.first_head * group) * dim;
  job.keys = HeadAreas(pool, *task.segment, task.segment->keys, task.first_head);
  job.values = HeadAreas(pool, *task.segment, task.segment->values, task.first_head);
  job.begin = task.begin;
  job.end = task.end;
  job.scratch = scratch_[thread].data();
  job.out = partial_.data() + task.partial * dim;
  job.lse = partial_lse_.data() + task.partial;
  return job;
}

void CpuBackend::DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* q, PoolView pool, float* out, float* lse) {
  const size_t rows = PlanDecode(shape, items);
  partial_.resize(rows * shape.head_dim);
  partial_lse_.resize(rows);
  ReserveScratch(ScratchFloats(shape.num_q_heads, shape.head_dim));
  // Every thread takes its next task before it works on the present one, so that the first blocks
  // of the next can be fetched meanwhile.
  std::atomic<size_t> next{0};
  ParallelThreads(std::min<size_t>(threads_, tasks_.size()), [&](int thread) {
    size_t i = next.fetch_add(1);
    for (bool is_first = true; i < tasks_.size(); is_first = false) {
      const size_t after = next.fetch_add(1);
      DecodeJob job = JobOf(tasks_[i], shape, q, pool, thread), following;
      job.is_first = is_first;
      if (after < tasks_.size() && tasks_[after].segment->element == tasks_[i].segment->element) {
        following = JobOf(tasks_[after], shape, q, pool, thread);
        job.following = &following;
      }
      Kernels(tasks_[i].segment->element).decode(job);
      i = after;
    }
  });
  MergeDecode(shape, items.size(), out, lse);
}

void CpuBackend::MergeDecode(const AttentionShape& shape, size_t num_items, float* out,
                             float* lse) {
  const size_t group = shape.group_size(), dim = shape.head_dim;
  const size_t units = num_items * shape.num_kv_heads;
  ParallelRanges(threads_, units, group * dim, [&](size_t begin, size_t end) {
    for (size_t unit = begin; unit < end; ++unit) {
      for (size_t j = 0; j < group; ++j) {
        const size_t row = unit * group + j;
        AttentionState<float> state{out + row * dim};
        if (partial_rows_[unit].empty()) std::fill_n(state.output, dim, 0.0f);
        for (size_t partial : partial_rows_[unit]) {
          Merge(AttentionState<float>{partial_.data() + (partial + j) * dim,
                                      partial_lse_[partial + j]},
                shape.head_dim, &state);
        }
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
  ReserveScratch(
      ScratchFloats(static_cast<size_t>(std::min(window, kWindowTokens)) * group, shape.head_dim));
  ParallelFor(threads_, shape.num_kv_heads * parts, [&](size_t i, int thread) {
    const size_t g = i / parts;
    WindowScoresJob job;
    job.head_dim = shape.head_dim;
    job.group_size = group;
    job.scale = shape.scale;
    job.q_row_bytes = shape.num_q_heads * head_bytes;
    job.lse_stride = shape.num_q_heads;
    job.k = static_cast<const std::byte*>(k) + g * head_bytes;
    job.kv_row_bytes = shape.num_kv_heads * head_bytes;
    job.begin = static_cast<int>(i % parts) * kKeysPerTask;
    job.end = std::min(job.begin + kKeysPerTask, candidates);
    job.scratch = scratch_[thread].data();
    float part[kKeysPerTask];
    job.scores = part;
    float* means = column_means_.data() + g * candidates + job.begin;
    std::fill(means, means + (job.end - job.begin), 0.0f);
    for (int first = 0; first < window; first += kWindowTokens) {
      job.window = std::min(kWindowTokens, window - first);
      job.q = static_cast<const std::byte*>(q_window) + first * job.q_row_bytes +
              g * group * head_bytes;
      job.lse = lse + first * job.lse_stride + g * group;
      Kernels(element).window_scores(job);
      const float share = static_cast<float>(job.window) / static_cast<float>(window);
      for (int t = 0; t < job.end - job.begin; ++t) means[t] += share * part[t];
    }
  });
  ParallelFor(threads_, shape.num_kv_heads, [&](size_t g, int) {
    Pool(column_means_.data() + g * candidates, candidates, kernel, pooling,
         scores + g * candidates);
  });
}

}  // namespace ziggurat::cpu
