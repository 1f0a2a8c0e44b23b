// What stands between the GEMMs: bound by memory, a value in each thread.
#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/elementwise.h"
#include "attention/cuda/rotary.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;

/// A block for each row.
__global__ void __launch_bounds__(kThreads)
    RmsNorm(const float* x, const float* weight, float epsilon, int width, ElementType element,
            void* out) {
  __shared__ float scratch[kThreads / kWarp];
  LetNextBegin();
  AwaitPrevious();
  const size_t first = size_t{blockIdx.x} * width;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    squares += x[first + i] * x[first + i];
  }
  const float inverse = InverseRms(BlockSum(squares, scratch), width, epsilon);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    StoreElement(element, out, first + i, x[first + i] * inverse * weight[i]);
  }
}

/// A warp for each head (x) of each row (y).
__global__ void __launch_bounds__(kWarp)
    SplitAndRotate(DeviceShape shape, ElementType element, const void* qkv, const float* cos,
                   const float* sin, ElementType out_element, void* q, void* k, void* v) {
  const int dim = shape.head_dim, rotated = shape.num_q_heads + shape.num_kv_heads;
  const int head = static_cast<int>(blockIdx.y);
  const size_t row = blockIdx.x, from = (row * gridDim.y + head) * dim, angles = row * (dim / 2);
  const bool is_q = head < shape.num_q_heads, is_k = !is_q && head < rotated;
  void* to = is_q ? q : is_k ? k : v;
  const size_t base =
      is_q ? (row * shape.num_q_heads + head) * dim
           : (row * shape.num_kv_heads + head - (is_k ? shape.num_q_heads : rotated)) * dim;
  for (int c = LaneOfThread(); c < dim; c += kWarp) {
    const float x = is_q || is_k ? Rotated(element, qkv, from, c, dim, cos + angles, sin + angles)
                                 : LoadElement(element, qkv, from + c);
    StoreElement(out_element, to, base + c, x);
  }
}

/// A thread for each channel (x) of each row (y).
__global__ void __launch_bounds__(kThreads)
    SwiGlu(ElementType element, const void* gate_up, int width, void* out) {
  LetNextBegin();
  AwaitPrevious();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= width) return;
  const size_t row = blockIdx.x;
  const float gate = LoadElement(element, gate_up, row * 2 * width + i);
  const float up = LoadElement(element, gate_up, row * 2 * width + width + i);
  StoreElement(element, out, row * width + i, Gated(gate, up));
}

__global__ void __launch_bounds__(kThreads)
    AddResidual(ElementType element, const void* x, size_t count, float* residual) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) residual[i] += LoadElement(element, x, i);
}

__global__ void __launch_bounds__(kThreads)
    Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) StoreElement(to, out, i, LoadElement(from, x, i));
}

/// A block for each token.
__global__ void __launch_bounds__(kThreads)
    EmbedTokens(ElementType element, const void* table, const int32_t* ids, int width, float* out) {
  LetNextBegin();
  AwaitPrevious();
  const size_t from = static_cast<size_t>(ids[blockIdx.x]) * width, to = size_t{blockIdx.x} * width;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) {
    out[to + c] = LoadElement(element, table, from + c);
  }
}

/// A thread for each angle. `positions` may be null: first, first + 1, ...
__global__ void __launch_bounds__(kThreads)
    FillAngles(const int32_t* positions, int first, size_t count, const float* inverse_frequencies,
               int width, float* cos_of, float* sin_of) {
  LetNextBegin();
  AwaitPrevious();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int row = static_cast<int>(i / width);
  const int position = positions != nullptr ? positions[row] : first + row;
  const double angle =
      static_cast<double>(position) * static_cast<double>(inverse_frequencies[i % width]);
  cos_of[i] = static_cast<float>(cos(angle));
  sin_of[i] = static_cast<float>(sin(angle));
}

unsigned BlocksFor(size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchRmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                   ElementType element, void* out, cudaStream_t stream) {
  if (rows == 0) return;
  LaunchEarly(RmsNorm, dim3{static_cast<unsigned>(rows)}, dim3{kThreads}, 0, stream, x, weight,
              epsilon, width, element, out);
}

void LaunchSplitAndRotate(const DeviceShape& shape, ElementType element, const void* qkv,
                          const float* cos, const float* sin, int rows, ElementType out_element,
                          void* q, void* k, void* v, cudaStream_t stream) {
  if (rows == 0) return;
  const dim3 grid{static_cast<unsigned>(rows),
                  static_cast<unsigned>(shape.num_q_heads + 2 * shape.num_kv_heads)};
  Launch(SplitAndRotate, grid, dim3{kWarp}, 0, stream, shape, element, qkv, cos, sin, out_element,
         q, k, v);
}

void LaunchSwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out,
                  cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  LaunchEarly(SwiGlu, dim3{static_cast<unsigned>(rows), BlocksFor(width)}, dim3{kThreads}, 0,
              stream, element, gate_up, width, out);
}

void LaunchAddResidual(ElementType element, const void* x, size_t count, float* residual,
                       cudaStream_t stream) {
  if (count == 0) return;
  Launch(AddResidual, dim3{BlocksFor(count)}, dim3{kThreads}, 0, stream, element, x, count,
         residual);
}

void LaunchEmbedTokens(ElementType element, const void* table, const int32_t* ids, int count,
                       int width, float* out, cudaStream_t stream) {
  if (count == 0) return;
  LaunchEarly(EmbedTokens, dim3{static_cast<unsigned>(count)}, dim3{kThreads}, 0, stream, element,
              table, ids, width, out);
}

namespace {

void LaunchAngles(const int32_t* positions, int first, int count, const float* inverse_frequencies,
                  int width, float* cos, float* sin, cudaStream_t stream) {
  const size_t angles = static_cast<size_t>(count) * width;
  if (angles == 0) return;
  LaunchEarly(FillAngles, dim3{BlocksFor(angles)}, dim3{kThreads}, 0, stream, positions, first,
              angles, inverse_frequencies, width, cos, sin);
}

}  // namespace

void LaunchFillAngles(const int32_t* positions, int count, const float* inverse_frequencies,
                      int width, float* cos, float* sin, cudaStream_t stream) {
  LaunchAngles(positions, 0, count, inverse_frequencies, width, cos, sin, stream);
}

void LaunchFillAngles(int first, int count, const float* inverse_frequencies, int width, float* cos,
                      float* sin, cudaStream_t stream) {
  LaunchAngles(nullptr, first, count, inverse_frequencies, width, cos, sin, stream);
}

void LaunchConvert(ElementType from, const void* x, size_t count, ElementType to, void* out,
                   cudaStream_t stream) {
  if (count == 0) return;
  Launch(Convert, dim3{BlocksFor(count)}, dim3{kThreads}, 0, stream, from, x, count, to, out);
}

}  // namespace ziggurat::cuda
