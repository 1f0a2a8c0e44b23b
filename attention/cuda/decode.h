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

#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

constexpr int kChunkSlots = 32;
/// Query heads of a KV head that one pass over its slots serves; more take further passes.
constexpr int kHeadsPerPass = 8;
constexpr int kEncodings = 6;
/// Passes over the slots of a KV head.
ZIGGURAT_HOST_DEVICE inline int PassesOf(const DeviceShape& shape) {
  return (shape.group_size() + kHeadsPerPass - 1) / kHeadsPerPass;
}
/// (segment, KV head, pass)s of a segment that covers `kv_heads` heads.
ZIGGURAT_HOST_DEVICE inline int RunsOf(const DeviceShape& shape, int kv_heads) {
  return kv_heads * PassesOf(shape);
}

/// The head size that a tensor-core kernel is made for which serves `head_dim`.
ZIGGURAT_HOST_DEVICE constexpr int TensorHeadDim(int head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
/// Bytes of a value's row that a lane of such a kernel loads at once: an eighth of it, of 4, 8 or
/// 16.
ZIGGURAT_HOST_DEVICE constexpr int ValuePieceBytes(Encoding encoding, int tensor_head_dim) {
  const int eighth = tensor_head_dim * EncodingBits(encoding) / 64;
  return eighth >= 16 ? 16 : eighth >= 8 ? 8 : 4;
}

/// Whether the tensor-core kernels can take a segment: keys in whole groups of four slots, values
/// in whole groups of eight, rows that divide into their loads, and scales that four slots, and the
/// channels of a cell, share.
ZIGGURAT_HOST_DEVICE inline bool FitsTensorCores(const DeviceSegment& s, int head_dim) {
  if (s.code() == Encoding::kF32 || head_dim % 8 != 0 || head_dim > 256) return false;
  const int row_bytes = head_dim * EncodingBits(s.code()) / 8;
  if (row_bytes % ValuePieceBytes(s.code(), TensorHeadDim(head_dim)) != 0) return false;
  if (s.keys.slots_per_block % 4 != 0 || s.values.slots_per_block % 8 != 0) return false;
  return !IsGrouped(s.code()) || s.group % (32 / EncodingBits(s.code())) == 0;
}

/// Whether chunks of this encoding may come by way of shared memory (staged_chunks.cuh): codes,
/// whose rows eight lanes share evenly.
ZIGGURAT_HOST_DEVICE constexpr bool HasStages(Encoding encoding, int head_dim) {
  const int bits = EncodingBits(encoding);
  return bits <= 8 && (head_dim == 64 || head_dim == 128) &&
         head_dim * bits / 8 == 8 * ValuePieceBytes(encoding, head_dim);
}
/// Keys and values in the same blocks, of a power of two of slots, aligned for copies.
ZIGGURAT_HOST_DEVICE inline bool FitsStages(const DevicePlane& keys, const DevicePlane& values) {
  const uint32_t slots = keys.slots_per_block;
  const uint32_t bytes =
      keys.head_stride_bytes | keys.offset_bytes | values.offset_bytes | keys.unit_bytes;
  return keys.blocks == values.blocks && slots == values.slots_per_block &&
         keys.head_stride_bytes == values.head_stride_bytes &&
         keys.unit_bytes == values.unit_bytes && keys.offset_bytes <= values.offset_bytes &&
         (slots & (slots - 1)) == 0 && slots >= kChunkSlots && bytes % 16 == 0;
}
/// Whether a segment's chunks come so: each in one block and its scales in one unit, keys and
/// values side by side, no norms.
ZIGGURAT_HOST_DEVICE inline bool FitsStages(const DeviceSegment& s, int head_dim) {
  if (!HasStages(s.code(), head_dim) || s.borrows_keys()) return false;
  if (s.key_norms.exists() || s.value_norms.exists()) return false;
  if (!FitsStages(s.keys, s.values) || !FitsStages(s.key_scales, s.value_scales)) return false;
  return !IsGrouped(s.code()) || ((s.group & (s.group - 1)) == 0 && s.group >= kChunkSlots);
}

/// The kernels that go through the slots of segments, each through those of its own: plain ones in
/// f32, on tensor cores one for each encoding, and one for each whose chunks come by way of shared
/// memory. As numbers, so that a set of them is a word.
constexpr int kPlainKernel = 0;
ZIGGURAT_HOST_DEVICE constexpr int TensorKernel(Encoding encoding) {
  return 1 + static_cast<int>(encoding);
}
ZIGGURAT_HOST_DEVICE constexpr int StagedKernel(Encoding encoding) {
  return 1 + kEncodings + static_cast<int>(encoding);
}
constexpr int kDecodeKernels = 1 + 2 * kEncodings;

/// That of a segment, where there are tensor cores to compute on (in bf16) or are none.
ZIGGURAT_HOST_DEVICE inline int KernelOf(const DeviceSegment& s, int head_dim, bool tensor_cores) {
  if (!tensor_cores || !FitsTensorCores(s, head_dim)) return kPlainKernel;
  return FitsStages(s, head_dim) ? StagedKernel(s.code()) : TensorKernel(s.code());
}

/// Which segments one launch takes.
struct SegmentClass {
  int32_t kernel = kPlainKernel;
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
  int most = 0;  ///< of any kernel
  int of_kernel[kDecodeKernels] = {};

  static DecodeWorkers Alike(int workers) {
    DecodeWorkers all;
    all.most = workers;
    std::fill_n(all.of_kernel, kDecodeKernels, workers);
    return all;
  }
};
/// For the calling thread's device, which has so many multiprocessors: as many to each as may be,
/// or as it holds of the kernel.
DecodeWorkers FindDecodeWorkers(const DeviceShape& shape, int multiprocessors);

/// What the launches of a step are made for; the same for all steps that one graph serves.
struct DecodeBucket {
  DeviceShape shape;
  int max_items = 0;
  int max_runs = 0;  ///< (item, segment, KV head, pass)s
  DecodeWorkers workers;
  int layers = 1;  ///< that are planned at once
  /// Bits of the kernels that segments may exist for. Where there is but the plain one, it takes
  /// all; on tensor cores queries and weights are rounded to bf16.
  uint32_t kernels = 1u << kPlainKernel;
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
  DecodePlan plans[2 * kDecodeKernels];  ///< for own and for borrowed keys
  int count = 0;
  float* near_lse = nullptr;  ///< [items, num_q_heads]; only where segments borrow keys
};
DecodePlans LayOutPlans(const DecodeBucket& bucket, int layer, void* scratch, size_t* bytes);

struct DecodeArguments {
  DeviceCache cache;
  DeviceShape shape;
  DeviceItems items;
  const float* q = nullptr;
  const float* near_lse = nullptr;
};
/// Workers of a multiprocessor; 0 where there is no such kernel for this head size.
int PlainWorkersAtOnce(const DeviceShape& shape);
int TensorWorkersAtOnce(int kernel, const DeviceShape& shape);
int StagedWorkersAtOnce(int kernel, const DeviceShape& shape);
void LaunchPlainPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                         cudaStream_t stream);
void LaunchTensorPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream);
void LaunchStagedPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream);

}  // namespace ziggurat::cuda
