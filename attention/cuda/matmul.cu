// y = x W^T + bias.
#include "attention/cuda/cells.cuh"
#include "attention/cuda/matmul.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;

/// A thread for each column (y) of each row (x) of the result.
__global__ void __launch_bounds__(kThreads) PlainProduct(Product p) {
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= p.out_features) return;
  const size_t of_x = size_t{blockIdx.x} * p.in_features;
  const size_t of_w = static_cast<size_t>(column) * p.in_features;
  float sum = 0;
  for (int i = 0; i < p.in_features; ++i) {
    sum += LoadElement(p.element, p.x, of_x + i) * LoadElement(p.element, p.weight, of_w + i);
  }
  const size_t to = size_t{blockIdx.x} * p.out_features + column;
  if (p.bias != nullptr) sum += p.bias[column];
  if (p.accumulates) sum += LoadElement(p.out_element, p.y, to);
  StoreElement(p.out_element, p.y, to, sum);
}

/// A thread for each column (y) of each row (x).
__global__ void __launch_bounds__(kThreads)
    AddBias(ElementType element, const float* bias, int width, void* y) {
  LetNextBegin();
  AwaitPrevious();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= width) return;
  const size_t at = size_t{blockIdx.x} * width + column;
  StoreElement(element, y, at, LoadElement(element, y, at) + bias[column]);
}

dim3 GridFor(int rows, int width) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(width + kThreads - 1) / kThreads};
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchPlainProduct(const Product& product, cudaStream_t stream) {
  if (product.rows == 0 || product.out_features == 0) return;
  Launch(PlainProduct, GridFor(product.rows, product.out_features), dim3{kThreads}, 0, stream,
         product);
}

void LaunchAddBias(ElementType element, const float* bias, int rows, int width, void* y,
                   cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  LaunchEarly(AddBias, GridFor(rows, width), dim3{kThreads}, 0, stream, element, bias, width, y);
}

}  // namespace ziggurat::cuda
