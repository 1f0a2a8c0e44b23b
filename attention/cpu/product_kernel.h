// Matrix products over packed bf16 weights (attention/packed_product.h), a panel of 64 outputs at a
// time. How a row of weights meets the cells of a query is that of keys (score_tiles.h).
#pragma once

#include <type_traits>

#include "attention/cpu/packed_workspace.h"
#include "attention/cpu/score_tiles.h"

namespace ziggurat::cpu {
namespace {

constexpr int kPanelVectors = 4;
constexpr size_t kPanelRowBytes = 256;
/// Rows after which a fetched line is needed, where a panel is read in one pass.
constexpr int kSoon = 64;

/// Fetches `kLines` lines into cache with every row of a panel that is multiplied.
template <int kLines>
struct FetchLines {
  const std::byte* ahead;

  void Row() {
    constexpr auto kHint = kLines == 4 ? _MM_HINT_T0 : _MM_HINT_T1;
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line, ahead += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead), kHint);
    }
  }
};

/// Fetches half a row of a panel into cache with every so many rows that are multiplied.
struct FetchNowAndThen {
  const std::byte* ahead;
  int every;
  int left = 1;

  void Row() {
    if (--left > 0) return;
    left = every;
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T1);
    ahead += kPanelRowBytes;
  }
};

/// sums[i][v] += x i . weights of vector v, for NQ rows of x and `Vectors` vectors of outputs.
///   x        [rows][NQ][kCells]
///   weights  row r at weights + r * kPanelRowBytes
///   sums     [NQ] rows, a panel apart
template <class Keys, int NQ, int Vectors, class Fetch>
inline void AddPanel(const float* x, int rows, const std::byte* weights, Fetch* fetch,
                     float* sums) {
  using V = typename Keys::Simd;
  constexpr int kStride = kPanelVectors * V::kLanes;
  typename V::Float sum[NQ][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[i][v] = V::Load(sums + i * kStride + v * V::kLanes);
  }
  for (int r = 0; r < rows; ++r) {
    const std::byte* p = weights + r * kPanelRowBytes;
    fetch->Row();
    typename Keys::Row row[Vectors];
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
  // In one pass over the panel what is needed soon is fetched; eight rows take two passes, of which
  // each fetches a half of the next panel: the first alone would wait for memory, and the second
  // leave it idle.
  FetchLines<4> soon{weights + kSoon * kPanelRowBytes};
  FetchLines<2> next{weights + rows * kPanelRowBytes};
  switch (size) {
    case 8:
      AddPanel<Many, 8, 2>(x, rows, weights, &next, sums);
      return AddPanel<Many, 8, 2>(x, rows, weights + 128, &next, sums + 2 * kLanes);
    case 4:
      return AddPanel<Many, 4, 4>(x, rows, weights, &soon, sums);
    case 3:
      return AddPanel<Many, 3, 4>(x, rows, weights, &soon, sums);
    case 2:
      return AddPanel<Many, 2, 4>(x, rows, weights, &soon, sums);
    default:
      return AddPanel<One, 1, 4>(x, rows, weights, &soon, sums);
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

/// Rows of weights that are widened at once: half a panel of them stays in the nearest cache,
/// beside eight rows of x, while all of x meets it.
constexpr int kWidenedRows = 96;

/// Two vectors of `rows` rows of a panel, widened for HalvesOfBf16Keys.
template <class V>
inline void WidenHalfPanel(const std::byte* weights, int rows, float* to) {
  for (int r = 0; r < rows; ++r, to += kPanelRowBytes / sizeof(float)) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const typename V::Bits bits = V::LoadBits(weights + r * kPanelRowBytes + v * 64);
      V::Store(to + v * V::kLanes, V::Low(bits));
      V::Store(to + (2 + v) * V::kLanes, V::High(bits));
    }
  }
}

/// The first `count` rows of x, a multiple of 8: enough of them to widen the weights only once.
template <class V>
inline void AddWidenedProduct(const ProductJob& job, int count) {
  alignas(64) float widened[kWidenedRows * kPanelRowBytes / sizeof(float)];
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kWidenedRows) {
    const int some = Smaller(kWidenedRows, rows - first);
    const std::byte* weights = job.weights + first * kPanelRowBytes;
    for (int half = 0; half < 2; ++half) {
      WidenHalfPanel<V>(weights + half * 128, some, widened);
      // What is widened next, spread over the whole of this half.
      FetchNowAndThen fetch{weights + (half == 0 ? 128 : some * kPanelRowBytes), count / 8};
      for (int i = 0; i < count; i += 8) {
        AddPanel<HalvesOfBf16Keys<V>, 8, 2>(
            job.packed + static_cast<size_t>(i) * job.in_features + size_t{16} * first, some,
            reinterpret_cast<const std::byte*>(widened), &fetch,
            job.sums + i * kPanelVectors * V::kLanes + half * 2 * V::kLanes);
      }
    }
  }
}

/// ProductKernels::add.
template <class Keys>
void AddProduct(const ProductJob& job) {
  using V = typename Keys::Simd;
  int done = 0;
  if constexpr (std::is_same_v<typename Keys::Many, WidenedBf16Keys<V>>) {
    if (job.count >= 16) {
      done = job.count / 8 * 8;
      AddWidenedProduct<V>(job, done);
    }
  }
  // So many rows of a panel, and of x, stay in the nearest caches while they meet.
  constexpr int kRowsAtOnce = 1024;
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    const int some = Smaller(kRowsAtOnce, rows - first);
    const std::byte* weights = job.weights + first * kPanelRowBytes;
    for (int i = done; i < job.count;) {
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
