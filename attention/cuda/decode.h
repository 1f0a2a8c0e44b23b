// Decode attention on a GPU: one query token of each item attends to all slots of its segments.
//
// The slots of a step are cut into chunks of 32 and laid in one line: item by item, segment by
// segment, head by head. Every warp takes an equal stretch of that line, whatever the lengths of
// the sequences, and writes one partial result for each (item, segment, head) it meets; then the
// partial results are merged by log-sum-exp (attention/attention_state.h). Where the stretches
// begin is computed on the device from the table, for all layers of a step at once, so a captured
// launch fits every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/cuda/decode_kernels.h"
#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

/// Query heads of a KV head that one pass over its slots serves; more take further passes.
constexpr int kHeadsPerPass = 8;
/// Passes over the slots of a KV head.
ZIGGURAT_HOST_DEVICE inline int PassesOf(const AttentionShape& shape) {
  return (shape.group_size() + kHeadsPerPass - 1) / kHeadsPerPass;
}
/// (segment, KV head, pass)s of a segment that covers `kv_heads` heads.
ZIGGURAT_HOST_DEVICE inline int RunsOf(const AttentionShape& shape, int kv_heads) {
  return kv_heads * PassesOf(shape);
}

/// Which segments one launch takes.
struct SegmentClass {
  DecodeKernel kernel = DecodeKernel::Plain();
  int32_t borrowed = 0;      ///< 1: those that borrow their keys (SegmentUse)
  int32_t tensor_cores = 0;  ///< 1: the plain launch leaves out what fits the tensor cores
};

/// Where each worker's stretch begins, for one class; in scratch memory.
struct DecodePlan {
  SegmentClass takes;
  int32_t workers = 0;             ///< warps
  int32_t* first_chunk = nullptr;  ///< [max_items + 1] where in the line of chunks each item begins
  int32_t* first_run = nullptr;    ///< [max_items + 1] (segment, head, pass)s before each item
  float* out = nullptr;            ///< [workers + runs, heads of a pass, head_dim]
  float* lse = nullptr;            ///< [workers + runs, heads of a pass]
};

/// At most: three blocks of warps.
constexpr int kWorkersPerMultiprocessor = 12;
/// Warps of a launch of each kernel. More than the device holds at once would go in waves, the last
/// of them half empty; the line is cut for those that there are.
struct DecodeWorkers {
  int most = 0;                              ///< of any kernel
  int of_kernel[DecodeKernel::kCount] = {};  ///< by index

  static DecodeWorkers Alike(int workers) {
    DecodeWorkers all;
    all.most = workers;
    std::fill_n(all.of_kernel, DecodeKernel::kCount, workers);
    return all;
  }
};
/// For the calling thread's device, which has so many multiprocessors: as many to each as may be,
/// or as it holds of the kernel.
DecodeWorkers FindDecodeWorkers(const AttentionShape& shape, int multiprocessors);

/// What the launches of a step are made for; the same for all steps that one graph serves.
struct DecodeBucket {
  AttentionShape shape;
  int max_items = 0;
  int max_runs = 0;  ///< (item, segment, KV head, pass)s
  DecodeWorkers workers;
  int layers = 1;  ///< that are planned at once
  /// Bits of the kernels that segments may exist for. Where there is but the plain one, it takes
  /// all; on tensor cores queries and weights are rounded to bf16.
  uint32_t kernels = DecodeKernel::Plain().bit();
  bool distant = false;  ///< segments that borrow keys may exist
};
/// Scratch memory of a step.
size_t DecodeScratchBytes(const DecodeBucket& bucket);

/// Plans a step, from what its table says by then; LaunchDecodeAttention of each layer comes after
/// it, with the same scratch memory.
///   items   of layer 0; those of each further layer stand `stride` words behind
void LaunchPlanDecode(const DecodeBucket& bucket, const DeviceCache& cache,
                      const DeviceItems& items, uint32_t stride, void* scratch,
                      cudaStream_t stream);

struct DecodeOutput {
  void* out = nullptr;  ///< [items, num_q_heads, head_dim]
  ElementType element = ElementType::kF32;
  float* lse = nullptr;  ///< [items, num_q_heads], or nullptr
};
/// Of a layer whose place among the planned ones is `layer`.
///   q       [items, num_q_heads, head_dim]
void LaunchDecodeAttention(const DecodeBucket& bucket, const DeviceCache& cache,
                           const DeviceItems& items, int layer, const float* q,
                           const DecodeOutput& output, void* scratch, cudaStream_t stream);

// ---- Its parts ----------------------------------------------------------------------------------

struct DecodePlans {
  DecodePlan plans[2 * DecodeKernel::kCount];  ///< for own and for borrowed keys
  int count = 0;
  float* near_lse = nullptr;  ///< [items, num_q_heads]; only where segments borrow keys
};
DecodePlans LayOutPlans(const DecodeBucket& bucket, int layer, void* scratch, size_t* bytes);

struct DecodeArguments {
  DeviceCache cache;
  AttentionShape shape;
  DeviceItems items;
  const float* q = nullptr;
  const float* near_lse = nullptr;
};
/// Workers of a multiprocessor; 0 where there is no such kernel for this head size.
int PlainWorkersAtOnce(const AttentionShape& shape);
int TensorWorkersAtOnce(Encoding encoding, const AttentionShape& shape);
int StagedWorkersAtOnce(Encoding encoding, const AttentionShape& shape);
void LaunchPlainPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                         cudaStream_t stream);
void LaunchTensorPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream);
void LaunchStagedPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream);

}  // namespace ziggurat::cuda
