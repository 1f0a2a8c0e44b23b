// The matrix product as a plain kernel: what the emulator runs, and what a GPU's library is
// compared with. No tensor cores, no blocking for caches: it is not made to be fast.
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

/// y[r][c] += bias[c].   y [rows, width] in `element`
void LaunchAddBias(ElementType element, const float* bias, int rows, int width, void* y,
                   cudaStream_t stream);

}  // namespace ziggurat::cuda
