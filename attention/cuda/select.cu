// Which tokens are kept: the best of each head, or the best windows of a prompt.
#include <algorithm>

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

/// A block for each head: finds the lowest score that is kept, then gathers in order.
__global__ void __launch_bounds__(kThreads)
    SelectBest(const float* scores, size_t stride, int candidates, int best, int32_t* indices) {
  ZIGGURAT_SHARED(CutMemory, memory);
  ZIGGURAT_SHARED(int[2][kThreads / kWarp], scratch);
  ZIGGURAT_SHARED(int[2], sums);
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

unsigned BlocksFor(int count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

/// The windows of a prompt: `review` of `candidates` scores each, the last what is left.
struct Windows {
  int candidates;
  int review;

  ZIGGURAT_HOST_DEVICE int count() const {
    return candidates / review + (candidates % review != 0 ? 1 : 0);
  }
  /// No window is longer than the first.
  ZIGGURAT_HOST_DEVICE int LengthOf(int w) const {
    const int left = candidates - w * review;
    return review < left ? review : left;
  }
};

struct WindowsScratch {
  /// Blocks that score windows, one after the other.
  static constexpr int kMostBlocks = 128;

  double* scores;   ///< [windows]
  int32_t* rank;    ///< [windows] how many come before it
  int32_t* offset;  ///< [windows] where its indices begin, or -1
  float* sorted;    ///< [warps, scores of a window]

  static int Blocks(int windows) { return std::min(windows, kMostBlocks); }
  static size_t Bytes(const Windows& windows) {
    const auto count = static_cast<size_t>(windows.count());
    return count * (sizeof(double) + 2 * sizeof(int32_t)) +
           sizeof(float) * Blocks(windows.count()) * kWarps * windows.LengthOf(0);
  }
  ZIGGURAT_HOST_DEVICE WindowsScratch(void* memory, size_t windows) {
    scores = static_cast<double*>(memory);
    rank = reinterpret_cast<int32_t*>(scores + windows);
    offset = rank + windows;
    sorted = reinterpret_cast<float*>(offset + windows);
  }
};

/// Sum of the `counted` best of `length` scores; one warp. `sorted` [length] is scratch.
__device__ double SumOfBest(const float* scores, int length, int counted, float* sorted) {
  __syncwarp();  // the sum before this one was read from it
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
  // In falling order, so that equal windows have equal sums to the last bit.
  double sum = 0;
  for (int i = 0; i < counted; ++i) sum += static_cast<double>(sorted[i]);
  return sum;
}

/// A block for each window, a warp for each head: the mean over the heads, and over the best of
/// each. Shared memory: a double for each head.
__global__ void __launch_bounds__(kThreads)
    ScoreWindows(const float* scores, int num_heads, Windows windows, int best, void* memory) {
  ZIGGURAT_SHARED_MEMORY(shared);
  auto* sums = reinterpret_cast<double*>(shared);
  const WindowsScratch scratch(memory, windows.count());
  const int warp = static_cast<int>(blockIdx.x) * kWarps + WarpOfThread();
  float* sorted = scratch.sorted + static_cast<size_t>(warp) * windows.LengthOf(0);
  for (int w = static_cast<int>(blockIdx.x); w < windows.count();
       w += static_cast<int>(gridDim.x)) {
    const int length = windows.LengthOf(w), counted = min(best, length);
    for (int h = WarpOfThread(); h < num_heads; h += kWarps) {
      const float* own = scores + static_cast<size_t>(h) * windows.candidates + w * windows.review;
      const double sum = SumOfBest(own, length, counted, sorted);
      if (LaneOfThread() == 0) sums[h] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double score = 0;
      for (int h = 0; h < num_heads; ++h) score += sums[h];
      // Divided once: the sums are exact more often than means are, and what is equal is to stay
      // so.
      score /= static_cast<double>(counted) * num_heads;
      // NaN of +inf and -inf together: every window needs a rank of its own.
      scratch.scores[w] = score != score ? -INFINITY : score;
    }
    __syncthreads();  // the sums are read
  }
}

/// A thread for each window; of equal ones the first ranks first.
__global__ void __launch_bounds__(kThreads) RankWindows(int windows, void* memory) {
  const WindowsScratch scratch(memory, windows);
  const int w = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (w >= windows) return;
  const double own = scratch.scores[w];
  int rank = 0;
  for (int other = 0; other < windows; ++other) {
    rank += scratch.scores[other] > own || (scratch.scores[other] == own && other < w);
  }
  scratch.rank[w] = rank;
}

/// One block. Windows are kept in the order of their ranks as long as they fit. All but the last
/// one are equally long, so that of those before it and of those behind it in that order the first
/// few are kept.
__global__ void __launch_bounds__(kThreads)
    KeepWindows(Windows windows, int budget, int32_t* indices, int32_t* count, void* memory) {
  ZIGGURAT_SHARED(int[kWarps], sums);
  ZIGGURAT_SHARED(int, kept_so_far);
  const WindowsScratch scratch(memory, windows.count());
  const int thread = static_cast<int>(threadIdx.x), last = windows.count() - 1;
  const int rank_of_last = scratch.rank[last];
  const int before = min(rank_of_last, budget / windows.review);
  int left = budget - before * windows.review;
  const bool keeps_last = windows.LengthOf(last) <= left;
  if (keeps_last) left -= windows.LengthOf(last);
  const int behind = left / windows.review;
  if (thread == 0) kept_so_far = 0;
  for (int base = 0; base <= last; base += kThreads) {
    const int w = base + thread;
    bool is_kept = w == last && keeps_last;
    if (w < last) {
      const int rank = scratch.rank[w];
      is_kept = rank < rank_of_last ? rank < before : rank - rank_of_last - 1 < behind;
    }
    const int length = is_kept ? windows.LengthOf(w) : 0;
    __syncthreads();  // the sum so far
    const int end = kept_so_far + InclusiveSum(length, sums);
    if (w <= last) scratch.offset[w] = is_kept ? end - length : -1;
    __syncthreads();
    if (thread == kThreads - 1) kept_so_far = end;
  }
  __syncthreads();
  if (thread == 0) *count = kept_so_far;
  for (int j = thread; j < windows.candidates; j += kThreads) {
    const int offset = scratch.offset[j / windows.review];
    if (offset >= 0) indices[offset + j % windows.review] = j;
  }
}

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
  return WindowsScratch::Bytes({candidates, review});
}

void LaunchSelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                         int budget, int32_t* indices, int32_t* count, void* scratch,
                         cudaStream_t stream) {
  const Windows windows{candidates, review};
  const auto scoring = static_cast<unsigned>(WindowsScratch::Blocks(windows.count()));
  Launch(ScoreWindows, dim3{scoring}, dim3{kThreads}, sizeof(double) * num_heads, stream, scores,
         num_heads, windows, best, scratch);
  Launch(RankWindows, dim3{BlocksFor(windows.count())}, dim3{kThreads}, 0, stream, windows.count(),
         scratch);
  Launch(KeepWindows, dim3{1}, dim3{kThreads}, 0, stream, windows, budget, indices, count, scratch);
}

}  // namespace ziggurat::cuda
