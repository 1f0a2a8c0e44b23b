// Matrix products over packed bf16 weights (attention/packed_product.h), a panel of 64 outputs at a
// time. How a row of weights meets the cells of a query is that of keys (score_tiles.h).
#pragma once

#include "attention/cpu/packed_workspace.h"
#include "attention/cpu/score_tiles.h"

namespace ziggurat::cpu {
namespace {

constexpr int kPanelVectors = 4;
constexpr size_t kPanelRowBytes = 256;
/// Rows after which a fetched line is needed, where a panel is read in one pass.
constexpr int kSoon = 64;

/// sums[i][v] += x i . weights of vector v, for NQ rows of x and `Vectors` vectors of outputs.
///   x        [rows][NQ][kCells]
///   weights  row r at weights + r * kPanelRowBytes
///   sums     [NQ] rows, a panel apart
///   ahead    `Fetch` lines from there on are fetched into cache with every row
template <class Keys, int NQ, int Vectors, int Fetch>
inline void AddPanel(const float* x, int rows, const std::byte* weights, const std::byte* ahead,
                     float* sums) {
  using V = typename Keys::Simd;
  constexpr int kStride = kPanelVectors * V::kLanes;
  constexpr auto kFetchHint = Fetch == 4 ? _MM_HINT_T0 : _MM_HINT_T1;
  typename V::Float sum[NQ][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[i][v] = V::Load(sums + i * kStride + v * V::kLanes);
  }
  for (int r = 0; r < rows; ++r) {
    const std::byte* p = weights + r * kPanelRowBytes;
    typename Keys::Row row[Vectors];
#pragma GCC unroll 4
    for (int line = 0; line < Fetch; ++line, ahead += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead), kFetchHint);
    }
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) row[v] = Keys::Load(p + v * 64);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const float* cells = x + (r * NQ + i) * Keys::kCells;
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[i][v] = Keys::Dot(sum[i][v], row[v], cells);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) V::Store(sums + i * kStride + v * V::kLanes, sum[i][v]);
  }
}

/// All vectors of a panel, for a sub-block of `size` rows of x in {1, 2, 3, 4, 8}.
template <class Keys>
inline void AddSubBlock(int size, const float* x, int rows, const std::byte* weights, float* sums) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  constexpr int kLanes = Keys::Simd::kLanes;
  const std::byte* soon = weights + kSoon * kPanelRowBytes;
  const std::byte* next = weights + rows * kPanelRowBytes;
  switch (size) {
    case 8:
      // Two passes over the panel, of which each fetches a half of what comes next: the first one
      // alone would wait for memory, and the second leave it idle.
      AddPanel<Many, 8, 2, 2>(x, rows, weights, next, sums);
      return AddPanel<Many, 8, 2, 2>(x, rows, weights + 128, next + rows * size_t{128},
                                     sums + 2 * kLanes);
    case 4:
      return AddPanel<Many, 4, 4, 4>(x, rows, weights, soon, sums);
    case 3:
      return AddPanel<Many, 3, 4, 4>(x, rows, weights, soon, sums);
    case 2:
      return AddPanel<Many, 2, 4, 4>(x, rows, weights, soon, sums);
    default:
      return AddPanel<One, 1, 4, 4>(x, rows, weights, soon, sums);
  }
}

/// ProductKernels::pack.
template <class Keys>
void PackProductRows(const uint16_t* x, int count, int in_features, float* channels,
                     float* packed) {
  using V = typename Keys::Simd;
  PackQueries<Keys>(
      count, in_features,
      [&](int i) -> const float* {
        const uint16_t* row = x + static_cast<size_t>(i) * in_features;
        ForEachVector<V>(in_features, [&](size_t c, int lanes) {
          V::Store(channels + c, LoadUpTo<V, Bf16Element>(row + c, lanes));
        });
        return channels;
      },
      packed);
}

/// ProductKernels::add.
template <class Keys>
void AddProduct(const ProductJob& job) {
  // So many rows of a panel, and of x, stay in the nearest caches while they meet.
  constexpr int kRowsAtOnce = 1024;
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    const int some = Smaller(kRowsAtOnce, rows - first);
    const std::byte* weights = job.weights + first * kPanelRowBytes;
    for (int i = 0; i < job.count;) {
      const int size = NextSubBlock(job.count - i);
      const int cells = size == 1 ? Keys::One::kCells : Keys::Many::kCells;
      const float* x = job.packed + static_cast<size_t>(i) * job.in_features +
                       static_cast<size_t>(first) * size * cells;
      AddSubBlock<Keys>(size, x, some, weights, job.sums + i * kPanelVectors * 16);
      i += size;
    }
  }
}

/// ProductKernels::store.
template <class V>
void StoreProductRow(const float* sums, const float* bias, int count, bool accumulates,
                     bool is_bf16, void* y) {
  const auto finish = [&]<class Element>(typename Element::Type* out) {
    ForEachVector<V>(count, [&](size_t c, int lanes) {
      typename V::Float value = V::Load(sums + c);
      if (bias != nullptr) value = V::Add(value, LoadUpTo<V, F32Element>(bias + c, lanes));
      if (accumulates) value = V::Add(value, LoadUpTo<V, Element>(out + c, lanes));
      StoreUpTo<V, Element>(out + c, value, lanes);
    });
  };
  if (is_bf16) {
    finish.template operator()<Bf16Element>(static_cast<uint16_t*>(y));
  } else {
    finish.template operator()<F32Element>(static_cast<float*>(y));
  }
}

template <class Keys>
constexpr ProductKernels MakeProductKernels() {
  return {.pack = PackProductRows<Keys>,
          .add = AddProduct<Keys>,
          .store = StoreProductRow<typename Keys::Simd>};
}

}  // namespace
}  // namespace ziggurat::cpu
