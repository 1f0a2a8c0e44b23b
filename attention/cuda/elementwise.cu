// What stands between the GEMMs: bound by memory, a value in each thread.
#include <algorithm>
#include <cstdint>

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/elementwise.h"
#include "attention/cuda/rotary.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;

// A thread has its numbers of a row in registers, four at a time.
constexpr int kNormPieces = 4, kMostNormThreads = 1024;

__device__ float SumOfSquares(const float4& x) {
  return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/// A block for each row, of a multiple of four numbers.
__global__ void __launch_bounds__(kMostNormThreads)
    RmsNorm(const float* x, const float* weight, float epsilon, int width, ElementType element,
            void* out) {
  ZIGGURAT_SHARED(float[kMostNormThreads / kWarp], scratch);
  const int pieces = width / 4, threads = static_cast<int>(blockDim.x);
  const auto* own_weight = reinterpret_cast<const float4*>(weight) + threadIdx.x;
  const auto* own_x = reinterpret_cast<const float4*>(x + size_t{blockIdx.x} * width) + threadIdx.x;
  const auto is_live = [&](int p) { return static_cast<int>(threadIdx.x) + p * threads < pieces; };
  float4 weights[kNormPieces], numbers[kNormPieces];
  LetNextBegin();
  ZIGGURAT_UNROLL
  for (int p = 0; p < kNormPieces; ++p) {
    if (is_live(p)) weights[p] = own_weight[p * threads];
  }
  AwaitPrevious();
  float squares = 0;
  ZIGGURAT_UNROLL
  for (int p = 0; p < kNormPieces; ++p) {
    if (is_live(p)) numbers[p] = own_x[p * threads];
  }
  ZIGGURAT_UNROLL
  for (int p = 0; p < kNormPieces; ++p) {
    if (is_live(p)) squares += SumOfSquares(numbers[p]);
  }
  const float inverse = InverseRms(BlockSum(squares, scratch), width, epsilon);
  ZIGGURAT_UNROLL
  for (int p = 0; p < kNormPieces; ++p) {
    if (!is_live(p)) continue;
    const float4 n = numbers[p], w = weights[p];
    const size_t to = size_t{blockIdx.x} * width + 4 * (threadIdx.x + p * threads);
    StorePair(element, out, to, make_float2(n.x * inverse * w.x, n.y * inverse * w.y));
    StorePair(element, out, to + 2, make_float2(n.z * inverse * w.z, n.w * inverse * w.w));
  }
}

/// As RmsNorm, of any width.
__global__ void __launch_bounds__(kThreads)
    RmsNormOfAnyWidth(const float* x, const float* weight, float epsilon, int width,
                      ElementType element, void* out) {
  ZIGGURAT_SHARED(float[kThreads / kWarp], scratch);
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

constexpr int kHeadsOfBlock = 4;

/// A warp for each head (y) of each row (x).
__global__ void __launch_bounds__(kHeadsOfBlock* kWarp)
    SplitAndRotate(AttentionShape shape, ElementType element, const void* qkv, const float* cos,
                   const float* sin, ElementType out_element, void* q, void* k, void* v) {
  const int dim = shape.head_dim, rotated = shape.num_q_heads + shape.num_kv_heads;
  const int heads = rotated + shape.num_kv_heads;
  const int head = static_cast<int>(blockIdx.y) * kHeadsOfBlock + WarpOfThread();
  if (head >= heads) return;
  const size_t row = blockIdx.x, from = (row * heads + head) * dim, angles = row * (dim / 2);
  const bool is_q = head < shape.num_q_heads, is_k = !is_q && head < rotated;
  void* to = is_q ? q : is_k ? k : v;
  const size_t base =
      is_q ? (row * shape.num_q_heads + head) * dim
           : (row * shape.num_kv_heads + head - (is_k ? shape.num_q_heads : rotated)) * dim;
  if (is_q || is_k) {
    RotateHead(element, qkv, from, dim, cos + angles, sin + angles,
               [&](int c, float2 values) { StorePair(out_element, to, base + c, values); });
  } else {
    for (int c = 2 * LaneOfThread(); c < dim; c += 2 * kWarp) {
      StorePair(out_element, to, base + c, LoadPair(element, qkv, from + c));
    }
  }
}

/// Eight bf16.
struct Eight {
  uint4 words;

  __device__ static Eight At(const void* data, size_t piece) {
    return {static_cast<const uint4*>(data)[piece]};
  }
  __device__ float2 Pair(int i) const {
    const uint32_t of_words[] = {words.x, words.y, words.z, words.w};
    return PairOfBf16(of_words[i]);
  }
};

/// A thread for eight channels (y) of each row (x), in bf16.
__global__ void __launch_bounds__(kThreads)
    SwiGluOfEights(const void* gate_up, int pieces, uint16_t* out) {
  LetNextBegin();
  AwaitPrevious();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= pieces) return;
  const size_t row = blockIdx.x;
  const Eight gates = Eight::At(gate_up, row * 2 * pieces + i);
  const Eight ups = Eight::At(gate_up, row * 2 * pieces + pieces + i);
  uint32_t words[4];
  ZIGGURAT_UNROLL
  for (int w = 0; w < 4; ++w) {
    const float2 gate = gates.Pair(w), up = ups.Pair(w);
    words[w] = WordOfBf16(make_float2(Gated(gate.x, up.x), Gated(gate.y, up.y)));
  }
  reinterpret_cast<uint4*>(out)[row * pieces + i] =
      make_uint4(words[0], words[1], words[2], words[3]);
}

/// A thread for each channel (y) of each row (x).
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

/// A block for each token.
__global__ void __launch_bounds__(kThreads)
    EmbedTokens(ElementType element, const void* table, const int32_t* ids, int width,
                bool in_eights, float* out) {
  LetNextBegin();
  AwaitPrevious();
  const size_t from = static_cast<size_t>(ids[blockIdx.x]) * width, to = size_t{blockIdx.x} * width;
  if (in_eights) {
    for (int i = static_cast<int>(threadIdx.x); i < width / 8; i += kThreads) {
      const Eight eight = Eight::At(table, from / 8 + i);
      auto* const piece = reinterpret_cast<float4*>(out + to + 8 * i);
      const float2 a = eight.Pair(0), b = eight.Pair(1), c = eight.Pair(2), d = eight.Pair(3);
      piece[0] = make_float4(a.x, a.y, b.x, b.y);
      piece[1] = make_float4(c.x, c.y, d.x, d.y);
    }
    return;
  }
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
  const dim3 grid{static_cast<unsigned>(rows)};
  // Two pieces of four numbers for a thread, in wide rows up to kNormPieces.
  const int threads = std::min((width / 8 + kWarp - 1) / kWarp * kWarp, kMostNormThreads);
  if (width % 4 != 0 || width / 4 > kNormPieces * threads || !IsAligned(x) || !IsAligned(weight) ||
      !IsAligned(out)) {
    return LaunchEarly(RmsNormOfAnyWidth, grid, dim3{kThreads}, 0, stream, x, weight, epsilon,
                       width, element, out);
  }
  LaunchEarly(RmsNorm, grid, dim3{static_cast<unsigned>(threads)}, 0, stream, x, weight, epsilon,
              width, element, out);
}

void LaunchSplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                          const float* cos, const float* sin, int rows, ElementType out_element,
                          void* q, void* k, void* v, cudaStream_t stream) {
  if (rows == 0) return;
  const int heads = shape.num_q_heads + 2 * shape.num_kv_heads;
  const dim3 grid{static_cast<unsigned>(rows),
                  static_cast<unsigned>((heads + kHeadsOfBlock - 1) / kHeadsOfBlock)};
  Launch(SplitAndRotate, grid, dim3{kHeadsOfBlock * kWarp}, 0, stream, shape, element, qkv, cos,
         sin, out_element, q, k, v);
}

void LaunchSwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out,
                  cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  if (element == ElementType::kBf16 && width % 8 == 0 && IsAligned(gate_up) && IsAligned(out)) {
    return LaunchEarly(SwiGluOfEights, dim3{static_cast<unsigned>(rows), BlocksFor(width / 8)},
                       dim3{kThreads}, 0, stream, gate_up, width / 8, static_cast<uint16_t*>(out));
  }
  LaunchEarly(SwiGlu, dim3{static_cast<unsigned>(rows), BlocksFor(width)}, dim3{kThreads}, 0,
              stream, element, gate_up, width, out);
}

void LaunchEmbedTokens(ElementType element, const void* table, const int32_t* ids, int count,
                       int width, float* out, cudaStream_t stream) {
  if (count == 0) return;
  const bool in_eights =
      element == ElementType::kBf16 && width % 8 == 0 && IsAligned(table) && IsAligned(out);
  LaunchEarly(EmbedTokens, dim3{static_cast<unsigned>(count)}, dim3{kThreads}, 0, stream, element,
              table, ids, width, in_eights, out);
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

}  // namespace ziggurat::cuda
