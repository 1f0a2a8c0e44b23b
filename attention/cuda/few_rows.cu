// y = x W^T for few rows of x: what decode steps of few sequences are made of. Every number of W is
// used for a few products only, so what counts is that W comes from memory without a break.
#include <cstdint>

#include "attention/cuda/cells.cuh"
#include "attention/cuda/matmul.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPiece = 8;         ///< numbers of a row that a lane takes at once
constexpr int kPiecesAtOnce = 8;  ///< of W, under way to a lane: 128 bytes
constexpr int kColumns = 2;       ///< of the result, for each warp: one x serves both
constexpr int kFusedColumns = 4;  ///< more of them, since x and norm in f32 are more to read

/// The numbers of a piece.
struct Numbers {
  float at[kPiece];

  __device__ static Numbers OfBf16(const uint4& piece) {
    const uint32_t words[] = {piece.x, piece.y, piece.z, piece.w};
    Numbers numbers;
    ZIGGURAT_UNROLL
    for (int i = 0; i < kPiece; ++i) {
      numbers.at[i] = CodeValue(Encoding::kBf16, words[i / 2], i % 2);
    }
    return numbers;
  }
  __device__ static Numbers OfF32(const float* data) {
    const float4 low = __ldg(reinterpret_cast<const float4*>(data));
    const float4 high = __ldg(reinterpret_cast<const float4*>(data) + 1);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
};

/// Passes over some rows of W once. Lane l has the pieces l, l + 32, ... of each: add(at, pieces)
/// is called with those that begin with number `at`. W is used once, so it is the first to leave
/// the caches; who calls it reads x by way of them.
template <int kCount, class Add>
__device__ void PassOverWeights(const uint16_t* const (&w)[kCount], int in_features, Add add) {
  constexpr int kSteps = kPiecesAtOnce / kCount, kStride = kWarp * kPiece;
  for (int base = LaneOfThread() * kPiece; base < in_features; base += kSteps * kStride) {
    uint4 pieces[kSteps][kCount];
    ZIGGURAT_UNROLL
    for (int n = 0; n < kSteps; ++n) {
      const int at = base + n * kStride;
      ZIGGURAT_UNROLL
      for (int c = 0; c < kCount; ++c) {
        if (at < in_features) pieces[n][c] = __ldcs(reinterpret_cast<const uint4*>(w[c] + at));
      }
    }
    ZIGGURAT_UNROLL
    for (int n = 0; n < kSteps; ++n) {
      if (base + n * kStride < in_features) add(base + n * kStride, pieces[n]);
    }
  }
}

__device__ void AddProducts(const Numbers& w, const Numbers& x, float* sum) {
  ZIGGURAT_UNROLL
  for (int i = 0; i < kPiece; ++i) *sum += w.at[i] * x.at[i];
}

__device__ const uint16_t* RowOfWeights(const Product& p, int column) {
  return static_cast<const uint16_t*>(p.weight) + static_cast<size_t>(column) * p.in_features;
}

/// A warp for two columns of the result, in all rows of x. Each row is added up in the same order
/// whatever kRows is.
template <int kRows>
__global__ void __launch_bounds__(kThreads) FewRows(Product p) {
  const int first = (static_cast<int>(blockIdx.x) * kWarps + WarpOfThread()) * kColumns;
  if (first >= p.out_features) return;
  // The last of an odd number is computed twice.
  const uint16_t* const w[kColumns] = {RowOfWeights(p, first),
                                       RowOfWeights(p, min(first + 1, p.out_features - 1))};
  float sums[kRows][kColumns] = {};
  PassOverWeights(w, p.in_features, [&](int at, const uint4(&pieces)[kColumns]) {
    ZIGGURAT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto* row = static_cast<const uint16_t*>(p.x) + static_cast<size_t>(r) * p.in_features;
      const Numbers x = Numbers::OfBf16(__ldg(reinterpret_cast<const uint4*>(row + at)));
      ZIGGURAT_UNROLL
      for (int c = 0; c < kColumns; ++c) AddProducts(Numbers::OfBf16(pieces[c]), x, &sums[r][c]);
    }
  });
  ZIGGURAT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ZIGGURAT_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      float sum = WarpSum(sums[r][c]);
      const int column = first + c;
      if (LaneOfThread() != r * kColumns + c || column >= p.out_features) continue;
      const size_t to = static_cast<size_t>(r) * p.out_features + column;
      if (p.bias != nullptr) sum += p.bias[column];
      if (p.accumulates) sum += LoadElement(p.out_element, p.y, to);
      StoreElement(p.out_element, p.y, to, sum);
    }
  }
}

/// A warp for four columns: neighbours, or two gates and their ups. RMSNorm needs no pass of its
/// own: what it divides by is known when x has been read.
__global__ void __launch_bounds__(kThreads) Fused(FusedProduct f) {
  const Product& p = f.product;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + WarpOfThread();
  const int half = p.out_features / 2;
  constexpr int kGates = kFusedColumns / 2;
  const auto column = [&](int c) {
    return f.gates ? kGates * warp + c % kGates + c / kGates * half : kFusedColumns * warp + c;
  };
  const int end = f.gates ? half : p.out_features;
  if (column(0) >= end) return;
  const uint16_t* w[kFusedColumns];
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    w[c] = RowOfWeights(p, min(column(c), p.out_features - 1));
  }
  float sums[kFusedColumns] = {}, squares = 0;
  PassOverWeights(w, p.in_features, [&](int at, const uint4(&pieces)[kFusedColumns]) {
    const Numbers norm = Numbers::OfF32(f.norm + at);
    Numbers x = Numbers::OfF32(static_cast<const float*>(p.x) + at);
    AddProducts(x, x, &squares);
    ZIGGURAT_UNROLL
    for (int i = 0; i < kPiece; ++i) x.at[i] *= norm.at[i];
    ZIGGURAT_UNROLL
    for (int c = 0; c < kFusedColumns; ++c) AddProducts(Numbers::OfBf16(pieces[c]), x, &sums[c]);
  });
  const float factor = InverseRms(WarpSum(squares), p.in_features, f.epsilon);
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    sums[c] = WarpSum(sums[c]) * factor;
    if (p.bias != nullptr) sums[c] += p.bias[min(column(c), p.out_features - 1)];
  }
  if (LaneOfThread() != 0) return;
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    if (column(c) >= end) continue;  // ups among them
    const float up = sums[(c + kGates) % kFusedColumns];
    StoreElement(p.out_element, p.y, column(c), f.gates ? Gated(sums[c], up) : sums[c]);
  }
}

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

dim3 GridFor(int columns, int of_warp) {
  const int of_block = kWarps * of_warp;
  return {static_cast<unsigned>((columns + of_block - 1) / of_block)};
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

bool SuitsFewRows(const Product& p) {
  return p.element == ElementType::kBf16 && p.rows >= 1 && p.rows <= kFewRows &&
         p.in_features % kPiece == 0 && IsAligned(p.x) && IsAligned(p.weight);
}

bool SuitsFusion(const FusedProduct& fused) {
  return fused.product.rows == 1 && SuitsFewRows(fused.product) && IsAligned(fused.norm);
}

void LaunchFewRowsProduct(const Product& p, cudaStream_t stream) {
  if (p.out_features == 0) return;
  constexpr decltype(&FewRows<1>) kKernels[kFewRows] = {FewRows<1>, FewRows<2>, FewRows<3>,
                                                        FewRows<4>};
  Launch(kKernels[p.rows - 1], GridFor(p.out_features, kColumns), dim3{kThreads}, 0, stream, p);
}

void LaunchFusedProduct(const FusedProduct& fused, cudaStream_t stream) {
  if (fused.product.out_features == 0) return;
  Launch(Fused, GridFor(fused.product.out_features, kFusedColumns), dim3{kThreads}, 0, stream,
         fused);
}

}  // namespace ziggurat::cuda
