// The matrix products of the decoder: y = x W^T + b, with the weights packed once at load.
//
// Three implementations: our own kernels for bf16, where they are the fastest for any number of
// rows (CPUs with AMX, and those with VDPBF16PS at half rate or not at all); oneDNN (weights
// reordered into its blocked layout, which our kernels read too where rows are few); and at::linear
// where oneDNN is absent. Debian's libtorch brings only the reference BLAS for f32, which is some
// fifty times slower than oneDNN.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"

namespace at {
class Tensor;
}

namespace ziggurat {

/// What a product is of where it does more than multiply (Linear::RunFused).
struct FusedInput {
  const float* x = nullptr;     ///< [rows, in_features], the residual stream
  const float* norm = nullptr;  ///< [in_features], the weights of RMSNorm
  float epsilon = 0;            ///< of RMSNorm
  /// y is SiLU(g) u, [rows, out_features / 2], of the halves g and u of what comes out.
  bool gates = false;
};

/// One matrix product with fixed weights. Called by one thread at a time; runs on the calling
/// thread's OpenMP team.
class Linear {
 public:
  virtual ~Linear() = default;

  /// y = x W^T + b.
  ///   x  [rows, in_features] in the element type of the weights
  ///   y  [rows, out_features] in `out_element`
  virtual absl::Status Run(const void* x, int rows, ElementType out_element, void* y) = 0;

  /// y += x W^T + b, y [rows, out_features] f32: the residual stream, without a pass of its own.
  virtual absl::Status Accumulate(const void* x, int rows, float* y) = 0;

  /// Whether RunFused() is there for so many rows: on a GPU, where a launch may take longer than
  /// the little that is computed between two products.
  virtual bool CanFuse([[maybe_unused]] int rows) const { return false; }
  /// Run() of RMSNorm(x), perhaps with SwiGLU of what comes out; y in the element type of the
  /// weights.
  virtual absl::Status RunFused([[maybe_unused]] const FusedInput& input, [[maybe_unused]] int rows,
                                [[maybe_unused]] void* y) {
    return absl::UnimplementedError("this product does nothing but multiply");
  }
};

/// Makes the linears of one model and holds what they share (compiled kernels, one scratch buffer).
/// Outlives the linears that it made.
class LinearFactory {
 public:
  virtual ~LinearFactory() = default;
  virtual std::string_view name() const = 0;  ///< "packed", "onednn", "at::linear"

  /// Whether weights stay in the host's memory, where who gave them keeps them alive.
  virtual bool is_hosts() const { return true; }
  /// The same bytes where the decoder's backend reads them.
  virtual absl::StatusOr<const void*> Keep(const void* host, size_t /*bytes*/) { return host; }

  /// `weight` [out_features, in_features], f32 or bf16, is copied or kept as the implementation
  /// likes; `bias` [out_features] f32, or an undefined tensor.
  virtual absl::StatusOr<std::unique_ptr<Linear>> Make(const at::Tensor& weight,
                                                       const at::Tensor& bias) = 0;
};

/// at::linear on libtorch's own kernels. Always there.
std::unique_ptr<LinearFactory> MakeTorchLinearFactory();

/// oneDNN; null where there are none: this build has no oneDNN, or it no fast product of `element`
/// on this CPU.
bool HasOneDnnLinears(ElementType element);
std::unique_ptr<LinearFactory> MakeOneDnnLinearFactory(ElementType element);

/// Our own kernels; null where there are none: oneDNN is faster with some number of rows, and for
/// f32.
bool HasPackedLinears(ElementType element);
std::unique_ptr<LinearFactory> MakePackedLinearFactory(ElementType element);

/// The best of the three, and whether that packs weights into memory of its own rather than keep
/// the tensors that it is given.
bool PacksWeights(ElementType element);
std::unique_ptr<LinearFactory> MakeLinearFactory(ElementType element);

}  // namespace ziggurat
