// y = x W^T for one row of x: what the steps of one sequence are made of. Every number of W is used
// once, so what counts is that W comes from memory without a break, also from one product to the
// next: the first weights are asked for while the kernel before is still at work.
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
constexpr int kColumns = 2;       ///< of the result, for each team: one x serves both
constexpr int kFusedColumns = 4;  ///< more of them, since x and norm in f32 are more to read
/// With fewer columns the warps of a block share those of one team: else there would be too few
/// blocks for every processor to have enough loads under way, and their ends would be long.
constexpr int kManyColumns = 16384;

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
    const float4 low = reinterpret_cast<const float4*>(data)[0];
    const float4 high = reinterpret_cast<const float4*>(data)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
};

/// The 32 bytes there, into the second cache.
__device__ void FetchToL2([[maybe_unused]] const void* address) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

/// The warps that compute some columns together, each with a part of the in_features: one, or all
/// of a block.
template <bool kIsBlock>
struct Team {
  static constexpr int kTeams = kIsBlock ? 1 : kWarps;  ///< in a block
  static constexpr int kStride = (kIsBlock ? kThreads : kWarp) * kPiece;

  __device__ static int Index() {
    return static_cast<int>(blockIdx.x) * kTeams + (kIsBlock ? 0 : WarpOfThread());
  }
  /// The first number that the thread takes of a row; others are kStride apart.
  __device__ static int FirstNumber() {
    return (kIsBlock ? static_cast<int>(threadIdx.x) : LaneOfThread()) * kPiece;
  }
  /// Whether the thread is lane `lane` of the warp that stores.
  __device__ static bool IsLane(int lane) {
    return LaneOfThread() == lane && (!kIsBlock || WarpOfThread() == 0);
  }
  /// Sums over all threads, in the same order each time. All threads of the team call it, once.
  template <int kCount>
  __device__ static void Sum(float (&sums)[kCount]) {
    ZIGGURAT_UNROLL
    for (int c = 0; c < kCount; ++c) sums[c] = WarpSum(sums[c]);
    if constexpr (kIsBlock) {
      ZIGGURAT_SHARED(float[kWarps][kCount], of_warps);
      ZIGGURAT_UNROLL
      for (int c = 0; c < kCount; ++c) {
        if (LaneOfThread() == c) of_warps[WarpOfThread()][c] = sums[c];
      }
      __syncthreads();
      ZIGGURAT_UNROLL
      for (int c = 0; c < kCount; ++c) {
        sums[c] = 0;
        ZIGGURAT_UNROLL
        for (int w = 0; w < kWarps; ++w) sums[c] += of_warps[w][c];
      }
    }
  }
};

/// Passes over some rows of W once: begin() is called when the first weights are under way, then
/// add(fetch(at), pieces) with those that begin with number `at`; fetch comes a few pieces ahead. W
/// is used once, so it is the first to leave the caches; who calls it reads x by way of them.
template <class Team, int kCount, class Begin, class Fetch, class Add>
__device__ void PassOverWeights(const uint16_t* const (&w)[kCount], int in_features, Begin begin,
                                Fetch fetch, Add add) {
  constexpr int kSteps = kPiecesAtOnce / kCount, kStride = Team::kStride;
  uint4 pieces[kSteps][kCount];
  const auto load = [&](int base) {
    ZIGGURAT_UNROLL
    for (int n = 0; n < kSteps; ++n) {
      const int at = base + n * kStride;
      ZIGGURAT_UNROLL
      for (int c = 0; c < kCount; ++c) {
        if (at < in_features) pieces[n][c] = __ldcs(reinterpret_cast<const uint4*>(w[c] + at));
      }
    }
  };
  int base = Team::FirstNumber();
  load(base);
  begin();
  while (true) {
    decltype(fetch(0)) fetched[kSteps];
    ZIGGURAT_UNROLL
    for (int n = 0; n < kSteps; ++n) {
      if (base + n * kStride < in_features) fetched[n] = fetch(base + n * kStride);
    }
    ZIGGURAT_UNROLL
    for (int n = 0; n < kSteps; ++n) {
      if (base + n * kStride < in_features) add(fetched[n], pieces[n]);
    }
    base += kSteps * kStride;
    if (base >= in_features) return;
    load(base);
  }
}

__device__ void AddProducts(const Numbers& w, const Numbers& x, float* sum) {
  ZIGGURAT_UNROLL
  for (int i = 0; i < kPiece; ++i) *sum += w.at[i] * x.at[i];
}

__device__ const uint16_t* RowOfWeights(const Product& p, int column) {
  return static_cast<const uint16_t*>(p.weight) + static_cast<size_t>(column) * p.in_features;
}

/// A team for two columns of the result.
template <bool kIsBlock>
__global__ void __launch_bounds__(kThreads) OneRow(Product p) {
  using Team = Team<kIsBlock>;
  LetNextBegin();
  const int first = Team::Index() * kColumns;
  if (first >= p.out_features) return AwaitPrevious();
  // The last of an odd number is computed twice.
  const uint16_t* const w[kColumns] = {RowOfWeights(p, first),
                                       RowOfWeights(p, min(first + 1, p.out_features - 1))};
  const int column = first + LaneOfThread();  // which the thread stores
  const bool stores =
      LaneOfThread() < kColumns && Team::IsLane(LaneOfThread()) && column < p.out_features;
  float sums[kColumns] = {}, bias = 0, before = 0;
  const auto begin = [&] {
    AwaitPrevious();
    if (stores && p.bias != nullptr) bias = p.bias[column];
    if (stores && p.accumulates) before = LoadElement(p.out_element, p.y, column);
  };
  const auto fetch = [&](int at) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + at);
  };
  const auto add = [&](const uint4& x, const uint4(&pieces)[kColumns]) {
    const Numbers numbers = Numbers::OfBf16(x);
    ZIGGURAT_UNROLL
    for (int c = 0; c < kColumns; ++c) AddProducts(Numbers::OfBf16(pieces[c]), numbers, &sums[c]);
  };
  PassOverWeights<Team>(w, p.in_features, begin, fetch, add);
  Team::Sum(sums);
  ZIGGURAT_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    if (!stores || LaneOfThread() != c) continue;
    StoreElement(p.out_element, p.y, column, sums[c] + bias + before);
  }
}

/// A team for four columns: neighbours, or two gates and their ups. RMSNorm needs no pass of its
/// own: what it divides by is known when x has been read.
template <bool kIsBlock>
__global__ void __launch_bounds__(kThreads) Fused(FusedProduct f) {
  using Team = Team<kIsBlock>;
  LetNextBegin();
  const Product& p = f.product;
  const int half = p.out_features / 2;
  constexpr int kGates = kFusedColumns / 2;
  const auto column = [&](int c) {
    return f.gates ? kGates * Team::Index() + c % kGates + c / kGates * half
                   : kFusedColumns * Team::Index() + c;
  };
  const int end = f.gates ? half : p.out_features;
  if (column(0) >= end) return AwaitPrevious();
  const uint16_t* w[kFusedColumns];
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    w[c] = RowOfWeights(p, min(column(c), p.out_features - 1));
  }
  float sums[kFusedColumns + 1] = {};  // of the squares behind those of the columns
  if (blockIdx.x == 0) {  // all need it at once, and nobody has read it since the last step
    for (int i = static_cast<int>(threadIdx.x); i < p.in_features / kPiece; i += kThreads) {
      FetchToL2(f.norm + kPiece * i);
    }
  }
  // In f32, x and norm ahead of the weights would take too many registers.
  const auto fetch = [](int at) { return at; };
  const auto add = [&](int at, const uint4(&pieces)[kFusedColumns]) {
    const Numbers norm = Numbers::OfF32(f.norm + at);
    Numbers x = Numbers::OfF32(static_cast<const float*>(p.x) + at);
    AddProducts(x, x, &sums[kFusedColumns]);
    ZIGGURAT_UNROLL
    for (int i = 0; i < kPiece; ++i) x.at[i] *= norm.at[i];
    ZIGGURAT_UNROLL
    for (int c = 0; c < kFusedColumns; ++c) AddProducts(Numbers::OfBf16(pieces[c]), x, &sums[c]);
  };
  PassOverWeights<Team>(w, p.in_features, AwaitPrevious, fetch, add);
  Team::Sum(sums);
  if (!Team::IsLane(0)) return;
  const float factor = InverseRms(sums[kFusedColumns], p.in_features, f.epsilon);
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    sums[c] *= factor;
    if (p.bias != nullptr) sums[c] += p.bias[min(column(c), p.out_features - 1)];
  }
  ZIGGURAT_UNROLL
  for (int c = 0; c < kFusedColumns; ++c) {
    if (column(c) >= end) continue;  // ups among them
    const float up = sums[(c + kGates) % kFusedColumns];
    StoreElement(p.out_element, p.y, column(c), f.gates ? Gated(sums[c], up) : sums[c]);
  }
}

template <class Kernel, class Argument>
void LaunchTeams(Kernel of_warps, Kernel of_blocks, int columns, int of_team, cudaStream_t stream,
                 const Argument& argument) {
  if (columns == 0) return;
  const bool is_block = columns < kManyColumns;
  const int of_block = of_team * (is_block ? 1 : kWarps);
  const dim3 grid{static_cast<unsigned>((columns + of_block - 1) / of_block)};
  LaunchEarly(is_block ? of_blocks : of_warps, grid, dim3{kThreads}, 0, stream, argument);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

bool SuitsOneRow(const Product& p) {
  return p.element == ElementType::kBf16 && p.rows == 1 && p.in_features % kPiece == 0 &&
         IsAligned(p.x) && IsAligned(p.weight);
}

bool SuitsFusion(const FusedProduct& fused) {
  return SuitsOneRow(fused.product) && IsAligned(fused.norm);
}

void LaunchOneRowProduct(const Product& p, cudaStream_t stream) {
  LaunchTeams(OneRow<false>, OneRow<true>, p.out_features, kColumns, stream, p);
}

void LaunchFusedProduct(const FusedProduct& fused, cudaStream_t stream) {
  LaunchTeams(Fused<false>, Fused<true>, fused.product.out_features, kFusedColumns, stream, fused);
}

}  // namespace ziggurat::cuda
