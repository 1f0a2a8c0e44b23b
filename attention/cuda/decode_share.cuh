// A worker's share of a decode step, run by run.
#pragma once

#include "attention/cuda/cells.cuh"
#include "attention/cuda/decode.h"

namespace ziggurat::cuda {

__device__ inline bool Takes(const SegmentClass& of, const DeviceSegment& s, int head_dim) {
  if (s.borrows_keys() != (of.borrowed != 0)) return false;
  return KernelOf(s, head_dim, of.tensor_cores != 0) == of.kernel;
}

__device__ inline int ChunksOf(const DeviceSegment& s) {
  return (s.num_slots + kChunkSlots - 1) / kChunkSlots;
}
/// What a run takes besides its chunks (queries, the first loads, its result), as so many chunks.
constexpr int kChunksOfRun = 1;
/// Its part of the line that workers share, of a run of each KV head; chunks come last.
__device__ inline int LengthInLine(const DeviceSegment& s) {
  const int chunks = ChunksOf(s);
  return chunks == 0 ? 0 : kChunksOfRun + chunks;
}
/// Rows of a partial result.
ZIGGURAT_HOST_DEVICE inline int HeadsOfPass(const AttentionShape& shape) {
  return shape.group_size() < kHeadsPerPass ? shape.group_size() : kHeadsPerPass;
}

/// Warps of a block of those kernels that compute partial results; each is a worker.
constexpr int kWorkersPerBlock = 4;

__device__ inline int WorkerOfThread() {
  return static_cast<int>(blockIdx.x) * kWorkersPerBlock + WarpOfThread();
}
/// Launches such a kernel, with `shared_bytes` for each worker.
template <class Kernel>
void LaunchWorkers(Kernel kernel, size_t shared_bytes, const DecodeArguments& arguments,
                   const DecodePlan& plan, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>((plan.workers + kWorkersPerBlock - 1) / kWorkersPerBlock);
  LaunchEarly(kernel, dim3{blocks}, dim3{kWorkersPerBlock * kWarp}, kWorkersPerBlock * shared_bytes,
              stream, arguments, plan);
}
/// Workers of such a kernel that a multiprocessor holds at once.
template <class Kernel>
int WorkersThatFit(Kernel kernel, size_t shared_bytes) {
  return kWorkersPerBlock * BlocksAtOnce(reinterpret_cast<const void*>(kernel),
                                         kWorkersPerBlock * kWarp, kWorkersPerBlock * shared_bytes);
}
/// launch.operator()<encoding>()
template <class Launch>
void WithEncoding(Encoding encoding, Launch launch) {
  switch (encoding) {
    case Encoding::kF32:
      return launch.template operator()<Encoding::kF32>();
    case Encoding::kBf16:
      return launch.template operator()<Encoding::kBf16>();
    case Encoding::kInt8:
      return launch.template operator()<Encoding::kInt8>();
    case Encoding::kFp8:
      return launch.template operator()<Encoding::kFp8>();
    case Encoding::kInt4:
      return launch.template operator()<Encoding::kInt4>();
    case Encoding::kInt2:
      return launch.template operator()<Encoding::kInt2>();
  }
}

/// The line of runs and their chunks is cut into `workers` equal parts, of at least one position.
/// `chunks` and what follows count positions in that line.
struct Shares {
  int chunks;
  int workers;

  __device__ Shares(const DecodePlan& plan, int items)
      : chunks(plan.first_chunk[items]), workers(min(plan.workers, plan.first_chunk[items])) {}
  __device__ int BeginOf(int worker) const {
    return static_cast<int>(static_cast<int64_t>(chunks) * worker / workers);
  }
  /// The worker whose share holds `chunk`: the greatest w with floor(chunks w / workers) <= chunk.
  __device__ int WorkerOf(int chunk) const {
    return static_cast<int>((static_cast<int64_t>(chunk + 1) * workers - 1) / chunks);
  }
};

/// Slots [begin, end) of one head of one segment, for `heads` query heads.
struct DecodeRun {
  const DeviceItem* item;
  const DeviceSegment* segment;
  int item_index;
  int head;          ///< of the segment
  int first_q_head;  ///< of the model
  int heads;
  int begin;
  int end;
  int partial;  ///< row of the partial results: unique, since worker or run grows from row to row
};

/// Calls attend(run) for every run of this worker.
template <class Attend>
__device__ void ForEachRun(const DecodeArguments& a, const DecodePlan& plan, int worker,
                           Attend attend) {
  const int items = a.items.size(a.cache);
  const Shares shares(plan, items);
  if (worker >= shares.workers) return;
  int chunk = shares.BeginOf(worker);
  const int end = shares.BeginOf(worker + 1);
  // The last item that begins at or before the chunk and is not empty.
  int i = 0;
  for (int above = items; above - i > 1;) {
    const int middle = (i + above) / 2;
    (plan.first_chunk[middle] <= chunk ? i : above) = middle;
  }
  const int passes = PassesOf(a.shape), group = a.shape.group_size();
  for (; chunk < end; ++i) {
    DecodeRun run;
    run.item = &a.items.item(a.cache, i);
    run.item_index = i;
    int first = plan.first_chunk[i];  // in the line, where the run begins
    run.partial = worker + plan.first_run[i];
    for (int s = 0; s < run.item->num_segments && chunk < end; ++s) {
      run.segment = &a.cache.segment(*run.item, s);
      if (!Takes(plan.takes, *run.segment, a.shape.head_dim)) continue;
      const int length = LengthInLine(*run.segment);
      const int runs = run.segment->num_kv_heads * passes;
      for (int j = 0; j < runs; ++j, ++run.partial, first += length) {
        if (first + length <= chunk || chunk >= end) continue;
        const int last = min(first + length, end);
        run.head = j / passes;
        const int skipped = j % passes * kHeadsPerPass;
        run.first_q_head = (run.segment->first_kv_head + run.head) * group + skipped;
        run.heads = min(kHeadsPerPass, group - skipped);
        run.begin = max(chunk - first - kChunksOfRun, 0) * kChunkSlots;
        run.end = min((last - first - kChunksOfRun) * kChunkSlots, run.segment->num_slots);
        if (run.begin < run.end) attend(run);
        chunk = last;
      }
    }
  }
}

/// PoD: whether the near tokens have so large a share for every query head of the KV head that
/// its distant tokens are left out.
__device__ inline bool IsSkipped(const DecodeArguments& a, const DeviceItem& item, int item_index,
                                 int kv_head) {
  const int group = a.shape.group_size();
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const float near = a.near_lse[static_cast<size_t>(item_index) * a.shape.num_q_heads + h];
    if (!(1 / (1 + expf(item.distant_lse[h] - near)) >= item.skip)) return false;
  }
  return true;
}

/// The query rows of a run: the item's own, or those of the layer that lends its keys.
__device__ inline const float* QueriesOf(const DecodeArguments& a, const DecodeRun& run) {
  const float* rows =
      run.segment->borrows_keys()
          ? run.item->low_q
          : a.q + static_cast<size_t>(run.item_index) * a.shape.num_q_heads * a.shape.head_dim;
  return rows + static_cast<size_t>(run.first_q_head) * a.shape.head_dim;
}

/// A run that is left out still has its place among the partial results.
__device__ inline bool LeftOut(const DecodeArguments& a, const DecodePlan& plan,
                               const DecodeRun& run) {
  if (!run.segment->borrows_keys()) return false;
  if (!IsSkipped(a, *run.item, run.item_index, run.segment->first_kv_head + run.head)) return false;
  const int row = run.partial * HeadsOfPass(a.shape);
  if (LaneOfThread() < run.heads) plan.lse[row + LaneOfThread()] = -INFINITY;
  return true;
}

}  // namespace ziggurat::cuda
