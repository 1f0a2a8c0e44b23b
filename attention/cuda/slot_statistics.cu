// Attention that slots of the cache receive, and how much a layer changes its input.
#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/slot_scores.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 8;   ///< query heads whose scores are computed together
constexpr int kSplits = 4;  ///< blocks that share the slots of a head

/// For slots begin + thread, + kThreads ..: add(slot, mean over the query heads of the KV head of
/// exp(scale q.k - lse)). `q_rows` is shared memory, [kHeads, head_dim]; `first`, `step`: which
/// slots are this block's.
///   q  [num_q_heads, head_dim];  lse  [num_q_heads]
template <class Add>
__device__ void ForEachReceived(const AttentionShape& shape, const DeviceCache& cache,
                                const DeviceSegment& s, int head, int begin, int end,
                                const float* q, const float* lse, float* q_rows, int first,
                                int step, Add add) {
  const int group = shape.group_size(), dim = shape.head_dim;
  const int first_head = (s.first_kv_head + head) * group;
  for (int base = begin + first; base < end; base += step) {
    const int slot = base + static_cast<int>(threadIdx.x);
    float received = 0;
    for (int h = 0; h < group; h += kHeads) {
      const int heads = min(kHeads, group - h);
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kHeads * dim; i += kThreads) {
        q_rows[i] = i < heads * dim ? q[static_cast<size_t>(first_head + h) * dim + i] : 0;
      }
      __syncthreads();
      if (slot >= end) continue;
      float dots[kHeads];
      SlotDots<kHeads>(cache, s, head, slot, q_rows, dim, dots);
      for (int j = 0; j < heads; ++j)
        received += expf(shape.scale * dots[j] - lse[first_head + h + j]);
    }
    if (slot < end) add(slot, received / static_cast<float>(group));
  }
}

/// Blocks for each item (x) and KV head (y), kSplits of them (z).
__global__ void __launch_bounds__(kThreads)
    AccumulateScores(AttentionShape shape, DeviceCache cache, DeviceItems items, const float* q,
                     const float* lse) {
  ZIGGURAT_SHARED_MEMORY(memory);
  const int i = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  if (i >= items.size(cache)) return;
  const DeviceItem& item = items.item(cache, i);
  const size_t row = static_cast<size_t>(i) * shape.num_q_heads;
  for (int n = 0; n < item.num_segments; ++n) {
    const DeviceSegment& s = cache.segment(item, n);
    if (!s.scores.exists() || !s.covers(kv_head)) continue;
    const int head = kv_head - s.first_kv_head;
    ForEachReceived(shape, cache, s, head, 0, s.num_slots, q + row * shape.head_dim, lse + row,
                    reinterpret_cast<float*>(memory), static_cast<int>(blockIdx.z) * kThreads,
                    kSplits * kThreads, [&](int slot, float received) {
                      EntryOf<float>(cache, s.scores, head, slot) += received;
                    });
  }
}

/// A block for each KV head: the sum over its slots.
__global__ void __launch_bounds__(kThreads)
    SlotMass(AttentionShape shape, DeviceCache cache, uint32_t word, int begin, int end,
             const float* q, const float* lse, double* of_heads) {
  ZIGGURAT_SHARED_MEMORY(memory);
  ZIGGURAT_SHARED(double[kThreads / kWarp], scratch);
  const int head = static_cast<int>(blockIdx.x);
  double sum = 0;
  ForEachReceived(shape, cache, cache.segment(word), head, begin, end, q, lse,
                  reinterpret_cast<float*>(memory), 0, kThreads,
                  [&](int, float received) { sum += static_cast<double>(received); });
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) of_heads[head] = sum;
}

/// A block for each row.
__global__ void __launch_bounds__(kThreads)
    Cosines(const float* a, const float* b, int width, double* cosines) {
  ZIGGURAT_SHARED(double[kThreads / kWarp], scratch);
  const size_t first = size_t{blockIdx.x} * width;
  double dot = 0, squares_a = 0, squares_b = 0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const auto x = static_cast<double>(a[first + i]), y = static_cast<double>(b[first + i]);
    dot += x * y;
    squares_a += x * x;
    squares_b += y * y;
  }
  dot = BlockSum(dot, scratch);
  squares_a = BlockSum(squares_a, scratch);
  squares_b = BlockSum(squares_b, scratch);
  if (threadIdx.x != 0) return;
  if (squares_a == 0 || squares_b == 0) {
    cosines[blockIdx.x] = squares_a == squares_b ? 1 : 0;
  } else {
    cosines[blockIdx.x] = dot / (sqrt(squares_a) * sqrt(squares_b));
  }
}

__global__ void __launch_bounds__(kThreads)
    OrderedSum(const double* values, int count, double factor, double* out) {
  ZIGGURAT_SHARED(double[kThreads / kWarp], scratch);
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += values[i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) *out = sum * factor;
}

size_t QueryRowsBytes(const AttentionShape& shape) {
  return kHeads * shape.head_dim * sizeof(float);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchAccumulateScores(const AttentionShape& shape, const DeviceCache& cache,
                            const DeviceItems& items, const float* q, const float* lse,
                            cudaStream_t stream) {
  if (items.capacity == 0) return;
  const dim3 grid{static_cast<unsigned>(items.capacity), static_cast<unsigned>(shape.num_kv_heads),
                  kSplits};
  Launch(AccumulateScores, grid, dim3{kThreads}, QueryRowsBytes(shape), stream, shape, cache, items,
         q, lse);
}

size_t SlotMassScratchBytes(const AttentionShape& shape) {
  return shape.num_kv_heads * sizeof(double);
}

void LaunchSlotMass(const AttentionShape& shape, const DeviceCache& cache, uint32_t segment,
                    int begin, int end, const float* q, const float* lse, double* mass,
                    void* scratch, cudaStream_t stream) {
  auto* of_heads = static_cast<double*>(scratch);
  Launch(SlotMass, dim3{static_cast<unsigned>(shape.num_kv_heads)}, dim3{kThreads},
         QueryRowsBytes(shape), stream, shape, cache, segment, begin, end, q, lse, of_heads);
  LaunchOrderedSum(of_heads, shape.num_kv_heads, 1.0 / shape.num_kv_heads, mass, stream);
}

size_t CosineSumScratchBytes(int rows) { return rows * sizeof(double); }

void LaunchCosineSum(const float* a, const float* b, int rows, int width, double* sum,
                     void* scratch, cudaStream_t stream) {
  auto* cosines = static_cast<double*>(scratch);
  if (rows > 0) {
    Launch(Cosines, dim3{static_cast<unsigned>(rows)}, dim3{kThreads}, 0, stream, a, b, width,
           cosines);
  }
  LaunchOrderedSum(cosines, rows, 1, sum, stream);
}

void LaunchOrderedSum(const double* values, int count, double factor, double* out,
                      cudaStream_t stream) {
  Launch(OrderedSum, dim3{1}, dim3{kThreads}, 0, stream, values, count, factor, out);
}

}  // namespace ziggurat::cuda
