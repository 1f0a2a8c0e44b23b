// How prefill attention is cut into jobs.

#include <algorithm>

#include "attention/cpu/cpu_backend.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Query rows (tokens x group) of a prefill job: they share the packing of each chunk of keys.
constexpr int kRowsPerTile = 256;

/// Tokens of a prefill job: a multiple of eight where there is room for that, so that sub-blocks of
/// query rows are whole ones.
int TokensPerTile(int group_size) {
  const int tokens = kRowsPerTile / group_size;
  return tokens >= 8 ? tokens / 8 * 8 : std::max(1, tokens);
}

const std::byte* At(const void* base, size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

/// Where the heads and rows of packed prompts lie.
struct PromptRows {
  const AttentionShape& shape;
  const PromptTensors& at;

  size_t head_bytes() const { return shape.head_dim * ElementBytes(at.element); }
  size_t q_row_bytes() const { return shape.num_q_heads * head_bytes(); }
  size_t kv_row_bytes() const { return shape.num_kv_heads * head_bytes(); }
  /// Bytes from the start of q, and of k or v, to what KV head `g` has of row `row`.
  size_t QOffset(size_t row, int g) const {
    return row * q_row_bytes() + g * shape.group_size() * head_bytes();
  }
  size_t KvOffset(size_t row, int g) const { return row * kv_row_bytes() + g * head_bytes(); }

  /// `count` tokens from `first` on of the prompt that starts at row `start`.
  PrefillJob Job(size_t start, int first, int count, int g, float* scratch) const {
    PrefillJob job;
    job.head_dim = shape.head_dim;
    job.group_size = shape.group_size();
    job.scale = shape.scale;
    job.first = first;
    job.count = count;
    job.q = At(at.q, QOffset(start + first, g));
    job.out = static_cast<std::byte*>(at.out) + QOffset(start + first, g);
    job.q_row_bytes = q_row_bytes();
    job.k = At(at.k, KvOffset(start, g));
    job.v = At(at.v, KvOffset(start, g));
    job.kv_row_bytes = kv_row_bytes();
    job.lse = at.lse + (start + first) * shape.num_q_heads + g * shape.group_size();
    job.lse_stride = shape.num_q_heads;
    job.scratch = scratch;
    return job;
  }
};

struct PrefillTask {
  int sequence, kv_head, first, count;
};

/// Tiles of the queries asked for, longest first: the later in its sequence, the more keys a tile
/// attends to.
std::vector<PrefillTask> CutPrompts(const AttentionShape& shape, const PackedSequences& sequences,
                                    int tile) {
  std::vector<PrefillTask> tasks;
  for (int s = 0; s < sequences.num_sequences(); ++s) {
    const int start = sequences.offsets[s];
    const int end = std::min(sequences.length(s), sequences.end_row - start);
    for (int first = std::max(0, sequences.first_row - start); first < end; first += tile) {
      const int count = std::min(tile, end - first);
      for (int g = 0; g < shape.num_kv_heads; ++g) tasks.push_back({s, g, first, count});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const PrefillTask& a, const PrefillTask& b) { return a.first > b.first; });
  return tasks;
}

}  // namespace

int CpuBackend::attention_part_rows(const AttentionShape& shape) const {
  return TokensPerTile(shape.group_size());
}

void CpuBackend::PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                  const PromptTensors& prompts) {
  const PromptRows rows = {shape, prompts};
  const int tile = TokensPerTile(shape.group_size());
  const std::vector<PrefillTask> tasks = CutPrompts(shape, sequences, tile);
  scratch_.Reserve(
      PrefillScratchFloats(static_cast<size_t>(tile) * shape.group_size(), shape.head_dim));
  ParallelFor(threads_, tasks.size(), [&](size_t i, int thread) {
    const PrefillTask& task = tasks[i];
    Kernels(prompts.element)
        .prefill(rows.Job(sequences.offsets[task.sequence], task.first, task.count, task.kv_head,
                          scratch_.of(thread)));
  });
}

void CpuBackend::PrefillDistantAttention(const AttentionShape& shape, int n,
                                         const PromptTensors& prompt, const DistantPrefill& distant,
                                         DistantCounts* counts) {
  const PromptRows rows = {shape, prompt};
  const int tile = TokensPerTile(shape.group_size());
  const int offsets[] = {0, n};
  const std::vector<PrefillTask> tasks =
      CutPrompts(shape, {offsets, distant.first_row, std::min(n, distant.end_row)}, tile);
  scratch_.Reserve(
      DistantScratchFloats(static_cast<size_t>(tile) * shape.group_size(), shape.head_dim));
  std::vector<DistantCounts> of_threads(threads_);
  ParallelFor(threads_, tasks.size(), [&](size_t i, int thread) {
    const PrefillTask& task = tasks[i];
    const PrefillJob near = rows.Job(0, task.first, task.count, task.kv_head, scratch_.of(thread));
    if (distant.borrows[task.kv_head] == 0) {
      Kernels(prompt.element).prefill(near);
      return;
    }
    DistantPrefillJob job;
    job.near = near;
    job.low_q = At(distant.low_q, rows.QOffset(task.first, task.kv_head));
    job.low_k = At(distant.low_k, rows.KvOffset(0, task.kv_head));
    job.sinks = distant.sinks;
    job.recent = distant.recent;
    job.skip = distant.skip;
    job.attended = &of_threads[thread].attended;
    job.skipped = &of_threads[thread].skipped;
    Kernels(prompt.element).distant_prefill(job);
  });
  if (counts == nullptr) return;
  for (const DistantCounts& own : of_threads) {
    counts->attended += own.attended;
    counts->skipped += own.skipped;
  }
}

}  // namespace ziggurat::cpu
