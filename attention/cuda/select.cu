// Which tokens are kept: the best of each head, or the best windows of a prompt.
#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;

/// A block for each head: finds the lowest score that is kept, then gathers in order.
__global__ void __launch_bounds__(kThreads)
    SelectBest(const float* scores, size_t stride, int candidates, int best, int32_t* indices) {
  __shared__ CutMemory memory;
  __shared__ int scratch[2][kThreads / kWarp];
  __shared__ int sums[2];
  const float* own = scores + blockIdx.x * stride;
  int32_t* to = indices + static_cast<size_t>(blockIdx.x) * best;
  const int thread = static_cast<int>(threadIdx.x);
  const auto key = [&](int i) { return RankedKey(own[i]); };
  const Cut cut = FindCut(
      candidates, best, key, [](int) { return 1; }, &memory);
  const int of_cut = best - static_cast<int>(cut.above);  // kept of those that equal the cut
  if (thread == 0) sums[0] = sums[1] = 0;
  for (int base = 0; base < candidates; base += kThreads) {
    const int i = base + thread;
    const bool inside = i < candidates;
    const bool is_above = inside && key(i) > cut.key, is_equal = inside && key(i) == cut.key;
    __syncthreads();  // the sums so far
    const int above = sums[0] + InclusiveSum(static_cast<int>(is_above), scratch[0]);
    const int equal = sums[1] + InclusiveSum(static_cast<int>(is_equal), scratch[1]);
    if (is_above || (is_equal && equal <= of_cut)) to[above + min(equal, of_cut) - 1] = i;
    __syncthreads();
    if (thread == kThreads - 1) sums[0] = above, sums[1] = equal;
  }
}

struct WindowsScratch {
  double* scores;   ///< [windows]
  int32_t* order;   ///< [windows] best first
  int32_t* offset;  ///< [windows] where its indices begin, or -1
  float* sorted;    ///< [warps, review]

  static size_t Bytes(size_t windows, size_t review) {
    return windows * (sizeof(double) + 2 * sizeof(int32_t)) +
           kThreads / kWarp * review * sizeof(float);
  }
  ZIGGURAT_HOST_DEVICE WindowsScratch(void* memory, size_t windows) {
    scores = static_cast<double*>(memory);
    order = reinterpret_cast<int32_t*>(scores + windows);
    offset = order + windows;
    sorted = reinterpret_cast<float*>(offset + windows);
  }
};

/// Mean of the `counted` best of `length` scores; one warp. `sorted` [length] is scratch.
__device__ double MeanOfBest(const float* scores, int length, int counted, float* sorted) {
  __syncwarp();  // the mean before this one was read from it
  for (int i = LaneOfThread(); i < length; i += kWarp) {
    const uint32_t own = RankedKey(scores[i]);
    int rank = 0;
    for (int j = 0; j < length; ++j) {
      const uint32_t other = RankedKey(scores[j]);
      rank += other > own || (other == own && j < i);
    }
    sorted[rank] = scores[i] != scores[i] ? -INFINITY : scores[i];
  }
  __syncwarp();
  // In falling order, so that equal windows have equal means to the last bit.
  double sum = 0;
  for (int i = 0; i < counted; ++i) sum += static_cast<double>(sorted[i]);
  return sum / counted;
}

/// One block.
__global__ void __launch_bounds__(kThreads)
    SelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                  int budget, int32_t* indices, int32_t* count, void* memory) {
  const int windows = (candidates + review - 1) / review, thread = static_cast<int>(threadIdx.x);
  const WindowsScratch scratch(memory, windows);
  float* sorted = scratch.sorted + static_cast<size_t>(WarpOfThread()) * review;
  const auto length_of = [&](int w) { return min(review, candidates - w * review); };
  for (int w = WarpOfThread(); w < windows; w += kThreads / kWarp) {
    double score = 0;
    for (int h = 0; h < num_heads; ++h) {
      const float* own = scores + static_cast<size_t>(h) * candidates + w * review;
      score += MeanOfBest(own, length_of(w), min(best, length_of(w)), sorted) / num_heads;
    }
    if (LaneOfThread() == 0) scratch.scores[w] = score;
  }
  __syncthreads();
  for (int w = thread; w < windows; w += kThreads) {
    int rank = 0;
    for (int other = 0; other < windows; ++other) {
      rank += scratch.scores[other] > scratch.scores[w] ||
              (scratch.scores[other] == scratch.scores[w] && other < w);
    }
    scratch.order[rank] = w;
    scratch.offset[w] = -1;
  }
  __syncthreads();
  if (thread == 0) {
    int kept = 0;
    for (int rank = 0; rank < windows && kept < budget; ++rank) {
      const int w = scratch.order[rank];
      if (length_of(w) > budget - kept) continue;
      kept += length_of(w);
      scratch.offset[w] = 0;
    }
    *count = kept;
    for (int w = 0, at = 0; w < windows; ++w) {
      if (scratch.offset[w] < 0) continue;
      scratch.offset[w] = at;
      at += length_of(w);
    }
  }
  __syncthreads();
  for (int j = thread; j < candidates; j += kThreads) {
    const int offset = scratch.offset[j / review];
    if (offset >= 0) indices[offset + j % review] = j;
  }
}

unsigned BlocksFor(int count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

/// A thread for each token (x) of each head (y).
__global__ void __launch_bounds__(kThreads)
    KeepSelected(const int32_t* best_of, size_t stride, int best, int first_recent, int recent,
                 int32_t* kept) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), head = blockIdx.y;
  if (i >= best + recent) return;
  kept[static_cast<size_t>(head) * (best + recent) + i] =
      i < best ? best_of[head * stride + i] : first_recent + i - best;
}

/// A thread for each number (x) of each head (y).
__global__ void __launch_bounds__(kThreads)
    Complement(const int32_t* chosen, int count, int n, int32_t* rest) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), head = blockIdx.y;
  if (i >= n) return;
  const int32_t* own = chosen + static_cast<size_t>(head) * count;
  int below = 0;  // numbers of the list that are less than i
  for (int end = count; below < end;) {
    const int middle = (below + end) / 2;
    if (own[middle] < i) {
      below = middle + 1;
    } else {
      end = middle;
    }
  }
  if (below < count && own[below] == i) return;
  rest[static_cast<size_t>(head) * (n - count) + i - below] = i;
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchSelectBest(const float* scores, size_t stride, int num_heads, int candidates, int best,
                      int32_t* indices, cudaStream_t stream) {
  if (best == 0 || num_heads == 0) return;
  Launch(SelectBest, dim3{static_cast<unsigned>(num_heads)}, dim3{kThreads}, 0, stream, scores,
         stride, candidates, best, indices);
}

void LaunchKeepSelected(const int32_t* best_of, size_t stride, int heads, int best,
                        int first_recent, int recent, int32_t* kept, cudaStream_t stream) {
  if (heads == 0 || best + recent == 0) return;
  Launch(KeepSelected, dim3{BlocksFor(best + recent), static_cast<unsigned>(heads)}, dim3{kThreads},
         0, stream, best_of, stride, best, first_recent, recent, kept);
}

void LaunchComplement(const int32_t* chosen, int heads, int count, int n, int32_t* rest,
                      cudaStream_t stream) {
  if (heads == 0 || n == 0) return;
  Launch(Complement, dim3{BlocksFor(n), static_cast<unsigned>(heads)}, dim3{kThreads}, 0, stream,
         chosen, count, n, rest);
}

size_t SelectWindowsScratchBytes(int candidates, int review) {
  return WindowsScratch::Bytes((candidates + review - 1) / review, review);
}

void LaunchSelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                         int budget, int32_t* indices, int32_t* count, void* scratch,
                         cudaStream_t stream) {
  Launch(SelectWindows, dim3{1}, dim3{kThreads}, 0, stream, scores, num_heads, candidates, review,
         best, budget, indices, count, scratch);
}

}  // namespace ziggurat::cuda
