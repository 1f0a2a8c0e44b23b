// Which kernel of decode attention goes through the slots of a segment: what each of them takes, as
// host and device both work it out.
#pragma once

#include <cstdint>

#include "attention/cuda/device_views.h"

namespace ziggurat::cuda {

constexpr int kChunkSlots = 32;

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

/// How a kernel takes slots.
enum class DecodePath : uint8_t {
  kPlain,   ///< in f32, whatever they hold (decode_plain.cu)
  kTensor,  ///< on tensor cores, straight from the blocks (decode_tensor.cu)
  kStaged,  ///< on tensor cores, by way of shared memory (decode_staged.cu)
};

/// One of these kernels: the plain one, or that of a path and an encoding. Not all of them exist;
/// LayOutPlans leaves those out that no segment can have.
class DecodeKernel {
  static constexpr int kEncodings = 6;

 public:
  static constexpr int kCount = 1 + 2 * kEncodings;

  ZIGGURAT_HOST_DEVICE static constexpr DecodeKernel Plain() { return DecodeKernel(0); }
  ZIGGURAT_HOST_DEVICE static constexpr DecodeKernel Tensor(Encoding encoding) {
    return DecodeKernel(1 + static_cast<int>(encoding));
  }
  ZIGGURAT_HOST_DEVICE static constexpr DecodeKernel Staged(Encoding encoding) {
    return DecodeKernel(1 + kEncodings + static_cast<int>(encoding));
  }
  static constexpr DecodeKernel At(int index) { return DecodeKernel(index); }

  /// Below kCount: its place in tables of all kernels.
  constexpr int index() const { return index_; }
  /// In sets of kernels, which are words.
  constexpr uint32_t bit() const { return 1u << index_; }
  static constexpr uint32_t kAllBits = (1u << kCount) - 1;

  constexpr DecodePath path() const {
    if (index_ == 0) return DecodePath::kPlain;
    return index_ <= kEncodings ? DecodePath::kTensor : DecodePath::kStaged;
  }
  /// Of any but the plain one.
  constexpr Encoding encoding() const { return static_cast<Encoding>((index_ - 1) % kEncodings); }

  ZIGGURAT_HOST_DEVICE friend constexpr bool operator==(DecodeKernel a, DecodeKernel b) {
    return a.index_ == b.index_;
  }

 private:
  ZIGGURAT_HOST_DEVICE explicit constexpr DecodeKernel(int index) : index_(index) {}

  int32_t index_;
};

/// That of a segment, where there are tensor cores to compute on (in bf16) or are none.
ZIGGURAT_HOST_DEVICE inline DecodeKernel KernelOf(const DeviceSegment& s, int head_dim,
                                                  bool tensor_cores) {
  if (!tensor_cores || !FitsTensorCores(s, head_dim)) return DecodeKernel::Plain();
  return FitsStages(s, head_dim) ? DecodeKernel::Staged(s.code()) : DecodeKernel::Tensor(s.code());
}

}  // namespace ziggurat::cuda
