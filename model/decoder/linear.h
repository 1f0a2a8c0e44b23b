// The matrix products of the decoder: y = x W^T + b, with the weights packed once at load.
//
// Our own kernels for bf16, where they are the fastest for any number of rows (CPUs with AMX, and
// those with VDPBF16PS at half rate or not at all), else oneDNN, whose blocked layout of weights
// our kernels read too where rows are few. A build that attends to prompts by libtorch on a GPU may
// have no oneDNN but the one inside libtorch: then bf16 is ours on every CPU, and f32 at::linear's
// (linear_torch.h).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "model/decoder/weight_matrix.h"

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
/// Outlives the linears that it made, and what it keeps.
class LinearFactory {
 public:
  virtual ~LinearFactory() = default;

  /// The weights where the decoder's backend reads them.
  virtual absl::StatusOr<const void*> Keep(const WeightMatrix& weights) {
    kept_.push_back(weights);
    return weights.data();
  }

  /// `weight` [out_features, in_features] is copied or kept as the implementation likes; `bias`
  /// [out_features], or empty.
  virtual absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                                       const std::vector<float>& bias) = 0;

 private:
  std::vector<WeightMatrix> kept_;  ///< in the host's memory
};

/// Our own kernels for bf16; and whether they are faster than oneDNN with any number of rows. The
/// CPU must be one that DetectCpuLevel() knows.
std::unique_ptr<LinearFactory> MakePackedLinearFactory();
bool ArePackedLinearsBest();

#ifdef ZIGGURAT_HAS_ONEDNN
/// oneDNN's, and whether it has more than its slow reference for `element` on this CPU.
std::unique_ptr<LinearFactory> MakeOneDnnLinearFactory();
bool IsOneDnnFast(ElementType element);
#endif

/// The best of these for `element`, and whether that packs weights into memory of its own rather
/// than keep the matrices that it is given.
std::unique_ptr<LinearFactory> MakeLinearFactory(ElementType element);
bool PacksWeights(ElementType element);

}  // namespace ziggurat
