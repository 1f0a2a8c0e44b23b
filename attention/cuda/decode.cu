// The plan of a decode step, and the merge of its partial results.
#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/decode_share.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kPlanThreads = 256;
constexpr int kMergeThreads = 128;
constexpr int kMaxPerLane = 8;

/// One block for each class: running sums over the items, kPlanThreads of them at a time.
__global__ void __launch_bounds__(kPlanThreads)
    PlanShares(DeviceCache cache, DeviceShape shape, DeviceItems items, DecodePlans plans) {
  __shared__ int scratch[2][kPlanThreads / kWarp];
  __shared__ int sums[2];  // chunks and runs of all items so far
  const DecodePlan& plan = plans.plans[blockIdx.x];
  const int live = items.size(cache), thread = static_cast<int>(threadIdx.x);
  if (thread == 0) plan.first_chunk[0] = plan.first_run[0] = sums[0] = sums[1] = 0;
  for (int base = 0; base < live; base += kPlanThreads) {
    int chunks = 0, runs = 0;
    if (base + thread < live) {
      const DeviceItem& item = items.item(cache, base + thread);
      for (int s = 0; s < item.num_segments; ++s) {
        const DeviceSegment& segment = cache.segment(item, s);
        if (!Takes(plan.takes, segment, shape.head_dim)) continue;
        runs += segment.num_kv_heads * PassesOf(shape);
        chunks += segment.num_kv_heads * PassesOf(shape) * ChunksOf(segment);
      }
    }
    __syncthreads();  // the sums of the items before
    chunks = sums[0] + InclusiveSum(chunks, scratch[0]);
    runs = sums[1] + InclusiveSum(runs, scratch[1]);
    if (base + thread < live) {
      plan.first_chunk[base + thread + 1] = chunks;
      plan.first_run[base + thread + 1] = runs;
    }
    __syncthreads();
    if (thread == kPlanThreads - 1) sums[0] = chunks, sums[1] = runs;
  }
}

/// Calls visit(segment, plan, row) for the row of every partial result of a query head of an item.
template <class Visit>
__device__ void ForEachPartial(const DecodeArguments& a, const DecodePlan& plan, int item_index,
                               int q_head, Visit visit) {
  const int items = a.items.size(a.cache);
  const Shares shares(plan, items);
  const DeviceItem& item = a.items.item(a.cache, item_index);
  const int group = a.shape.group_size(), passes = PassesOf(a.shape);
  const int kv_head = q_head / group, pass = q_head % group / kHeadsPerPass;
  const int in_pass = q_head % group % kHeadsPerPass;
  int first = plan.first_chunk[item_index], run = plan.first_run[item_index];
  for (int s = 0; s < item.num_segments; ++s) {
    const DeviceSegment& segment = a.cache.segment(item, s);
    if (!Takes(plan.takes, segment, a.shape.head_dim)) continue;
    const int chunks = ChunksOf(segment), runs = segment.num_kv_heads * passes;
    if (chunks > 0 && segment.covers(kv_head)) {
      const int own = (kv_head - segment.first_kv_head) * passes + pass;
      const int begin = first + own * chunks;
      const int last = shares.WorkerOf(begin + chunks - 1);
      for (int worker = shares.WorkerOf(begin); worker <= last; ++worker) {
        visit(segment, (worker + run + own) * HeadsOfPass(a.shape) + in_pass);
      }
    }
    first += runs * chunks;
    run += runs;
  }
}

__device__ inline float AddedInLogs(float a, float b) {
  const float higher = fmaxf(a, b);
  if (higher == -INFINITY) return higher;
  return higher + logf(expf(a - higher) + expf(b - higher));
}

/// PoD: one warp for each query head of an item. The log-sum-exp over the tokens with keys of their
/// own; and of heads with distant keys, that over them, and the query, for the layers above.
__global__ void __launch_bounds__(kMergeThreads)
    GateDistant(DecodeArguments a, DecodePlans plans, float* near_lse) {
  const int warp = static_cast<int>(blockIdx.x) * (kMergeThreads / kWarp) + WarpOfThread();
  const int item_index = warp / a.shape.num_q_heads, head = warp % a.shape.num_q_heads;
  if (item_index >= a.items.size(a.cache)) return;
  float near = -INFINITY, distant = -INFINITY;
  for (int p = 0; p < plans.count; ++p) {
    const DecodePlan& plan = plans.plans[p];
    if (plan.takes.borrowed != 0) continue;
    ForEachPartial(a, plan, item_index, head, [&](const DeviceSegment& segment, int row) {
      near = AddedInLogs(near, plan.lse[row]);
      if (segment.use != static_cast<int>(SegmentUse::kDistantKeys)) return;
      distant = AddedInLogs(distant, plan.lse[row]);
    });
  }
  const DeviceItem& item = a.items.item(a.cache, item_index);
  const size_t query = static_cast<size_t>(item_index) * a.shape.num_q_heads + head;
  if (LaneOfThread() == 0) near_lse[query] = near;
  bool lends = false;
  for (int s = 0; s < item.num_segments; ++s) {
    const DeviceSegment& segment = a.cache.segment(item, s);
    lends = lends || (segment.use == static_cast<int>(SegmentUse::kDistantKeys) &&
                      segment.covers(head / a.shape.group_size()));
  }
  if (!lends) return;
  if (LaneOfThread() == 0) item.distant_lse[head] = distant;
  for (int c = LaneOfThread(); c < a.shape.head_dim; c += kWarp) {
    item.low_q[static_cast<size_t>(head) * a.shape.head_dim + c] =
        a.q[query * a.shape.head_dim + c];
  }
}

__device__ void CountDistant(const DecodeArguments& a, int item_index, int kv_head) {
  const DeviceItem& item = a.items.item(a.cache, item_index);
  if (item.counts == nullptr) return;
  for (int s = 0; s < item.num_segments; ++s) {
    const DeviceSegment& segment = a.cache.segment(item, s);
    if (!segment.borrows_keys() || segment.num_slots == 0 || !segment.covers(kv_head)) continue;
    atomicAdd(item.counts + IsSkipped(a, item, item_index, kv_head), 1ull);
    return;
  }
}

/// One block for each query head of an item: its warps share the partial results, then merge
/// theirs.
__global__ void __launch_bounds__(kMergeThreads)
    MergePartials(DecodeArguments a, DecodePlans plans, float* out, float* lse) {
  constexpr int kWarps = kMergeThreads / kWarp;
  __shared__ float outs[kWarps][kMaxPerLane * kWarp];
  __shared__ float highests[kWarps], sums[kWarps];
  const int item_index = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (item_index >= a.items.size(a.cache)) return;
  const int dim = a.shape.head_dim, lane = LaneOfThread(), warp = WarpOfThread();
  float highest = -INFINITY, sum = 0, own[kMaxPerLane] = {};
  int turn = 0;
  for (int p = 0; p < plans.count; ++p) {
    const DecodePlan& plan = plans.plans[p];
    ForEachPartial(a, plan, item_index, head, [&](const DeviceSegment&, int row) {
      if (turn++ % kWarps != warp || plan.lse[row] == -INFINITY) return;
      const float now = fmaxf(highest, plan.lse[row]);
      const float shrink = expf(highest - now), weight = expf(plan.lse[row] - now);
      highest = now;
      sum = sum * shrink + weight;
      ZIGGURAT_UNROLL
      for (int j = 0; j < kMaxPerLane; ++j) {
        const int c = lane + j * kWarp;
        if (c < dim) {
          own[j] = own[j] * shrink + weight * plan.out[static_cast<size_t>(row) * dim + c];
        }
      }
    });
  }
  ZIGGURAT_UNROLL
  for (int j = 0; j < kMaxPerLane; ++j) outs[warp][lane + j * kWarp] = own[j];
  if (lane == 0) highests[warp] = highest;
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  float all = -INFINITY, total = 0;
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, highests[w]);
  for (int w = 0; w < kWarps && all != -INFINITY; ++w) total += sums[w] * expf(highests[w] - all);
  const size_t row = static_cast<size_t>(item_index) * a.shape.num_q_heads + head;
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kMergeThreads) {
    float x = 0;
    for (int w = 0; w < kWarps && total > 0; ++w) x += outs[w][c] * expf(highests[w] - all);
    out[row * dim + c] = total > 0 ? x / total : 0;
  }
  if (threadIdx.x != 0) return;
  if (lse != nullptr) lse[row] = total > 0 ? all + logf(total) : -INFINITY;
  if (a.near_lse != nullptr && head % a.shape.group_size() == 0) {
    CountDistant(a, item_index, head / a.shape.group_size());
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

namespace {

/// Hands out parts of a scratch memory, 256 bytes aligned; of none: only counts.
struct Parts {
  unsigned char* base;
  size_t bytes = 0;

  template <typename T>
  T* Take(size_t count) {
    const size_t at = bytes;
    bytes += (count * sizeof(T) + 255) / 256 * 256;
    return base == nullptr ? nullptr : reinterpret_cast<T*>(base + at);
  }
};

}  // namespace

DecodePlans LayOutPlans(const DecodeBucket& bucket, void* scratch, size_t* bytes) {
  Parts parts{static_cast<unsigned char*>(scratch)};
  DecodePlans plans;
  for (int borrowed = 0; borrowed <= (bucket.distant ? 1 : 0); ++borrowed) {
    for (int kernel = SegmentClass::kPlain; kernel < kEncodings; ++kernel) {
      const bool wanted = kernel == SegmentClass::kPlain
                              ? bucket.plain
                              : (bucket.tensor_encodings >> kernel & 1) != 0;
      if (!wanted) continue;
      DecodePlan& plan = plans.plans[plans.count++];
      plan.takes = {kernel, borrowed, bucket.tensor_encodings != 0};
      plan.workers = bucket.workers;
      plan.first_chunk = parts.Take<int32_t>(bucket.max_items + 1);
      plan.first_run = parts.Take<int32_t>(bucket.max_items + 1);
      const size_t rows =
          static_cast<size_t>(bucket.workers + bucket.max_runs) * HeadsOfPass(bucket.shape);
      plan.out = parts.Take<float>(rows * bucket.shape.head_dim);
      plan.lse = parts.Take<float>(rows);
    }
  }
  if (bucket.distant) {
    plans.near_lse =
        parts.Take<float>(static_cast<size_t>(bucket.max_items) * bucket.shape.num_q_heads);
  }
  *bytes = parts.bytes;
  return plans;
}

size_t DecodeScratchBytes(const DecodeBucket& bucket) {
  size_t bytes = 0;
  LayOutPlans(bucket, nullptr, &bytes);
  return bytes;
}

void LaunchDecodeAttention(const DecodeBucket& bucket, const DeviceCache& cache,
                           const DeviceItems& items, const float* q, float* out, float* lse,
                           void* scratch, cudaStream_t stream) {
  size_t bytes = 0;
  const DecodePlans plans = LayOutPlans(bucket, scratch, &bytes);
  const DecodeArguments arguments{cache, bucket.shape, items, q, plans.near_lse};
  const auto max_items = static_cast<unsigned>(bucket.max_items);
  const auto q_heads = static_cast<unsigned>(bucket.shape.num_q_heads);
  if (max_items == 0 || plans.count == 0) return;
  Launch(PlanShares, dim3{static_cast<unsigned>(plans.count)}, dim3{kPlanThreads}, 0, stream, cache,
         bucket.shape, items, plans);
  for (int borrowed = 0; borrowed <= 1; ++borrowed) {
    for (int p = 0; p < plans.count; ++p) {
      const DecodePlan& plan = plans.plans[p];
      if (plan.takes.borrowed != borrowed) continue;
      (plan.takes.kernel == SegmentClass::kPlain ? LaunchPlainPartials : LaunchTensorPartials)(
          arguments, plan, stream);
    }
    if (borrowed == 1 || !bucket.distant) break;
    constexpr unsigned kWarps = kMergeThreads / kWarp;
    Launch(GateDistant, dim3{(max_items * q_heads + kWarps - 1) / kWarps}, dim3{kMergeThreads}, 0,
           stream, arguments, plans, plans.near_lse);
  }
  Launch(MergePartials, dim3{max_items, q_heads}, dim3{kMergeThreads}, 0, stream, arguments, plans,
         out, lse);
}

}  // namespace ziggurat::cuda
