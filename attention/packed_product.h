// y = x W^T over bf16 weights, in the layout that oneDNN packs them into for AVX512-BF16.
//
// With few rows a product is bound by reading the weights, of which oneDNN leaves a part of the
// read bandwidth unused (docs/performance/). With many rows it is bound by multiply-adds: oneDNN
// uses VDPBF16PS, which on Intel CPUs without AMX does half the multiply-adds per cycle of plain
// FMAs on widened weights. With AMX ours are faster for every number of rows, since what packs x
// and reads the weights fits their layout. Where there is no AVX512-BF16, oneDNN has nothing for
// bf16 that is fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "attention/cpu_level.h"
#include "block_manager/cache_format.h"

namespace ziggurat {

/// [in_features, out_features] in panels of kPanel outputs, both padded with zeros: in_features to
/// a multiple of 32, out_features to one of kPanel. Row r of a panel holds inputs 2r and 2r+1 of
/// its outputs side by side. (oneDNN's name: BA16a64b2a.)
struct PackedWeights {
  static constexpr int kPanel = 64;

  const std::byte* data = nullptr;  ///< not owned
  int in_features = 0;              ///< even
  int out_features = 0;
  const float* bias = nullptr;  ///< [out_features], or null

  int rows() const { return (in_features + 31) / 32 * 16; }  ///< of a panel
  int panels() const { return (out_features + kPanel - 1) / kPanel; }
  size_t bytes() const { return size_t{4} * kPanel * rows() * panels(); }
};

/// Writes all of the PackedWeights::bytes at `packed`, on the OpenMP team of the calling thread.
///   weight  [out_features, in_features] bf16; in_features is even
void PackWeights(const uint16_t* weight, int in_features, int out_features, std::byte* packed);

/// Called by one thread at a time; shared by all products of a model for its scratch memory.
class PackedProduct {
 public:
  virtual ~PackedProduct() = default;

  /// The most rows at which this is meant to be used instead of oneDNN on this machine; INT_MAX
  /// where it always is.
  virtual int max_rows() const = 0;

  /// y = x W^T + bias, or with `accumulates` y += that, where y must be f32. A row gets the same
  /// bits whatever others there are, but with kAvx512Bf16: there a row that is left over from
  /// blocks of four is summed by VDPBF16PS, the others by FMAs.
  ///   x  [rows, in_features] bf16     y  [rows, out_features] in `out`
  virtual void Run(const PackedWeights& weights, const void* x, int rows, ElementType out,
                   bool accumulates, void* y) = 0;
};

/// Runs on the OpenMP team of the calling thread.
///   level   one of SupportedCpuLevels
std::unique_ptr<PackedProduct> MakePackedProduct(CpuLevel level);

}  // namespace ziggurat
