// The plan of a decode step, and the merge of its partial results.
#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/decode_share.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kPlanThreads = 256;
constexpr int kMergeThreads = 128;

/// One block for each class (x) of each layer (y): running sums over the items, kPlanThreads of
/// them at a time.
///   plans         those of layer 0, whose arrays are `plan_stride` apart from layer to layer
///   items_stride  words, likewise
__global__ void __launch_bounds__(kPlanThreads)
    PlanShares(DeviceCache cache, AttentionShape shape, DeviceItems items, uint32_t items_stride,
               DecodePlans plans, int plan_stride) {
  ZIGGURAT_SHARED(int[2][kPlanThreads / kWarp], scratch);
  ZIGGURAT_SHARED(int[2], sums);  // chunks and runs of all items so far
  LetNextBegin();
  AwaitPrevious();
  const int layer = static_cast<int>(blockIdx.y);
  DecodePlan plan = plans.plans[blockIdx.x];
  plan.first_chunk += layer * plan_stride;
  plan.first_run += layer * plan_stride;
  items.first += layer * items_stride;
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
        chunks += segment.num_kv_heads * PassesOf(shape) * LengthInLine(segment);
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

/// The partial results of a query head in a segment, worker after worker.
struct Stretch {
  int first;
  int step;
  int count;

  __device__ int row(int i) const { return first + i * step; }
};

/// Calls visit(segment, stretch) for every segment that holds slots for a query head of an item.
template <class Visit>
__device__ void ForEachStretch(const DecodeArguments& a, const DecodePlan& plan, int item_index,
                               int q_head, Visit visit) {
  const int items = a.items.size(a.cache);
  const Shares shares(plan, items);
  const DeviceItem& item = a.items.item(a.cache, item_index);
  const int group = a.shape.group_size(), passes = PassesOf(a.shape);
  const int kv_head = q_head / group, pass = q_head % group / kHeadsPerPass;
  const int in_pass = q_head % group % kHeadsPerPass, heads = HeadsOfPass(a.shape);
  int first = plan.first_chunk[item_index], run = plan.first_run[item_index];
  for (int s = 0; s < item.num_segments; ++s) {
    const DeviceSegment& segment = a.cache.segment(item, s);
    if (!Takes(plan.takes, segment, a.shape.head_dim)) continue;
    const int length = LengthInLine(segment), runs = segment.num_kv_heads * passes;
    if (length > 0 && segment.covers(kv_head)) {
      const int own = (kv_head - segment.first_kv_head) * passes + pass;
      const int begin = first + own * length;
      const int worker = shares.WorkerOf(begin + kChunksOfRun);
      const int last = shares.WorkerOf(begin + length - 1);
      visit(segment, Stretch{(worker + run + own) * heads + in_pass, heads, last - worker + 1});
    }
    first += runs * length;
    run += runs;
  }
}

__device__ inline float AddedInLogs(float a, float b) {
  const float base = BaseOf(fmaxf(a, b));
  return base + logf(expf(a - base) + expf(b - base));
}

/// PoD: one warp for each query head of an item. The log-sum-exp over the tokens with keys of their
/// own; and of heads with distant keys, that over them, and the query, for the layers above.
__global__ void __launch_bounds__(kMergeThreads)
    GateDistant(DecodeArguments a, DecodePlans plans, float* near_lse) {
  LetNextBegin();
  AwaitPrevious();
  const int warp = static_cast<int>(blockIdx.x) * (kMergeThreads / kWarp) + WarpOfThread();
  const int item_index = warp / a.shape.num_q_heads, head = warp % a.shape.num_q_heads;
  if (item_index >= a.items.size(a.cache)) return;
  float near = -INFINITY, distant = -INFINITY;
  for (int p = 0; p < plans.count; ++p) {
    const DecodePlan& plan = plans.plans[p];
    if (plan.takes.borrowed != 0) continue;
    const auto add = [&](const DeviceSegment& segment, const Stretch& stretch) {
      for (int i = 0; i < stretch.count; ++i) {
        const float lse = plan.lse[stretch.row(i)];
        near = AddedInLogs(near, lse);
        if (segment.use == static_cast<int>(SegmentUse::kDistantKeys)) {
          distant = AddedInLogs(distant, lse);
        }
      }
    };
    ForEachStretch(a, plan, item_index, head, add);
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

/// What a warp adds up of the partial results of a query head, relative to `base`. Channels
/// lane + 32 j.
template <int kMaxPerLane>
struct MergedRows {
  float sum = 0;
  float own[kMaxPerLane] = {};

  /// Rows first, first + step, ... of a stretch. A few at a time: none waits for another.
  __device__ void Add(const DecodePlan& plan, const Stretch& stretch, int first, int step,
                      float base, int dim) {
    constexpr int kAtOnce = 8;
    const int lane = LaneOfThread();
    for (; first < stretch.count; first += step * kAtOnce) {
      float weights[kAtOnce], rows[kAtOnce][kMaxPerLane];
      ZIGGURAT_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        const int i = first + r * step;
        const float lse = i < stretch.count ? plan.lse[stretch.row(i)] : -INFINITY;
        weights[r] = expf(lse - base);
        // That of a run left out is anything.
        const float* row = plan.out + static_cast<size_t>(stretch.row(i)) * dim;
        ZIGGURAT_UNROLL
        for (int j = 0; j < kMaxPerLane; ++j) {
          const int c = lane + j * kWarp;
          rows[r][j] = i < stretch.count && c < dim ? row[c] : 0;
        }
      }
      ZIGGURAT_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        if (weights[r] == 0) continue;  // NaN is no reason to leave a run out
        sum += weights[r];
        ZIGGURAT_UNROLL
        for (int j = 0; j < kMaxPerLane; ++j) own[j] += weights[r] * rows[r][j];
      }
    }
  }
};

/// The merge of a query head of an item, in warp `warp` of the `warps` that share it. `max` is the
/// largest over their threads, `total` makes of what they have added up the sum in warp 0.
template <int kMaxPerLane, class Max, class Total>
__device__ void MergeHead(const DecodeArguments& a, const DecodePlans& plans,
                          const DecodeOutput& to, int item_index, int head, int warp, int warps,
                          Max max, Total total) {
  const int dim = a.shape.head_dim, thread = warp * kWarp + LaneOfThread();
  float highest = -INFINITY;
  for (int p = 0; p < plans.count; ++p) {
    const DecodePlan& plan = plans.plans[p];
    ForEachStretch(a, plan, item_index, head, [&](const DeviceSegment&, const Stretch& stretch) {
      for (int i = thread; i < stretch.count; i += warps * kWarp) {
        highest = fmaxf(highest, plan.lse[stretch.row(i)]);
      }
    });
  }
  const float base = BaseOf(max(highest));
  MergedRows<kMaxPerLane> merged;
  for (int p = 0; p < plans.count; ++p) {
    const DecodePlan& plan = plans.plans[p];
    ForEachStretch(a, plan, item_index, head, [&](const DeviceSegment&, const Stretch& stretch) {
      merged.Add(plan, stretch, warp, warps, base, dim);
    });
  }
  total(merged);
  if (warp != 0) return;
  const size_t row = static_cast<size_t>(item_index) * a.shape.num_q_heads + head;
  const float inverse = merged.sum == 0 ? 0 : 1 / merged.sum;
  ZIGGURAT_UNROLL
  for (int j = 0; j < kMaxPerLane; ++j) {
    const int c = LaneOfThread() + j * kWarp;
    if (c < dim) StoreElement(to.element, to.out, row * dim + c, merged.own[j] * inverse);
  }
  if (LaneOfThread() != 0) return;
  if (to.lse != nullptr) to.lse[row] = base + logf(merged.sum);
  if (a.near_lse != nullptr && head % a.shape.group_size() == 0) {
    CountDistant(a, item_index, head / a.shape.group_size());
  }
}

/// One block for each query head (y) of an item (x): its warps share the partial results, then
/// merge theirs. For few items, which have many partial results.
template <int kMaxPerLane>
__global__ void __launch_bounds__(kMergeThreads)
    MergePartials(DecodeArguments a, DecodePlans plans, DecodeOutput to) {
  constexpr int kWarps = kMergeThreads / kWarp;
  ZIGGURAT_SHARED(MergedRows<kMaxPerLane>[kWarps][kWarp], of_lanes);
  ZIGGURAT_SHARED(float[kWarps], scratch);
  LetNextBegin();
  AwaitPrevious();
  const int item_index = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (item_index >= a.items.size(a.cache)) return;
  const auto max = [&](float x) { return BlockMax(x, scratch); };
  const auto total = [&](MergedRows<kMaxPerLane>& merged) {
    of_lanes[WarpOfThread()][LaneOfThread()] = merged;
    __syncthreads();
    if (WarpOfThread() != 0) return;
    for (int w = 1; w < kWarps; ++w) {
      const MergedRows<kMaxPerLane>& other = of_lanes[w][LaneOfThread()];
      merged.sum += other.sum;
      ZIGGURAT_UNROLL
      for (int j = 0; j < kMaxPerLane; ++j) merged.own[j] += other.own[j];
    }
  };
  MergeHead<kMaxPerLane>(a, plans, to, item_index, head, WarpOfThread(), kWarps, max, total);
}

/// One warp for each query head of an item. For many items, most of which have few partial results.
template <int kMaxPerLane>
__global__ void __launch_bounds__(kMergeThreads)
    MergeFewPartials(DecodeArguments a, DecodePlans plans, DecodeOutput to) {
  LetNextBegin();
  AwaitPrevious();
  const int warp = static_cast<int>(blockIdx.x) * (kMergeThreads / kWarp) + WarpOfThread();
  const int item_index = warp / a.shape.num_q_heads, head = warp % a.shape.num_q_heads;
  if (item_index >= a.items.size(a.cache)) return;
  MergeHead<kMaxPerLane>(
      a, plans, to, item_index, head, 0, 1, [](float x) { return WarpMax(x); },
      [](MergedRows<kMaxPerLane>&) {});
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

void LaunchPartials(const DecodeArguments& arguments, const DecodePlan& plan, cudaStream_t stream) {
  switch (plan.takes.kernel.path()) {
    case DecodePath::kPlain:
      return LaunchPlainPartials(arguments, plan, stream);
    case DecodePath::kTensor:
      return LaunchTensorPartials(arguments, plan, stream);
    case DecodePath::kStaged:
      return LaunchStagedPartials(arguments, plan, stream);
  }
}

/// Whether any segment is that kernel's.
bool Exists(DecodeKernel kernel, bool borrowed) {
  switch (kernel.path()) {
    case DecodePath::kPlain:
      return true;
    case DecodePath::kTensor:
      return kernel.encoding() != Encoding::kF32;
    case DecodePath::kStaged:
      return !IsPlain(kernel.encoding()) && !borrowed;
  }
  return false;
}

/// Of a multiprocessor; 0 where the kernel does not exist.
int WorkersAtOnce(DecodeKernel kernel, const AttentionShape& shape) {
  if (!Exists(kernel, /*borrowed=*/false)) return 0;
  switch (kernel.path()) {
    case DecodePath::kPlain:
      return PlainWorkersAtOnce(shape);
    case DecodePath::kTensor:
      return TensorWorkersAtOnce(kernel.encoding(), shape);
    case DecodePath::kStaged:
      return StagedWorkersAtOnce(kernel.encoding(), shape);
  }
  return 0;
}

/// From the arrays of a layer's plan to those of the next.
int PlanStride(const DecodeBucket& bucket) { return bucket.max_items + 1; }

}  // namespace

DecodeWorkers FindDecodeWorkers(const AttentionShape& shape, int multiprocessors) {
  DecodeWorkers found = DecodeWorkers::Alike(kWorkersPerMultiprocessor * multiprocessors);
  for (int i = 0; i < DecodeKernel::kCount; ++i) {
    const int held = WorkersAtOnce(DecodeKernel::At(i), shape);
    if (held == 0) continue;
    found.of_kernel[i] = std::min(held, kWorkersPerMultiprocessor) * multiprocessors;
  }
  return found;
}

DecodePlans LayOutPlans(const DecodeBucket& bucket, int layer, void* scratch, size_t* bytes) {
  const int stride = PlanStride(bucket);
  const auto of_items = [&](Parts& parts) {
    auto* const first = parts.Take<int32_t>(static_cast<size_t>(bucket.layers) * stride);
    return first == nullptr ? nullptr : first + static_cast<size_t>(layer) * stride;
  };
  Parts parts{static_cast<unsigned char*>(scratch)};
  DecodePlans plans;
  for (int borrowed = 0; borrowed <= (bucket.distant ? 1 : 0); ++borrowed) {
    for (int i = 0; i < DecodeKernel::kCount; ++i) {
      const DecodeKernel kernel = DecodeKernel::At(i);
      if ((bucket.kernels & kernel.bit()) == 0 || !Exists(kernel, borrowed != 0)) continue;
      DecodePlan& plan = plans.plans[plans.count++];
      plan.takes = {kernel, borrowed, bucket.kernels != DecodeKernel::Plain().bit()};
      plan.workers = bucket.workers.of_kernel[i];
      plan.first_chunk = of_items(parts);
      plan.first_run = of_items(parts);
      const size_t rows =
          static_cast<size_t>(plan.workers + bucket.max_runs) * HeadsOfPass(bucket.shape);
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
  LayOutPlans(bucket, 0, nullptr, &bytes);
  return bytes;
}

void LaunchPlanDecode(const DecodeBucket& bucket, const DeviceCache& cache,
                      const DeviceItems& items, uint32_t stride, void* scratch,
                      cudaStream_t stream) {
  size_t bytes = 0;
  const DecodePlans plans = LayOutPlans(bucket, 0, scratch, &bytes);
  if (bucket.max_items == 0 || plans.count == 0) return;
  const dim3 grid{static_cast<unsigned>(plans.count), static_cast<unsigned>(bucket.layers)};
  LaunchEarly(PlanShares, grid, dim3{kPlanThreads}, 0, stream, cache, bucket.shape, items, stride,
              plans, PlanStride(bucket));
}

void LaunchDecodeAttention(const DecodeBucket& bucket, const DeviceCache& cache,
                           const DeviceItems& items, int layer, const float* q,
                           const DecodeOutput& output, void* scratch, cudaStream_t stream) {
  size_t bytes = 0;
  const DecodePlans plans = LayOutPlans(bucket, layer, scratch, &bytes);
  const DecodeArguments arguments{cache, bucket.shape, items, q, plans.near_lse};
  const auto max_items = static_cast<unsigned>(bucket.max_items);
  const auto q_heads = static_cast<unsigned>(bucket.shape.num_q_heads);
  if (max_items == 0 || plans.count == 0) return;
  for (int borrowed = 0; borrowed <= 1; ++borrowed) {
    for (int p = 0; p < plans.count; ++p) {
      const DecodePlan& plan = plans.plans[p];
      if (plan.takes.borrowed != borrowed) continue;
      LaunchPartials(arguments, plan, stream);
    }
    if (borrowed == 1 || !bucket.distant) break;
    constexpr unsigned kWarps = kMergeThreads / kWarp;
    LaunchEarly(GateDistant, dim3{(max_items * q_heads + kWarps - 1) / kWarps}, dim3{kMergeThreads},
                0, stream, arguments, plans, plans.near_lse);
  }
  const auto merge = [&]<int kMaxPerLane>() {
    constexpr unsigned kWarps = kMergeThreads / kWarp;
    // Nine partial results for a query head on average, or a few more where a bucket is not full.
    const int runs = bucket.max_items * RunsOf(bucket.shape, bucket.shape.num_kv_heads);
    if (8 * runs >= bucket.workers.most) {
      LaunchEarly(MergeFewPartials<kMaxPerLane>, dim3{(max_items * q_heads + kWarps - 1) / kWarps},
                  dim3{kMergeThreads}, 0, stream, arguments, plans, output);
    } else {
      LaunchEarly(MergePartials<kMaxPerLane>, dim3{max_items, q_heads}, dim3{kMergeThreads}, 0,
                  stream, arguments, plans, output);
    }
  };
  if (bucket.shape.head_dim <= 4 * kWarp) {
    merge.template operator()<4>();
  } else {
    merge.template operator()<8>();
  }
}

}  // namespace ziggurat::cuda
