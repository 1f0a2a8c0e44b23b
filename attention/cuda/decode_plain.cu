// Partial attention in f32 multiply-adds: every format, head size and block. Exact to f32.
#include "attention/cuda/decode_share.cuh"
#include "attention/cuda/slot_scores.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kMaxPerLane = 8;  ///< channels of a value that a lane sums: head sizes to 256

/// Shared memory of a warp: queries [heads, head_dim], weights [heads, 32].
size_t SharedFloats(int head_dim) { return kHeadsPerPass * (head_dim + kWarp); }

/// One warp over the slots of one run; a slot in each lane for the scores, a channel in each lane
/// for the values.
struct PlainAttend {
  const DecodeArguments& a;
  const DecodePlan& plan;
  float* q;        ///< [kHeadsPerPass, head_dim] in shared memory
  float* weights;  ///< [kHeadsPerPass, 32] in shared memory

  __device__ void operator()(const DecodeRun& run) {
    if (LeftOut(a, plan, run)) return;
    const int dim = a.shape.head_dim, lane = LaneOfThread();
    const float* queries = QueriesOf(a, run);
    __syncwarp();  // the run before this one read them
    for (int i = lane; i < kHeadsPerPass * dim; i += kWarp) {
      q[i] = i < run.heads * dim ? queries[i] * a.shape.scale : 0;
    }
    __syncwarp();
    float highest[kHeadsPerPass], sum[kHeadsPerPass], out[kHeadsPerPass][kMaxPerLane];
    for (int h = 0; h < kHeadsPerPass; ++h) {
      highest[h] = -INFINITY;
      sum[h] = 0;
      for (int j = 0; j < kMaxPerLane; ++j) out[h][j] = 0;
    }
    for (int begin = run.begin; begin < run.end; begin += kChunkSlots) {
      const int count = min(kChunkSlots, run.end - begin);
      AddWeights(run, begin, count, highest, sum, out);
      __syncwarp();
      for (int t = 0; t < count; ++t) AddValue(run, begin + t, t, out);
      __syncwarp();
    }
    Store(run, highest, sum, out);
  }

  /// Scores of a chunk's slots, and their weights relative to the highest so far.
  __device__ void AddWeights(const DecodeRun& run, int begin, int count, float* highest, float* sum,
                             float (*out)[kMaxPerLane]) {
    const int lane = LaneOfThread();
    float scores[kHeadsPerPass], factor = 0;
    for (int h = 0; h < kHeadsPerPass; ++h) scores[h] = -INFINITY;
    if (lane < count) {
      SlotDots<kHeadsPerPass>(a.cache, *run.segment, run.head, begin + lane, q, a.shape.head_dim,
                              scores);
      factor = SlotFactor(a.cache, *run.segment, Side::kValues, run.head, begin + lane);
    }
    ZIGGURAT_UNROLL
    for (int h = 0; h < kHeadsPerPass; ++h) {
      if (h >= run.heads) break;
      const float now = fmaxf(highest[h], WarpMax(scores[h]));
      const float shrink = expf(highest[h] - now);
      const float weight = expf(scores[h] - now);
      highest[h] = now;
      sum[h] = sum[h] * shrink + weight;  // of this lane's slots
      for (int j = 0; j < kMaxPerLane; ++j) out[h][j] *= shrink;
      weights[h * kWarp + lane] = weight * factor;
    }
  }

  __device__ void AddValue(const DecodeRun& run, int slot, int t, float (*out)[kMaxPerLane]) {
    ZIGGURAT_UNROLL
    for (int j = 0; j < kMaxPerLane; ++j) {
      const int c = LaneOfThread() + j * kWarp;
      if (c >= a.shape.head_dim) break;
      const float x =
          ChannelValue(a.cache, *run.segment, Side::kValues, run.head, slot, c, a.shape.head_dim);
      ZIGGURAT_UNROLL
      for (int h = 0; h < kHeadsPerPass; ++h) {
        if (h < run.heads) out[h][j] += weights[h * kWarp + t] * x;
      }
    }
  }

  __device__ void Store(const DecodeRun& run, const float* highest, const float* sum,
                        float (*out)[kMaxPerLane]) {
    const int dim = a.shape.head_dim, lane = LaneOfThread();
    const size_t row = static_cast<size_t>(run.partial) * HeadsOfPass(a.shape);
    ZIGGURAT_UNROLL
    for (int h = 0; h < kHeadsPerPass; ++h) {
      if (h >= run.heads) break;
      const float total = WarpSum(sum[h]);
      ZIGGURAT_UNROLL
      for (int j = 0; j < kMaxPerLane; ++j) {
        const int c = lane + j * kWarp;
        if (c < dim) plan.out[(row + h) * dim + c] = out[h][j] / total;
      }
      if (lane == 0) plan.lse[row + h] = highest[h] + logf(total);
    }
  }
};

__global__ void __launch_bounds__(kWorkersPerBlock* kWarp)
    PlainPartials(DecodeArguments a, DecodePlan plan) {
  LetNextBegin();
  AwaitPrevious();
  ZIGGURAT_SHARED_MEMORY(memory);
  const int dim = a.shape.head_dim;
  float* own = reinterpret_cast<float*>(memory) +
               static_cast<size_t>(WarpOfThread()) * kHeadsPerPass * (dim + kWarp);
  ForEachRun(a, plan, WorkerOfThread(), PlainAttend{a, plan, own, own + kHeadsPerPass * dim});
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

int PlainWorkersAtOnce(const AttentionShape& shape) {
  return WorkersThatFit(PlainPartials, SharedFloats(shape.head_dim) * sizeof(float));
}

void LaunchPlainPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                         cudaStream_t stream) {
  const size_t shared = SharedFloats(arguments.shape.head_dim) * sizeof(float);
  LaunchWorkers(PlainPartials, shared, arguments, plan, stream);
}

}  // namespace ziggurat::cuda
