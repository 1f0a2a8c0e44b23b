// A warp for each query: some hundred keys at a time are shared out among the lanes; then the
// channels of their values are.
#include "attention/cuda/cells.cuh"
#include "attention/cuda/prefill.h"
#include "attention/head_dim.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kMaxPerLane = kMaxHeadDim / kWarp;
constexpr int kTile = 512;  ///< keys

/// What a warp shares.
struct WarpMemory {
  float query[kMaxHeadDim];
  float low_query[kMaxHeadDim];
  float weights[kTile];
};

__device__ void LoadQuery(ElementType element, const void* q, size_t from, int dim, float* to) {
  for (int c = LaneOfThread(); c < dim; c += kWarp) to[c] = LoadElement(element, q, from + c);
}

__device__ float Dot(const AttentionShape& shape, ElementType element, const float* query,
                     const void* k, int token, int kv_head) {
  const size_t from = (static_cast<size_t>(token) * shape.num_kv_heads + kv_head) * shape.head_dim;
  float dot = 0;
  for (int c = 0; c < shape.head_dim; ++c) dot += query[c] * LoadElement(element, k, from + c);
  return dot * shape.scale;
}

/// Attends to keys first .. last, whose scores score(j) gives, and writes the row `query_row` of a
/// query head.
template <class Score>
__device__ void AttendRow(const AttentionShape& shape, const PromptTensors& t, int first, int last,
                          int kv_head, size_t query_row, float* weights, Score score) {
  const int dim = shape.head_dim, lane = LaneOfThread();
  float highest = -INFINITY, sum = 0, own[kMaxPerLane] = {};
  for (int base = first; base <= last; base += kTile) {
    const int keys = min(kTile, last - base + 1);
    float highest_here = -INFINITY, sum_here = 0;
    for (int i = lane; i < keys; i += kWarp) {
      weights[i] = score(base + i);
      highest_here = fmaxf(highest_here, weights[i]);
    }
    const float now = fmaxf(highest, WarpMax(highest_here)), off = BaseOf(now);
    for (int i = lane; i < keys; i += kWarp) {
      weights[i] = expf(weights[i] - off);
      sum_here += weights[i];
    }
    const float shrink = expf(highest - off);
    highest = now;
    sum = sum * shrink + WarpSum(sum_here);
    __syncwarp();
    ZIGGURAT_UNROLL
    for (int m = 0; m < kMaxPerLane; ++m) {
      const int c = lane + m * kWarp;
      if (c >= dim) break;
      float mean = own[m] * shrink;
      for (int i = 0; i < keys; ++i) {
        const size_t row = static_cast<size_t>(base + i) * shape.num_kv_heads + kv_head;
        mean += weights[i] * LoadElement(t.element, t.v, row * dim + c);
      }
      own[m] = mean;
    }
    __syncwarp();  // the weights were read
  }
  for (int m = 0; m < kMaxPerLane && lane + m * kWarp < dim; ++m) {
    StoreElement(t.element, t.out, query_row * dim + lane + m * kWarp, own[m] / sum);
  }
  if (lane == 0) t.lse[query_row] = BaseOf(highest) + logf(sum);
}

/// A block of a warp for each token (x) and query head (y).
__global__ void __launch_bounds__(kWarp) AttendPrompts(AttentionShape shape, PromptTensors t,
                                                       const int32_t* offsets, int num_sequences) {
  ZIGGURAT_SHARED(WarpMemory, memory);
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  int sequence = 0;  // the last that begins at or before the token
  for (int end = num_sequences - 1; sequence < end;) {
    const int middle = (sequence + end + 1) / 2;
    if (offsets[middle] <= token) {
      sequence = middle;
    } else {
      end = middle - 1;
    }
  }
  const int kv_head = head / shape.group_size();
  const size_t row = static_cast<size_t>(token) * shape.num_q_heads + head;
  LoadQuery(t.element, t.q, row * shape.head_dim, shape.head_dim, memory.query);
  __syncwarp();
  AttendRow(shape, t, offsets[sequence], token, kv_head, row, memory.weights,
            [&](int j) { return Dot(shape, t.element, memory.query, t.k, j, kv_head); });
}

/// A lane's share of a log-sum-exp.
struct LaneSum {
  float highest = -INFINITY;
  float sum = 0;

  __device__ void Add(float score) {
    const float now = fmaxf(highest, score), base = BaseOf(now);
    sum = sum * expf(highest - base) + expf(score - base);
    highest = now;
  }
  /// Of all lanes together; the same in each.
  __device__ float LogSumExp() const {
    const float base = BaseOf(WarpMax(highest));
    return base + logf(WarpSum(sum * expf(highest - base)));
  }
};

/// Of one query and KV head: whether every query head gives the near tokens at least the share
/// `skip`. `load` fetches the queries of a head, `score` that of a key.
template <class Load, class Score, class IsDistant>
__device__ bool SkipsDistant(const AttentionShape& shape, const DeviceDistant& distant, int token,
                             int kv_head, Load load, Score score, IsDistant is_distant) {
  for (int h = 0; h < shape.group_size(); ++h) {
    load(kv_head * shape.group_size() + h);
    LaneSum near, far;
    for (int j = LaneOfThread(); j <= token; j += kWarp) {
      (is_distant(j) ? far : near).Add(score(j));
    }
    const float of_far = far.LogSumExp(), of_near = near.LogSumExp();
    if (!(1 / (1 + expf(of_far - of_near)) >= distant.skip)) return false;
  }
  return true;
}

/// A block of a warp for each token (x) and KV head (y).
__global__ void __launch_bounds__(kWarp)
    AttendDistant(AttentionShape shape, PromptTensors t, DeviceDistant distant) {
  ZIGGURAT_SHARED(WarpMemory, memory);
  const int token = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int dim = shape.head_dim;
  const bool borrows = distant.borrows[kv_head] != 0;
  const auto is_distant = [&](int j) {
    return borrows && j >= distant.sinks && token - j >= distant.recent;
  };
  const auto row_of = [&](int head) {
    return static_cast<size_t>(token) * shape.num_q_heads + head;
  };
  const auto load = [&](int head) {
    __syncwarp();  // the queries before were read
    LoadQuery(t.element, t.q, row_of(head) * dim, dim, memory.query);
    if (borrows) {
      LoadQuery(t.element, distant.low_q, row_of(head) * dim, dim, memory.low_query);
    }
    __syncwarp();
  };
  const auto score = [&](int j) {
    return is_distant(j) ? Dot(shape, t.element, memory.low_query, distant.low_k, j, kv_head)
                         : Dot(shape, t.element, memory.query, t.k, j, kv_head);
  };
  // Distant tokens are sinks .. token - recent, if there are any.
  const bool has_distant = borrows && token - distant.recent >= distant.sinks;
  const bool skips =
      has_distant && SkipsDistant(shape, distant, token, kv_head, load, score, is_distant);
  if (has_distant && LaneOfThread() == 0) atomicAdd(distant.counts + (skips ? 1 : 0), 1ull);
  for (int h = 0; h < shape.group_size(); ++h) {
    const int head = kv_head * shape.group_size() + h;
    load(head);
    AttendRow(shape, t, 0, token, kv_head, row_of(head), memory.weights,
              [&](int j) { return skips && is_distant(j) ? -INFINITY : score(j); });
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchPrefillAttention(const AttentionShape& shape, const PromptTensors& tensors,
                            const int32_t* offsets, int num_sequences, int num_tokens,
                            cudaStream_t stream) {
  if (num_tokens == 0) return;
  if (RunsOnTensorCores(shape, tensors.element)) {
    return LaunchTensorPrefill(shape, tensors, offsets, num_sequences, num_tokens, stream);
  }
  const dim3 grid{static_cast<unsigned>(num_tokens), static_cast<unsigned>(shape.num_q_heads)};
  Launch(AttendPrompts, grid, dim3{kWarp}, 0, stream, shape, tensors, offsets, num_sequences);
}

size_t DistantScratchBytes(const AttentionShape& shape, int n) {
  return sizeof(float) * 2 * shape.num_q_heads * static_cast<size_t>(n);
}

void LaunchPrefillDistantAttention(const AttentionShape& shape, const PromptTensors& tensors, int n,
                                   const DeviceDistant& distant, cudaStream_t stream) {
  if (n == 0) return;
  if (RunsOnTensorCores(shape, tensors.element)) {
    return LaunchTensorPrefillDistant(shape, tensors, n, distant, stream);
  }
  const dim3 grid{static_cast<unsigned>(n), static_cast<unsigned>(shape.num_kv_heads)};
  Launch(AttendDistant, grid, dim3{kWarp}, 0, stream, shape, tensors, distant);
}

}  // namespace ziggurat::cuda
