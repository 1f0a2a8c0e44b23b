// Matrix products: of one row (one_row.cu), and as a plain kernel, which the emulator runs for
// all others, and with which a GPU's library is compared: without tensor cores and blocks for
// caches it is not made to be fast.
#pragma once

#include "attention/cuda/stream.h"
#include "block_manager/cache_format.h"

namespace ziggurat::cuda {

/// y = x W^T + bias, or y += that. Sums in f32.
struct Product {
  ElementType element = ElementType::kF32;  ///< of x and weight
  const void* x = nullptr;                  ///< [rows, in_features]
  const void* weight = nullptr;             ///< [out_features, in_features]
  const float* bias = nullptr;              ///< [out_features], or null
  int rows = 0;
  int in_features = 0;
  int out_features = 0;
  ElementType out_element = ElementType::kF32;
  void* y = nullptr;  ///< [rows, out_features]
  bool accumulates = false;
};

void LaunchPlainProduct(const Product& product, cudaStream_t stream);

/// Whether LaunchOneRowProduct takes it: bf16, one row, in_features a multiple of 8, x and weight
/// aligned to 16 bytes.
bool SuitsOneRow(const Product& product);
/// Made to read the weights without a break, the first of them before the kernels in front of it
/// have ended: weight and bias (and norm) are not written on the stream. Only what SuitsOneRow.
void LaunchOneRowProduct(const Product& product, cudaStream_t stream);

/// A product with what stands around it in a decoder layer.
struct FusedProduct {
  Product product;              ///< x [1, in_features] is f32; accumulates is not looked at
  const float* norm = nullptr;  ///< [in_features]: it is of RMSNorm(x)
  float epsilon = 0;            ///< of RMSNorm
  /// The weights are those of gates and then of as many ups: y [1, out_features / 2] is SiLU(gate)
  /// up.
  bool gates = false;
};
/// Whether LaunchFusedProduct takes it: a product that SuitsOneRow, norm aligned to 16 bytes.
bool SuitsFusion(const FusedProduct& fused);
/// Only what SuitsFusion.
void LaunchFusedProduct(const FusedProduct& fused, cudaStream_t stream);

/// y[r][c] += bias[c].   y [rows, width] in `element`. It begins early, as the kernels around it.
void LaunchAddBias(ElementType element, const float* bias, int rows, int width, void* y,
                   cudaStream_t stream);

}  // namespace ziggurat::cuda
