// Attention over a bf16 workspace on tile registers (amx_tiles.h): 32 queries at a time, two tiles
// of them against two of keys, and of values.
#pragma once

#include "attention/cpu/amx_tiles.h"
#include "attention/cpu/packed_workspace.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

using TileValues = PairedValues<Simd16>;

// Two tiles of queries against two of keys, or of values.
static_assert(kMaxTileQueries == 2 * kTileRows);
static_assert(kTileKeys<Simd16> == 2 * kTileRows);
static_assert(TileValues::kChannels == 2 * kTileRows);
static_assert(kChunk % kTileDepth == 0 && PaddedDim(1) == kTileDepth);

/// Tokens of one product.
constexpr int kTileTokens = kTileDepth;

constexpr int WholeTileTokens(int count) {
  return (count + kTileTokens - 1) / kTileTokens * kTileTokens;
}

/// The values of two neighbouring tokens, `cells` of two channels of a unit of 32, side by side and
/// channel by channel: row `row` of the two tiles at `tiles`, whose columns are in the order of
/// PairedValues. Null: zeros.
inline void InterleaveTokens(const std::byte* even, const std::byte* odd, int cells, int row,
                             std::byte* tiles) {
  const auto load = [mask = static_cast<__mmask16>((1u << cells) - 1)](const std::byte* p) {
    return p == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi32(mask, p);
  };
  const __m512i a = load(even), b = load(odd);
  std::byte* const to = tiles + row * kTileRowBytes;
  _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
  _mm512_store_si512(to + kTileBytes, _mm512_unpackhi_epi16(a, b));
}

/// 2^x for x <= 0, 1 above that, within 4e-6 of it: much less than a weight's rounding to bf16, and
/// what the sum of weights is off at most. 0 below 2^-100; NaN for NaN whose payload is in its
/// upper bits, as of all that come of numbers in bf16.
inline __m512 Exp2OfWeight(__m512 x) {
  // 2^x = 2^n * 2^f with |f| <= 1/2. Of a number so large that its last bit is 1 that bit and those
  // above it are n.
  const __m512 large = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23
  x = _mm512_min_ps(_mm512_setzero_ps(), x);         // which rounding may have passed
  const __m512 shifted = _mm512_add_ps(x, large);
  const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, large));
  __m512 p = _mm512_set1_ps(0.00966636837f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0559219755f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240223497f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693121016f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(counts, _mm512_castps_si512(p), exponent));
}

/// sums[0 .. floats) *= shrink, where that changes anything.
inline void ShrinkSums(float shrink, int floats, float* sums) {
  if (shrink == 1) return;
  const __m512 factor = _mm512_set1_ps(shrink);
  for (int c = 0; c < floats; c += 16) {
    _mm512_storeu_ps(sums + c, _mm512_mul_ps(_mm512_loadu_ps(sums + c), factor));
  }
}

/// C += A B for one tile of queries, or for two, and two tiles of the other side, over `steps`
/// products.
///   tiles  C 0 and 1 of the first 16 queries, 2 and 3 of the others; A 4 and 5; B 6 and 7
///   a, b   of the first product; from one to the next are a_step and b_step bytes, from the first
///          tile of b to the second b_next
template <bool kIsPair>
inline void AddTilePairs(const std::byte* a, size_t a_stride, size_t a_step, const std::byte* b,
                         size_t b_stride, size_t b_step, size_t b_next, int steps) {
  for (int step = 0; step < steps; ++step, a += a_step, b += b_step) {
    LoadTile<4>(a, a_stride);
    LoadTile<6>(b, b_stride);
    MultiplyTiles<0, 4, 6>();
    if constexpr (kIsPair) {
      LoadTile<5>(a + kTileRows * a_stride, a_stride);
      MultiplyTiles<2, 5, 6>();
    }
    LoadTile<7>(b + b_next, b_stride);
    MultiplyTiles<1, 4, 7>();
    if constexpr (kIsPair) MultiplyTiles<3, 5, 7>();
  }
}

/// A workspace as packed_workspace.h describes it. A weight of 0 is multiplied like any other: a
/// value that is not finite reaches the queries of a sub-block that are before it, too.
struct TileWorkspace {
  using Values = TileValues;
  using Element = Bf16Element;
  using V = Simd16;
  static constexpr int kMostQueries = kMaxTileQueries;

  using Registers = WholeTiles;

  static int NextSubBlock(int queries_left) { return Smaller(kMostQueries, queries_left); }

  static constexpr size_t QueryFloats(int head_dim) { return PaddedDim(head_dim) / 2; }
  static constexpr size_t KeyFloats(int head_dim) { return PaddedDim(head_dim) / 2; }

  static void PackQueries(const std::byte* q, size_t q_row_bytes, int group_size, int count,
                          int head_dim, float* packed) {
    const size_t bytes = size_t{2} * head_dim;
    for (int i = 0; i < count; ++i, packed += QueryFloats(head_dim)) {
      __builtin_memcpy(packed, q + i / group_size * q_row_bytes + i % group_size * bytes, bytes);
      __builtin_memset(packed + head_dim / 2, 0, 2 * PaddedDim(head_dim) - bytes);
    }
  }

  /// Tiles of 32 keys: a row has two neighbouring channels of each.
  static void PackKeys(const std::byte* k, size_t row_bytes, int head_dim, int count,
                       float* packed) {
    constexpr int kTile = kTileKeys<V>;
    const int cells = head_dim / 2, rows = static_cast<int>(KeyFloats(head_dim));
    for (int t = 0; t < count; t += kTile, packed += rows * kTile) {
      for (int lane = 0; lane < kTile; lane += V::kLanes) {
        PackLanes<PairedKeys<V>>(k + (t + lane) * row_bytes, row_bytes, cells, count - t - lane,
                                 packed + lane);
      }
      __builtin_memset(packed + cells * kTile, 0, sizeof(float) * (rows - cells) * kTile);
    }
  }

  /// Rows behind the last query, up to a whole tile, are written too.
  static void Score(int size, const float* query, int head_dim, const float* keys, int width,
                    float* scores) {
    constexpr int kTile = kTileKeys<V>;
    constexpr size_t kKeyStride = sizeof(float) * kTile, kStride = sizeof(float) * kScoreStride;
    const auto* q = reinterpret_cast<const std::byte*>(query);
    const auto* k = reinterpret_cast<const std::byte*>(keys);
    const size_t q_stride = 2 * PaddedDim(head_dim), tile_bytes = KeyFloats(head_dim) * kKeyStride;
    const int steps = static_cast<int>(PaddedDim(head_dim)) / kTileDepth;
    for (int t = 0; t < width; t += kTile, k += tile_bytes) {
      float* const low = scores + t;
      ZeroTile<0>();
      ZeroTile<1>();
      if (size > kTileRows) {
        ZeroTile<2>();
        ZeroTile<3>();
        AddTilePairs<true>(q, q_stride, kTileRowBytes, k, kKeyStride, kTileRows * kKeyStride,
                           kTileRowBytes, steps);
        StoreTile<2>(low + kTileRows * kScoreStride, kStride);
        StoreTile<3>(low + kTileRows * kScoreStride + 16, kStride);
      } else {
        AddTilePairs<false>(q, q_stride, kTileRowBytes, k, kKeyStride, kTileRows * kKeyStride,
                            kTileRowBytes, steps);
      }
      StoreTile<0>(low, kStride);
      StoreTile<1>(low + 16, kStride);
    }
  }

  /// As VectorWorkspace's. Weights are left as the A of products: bf16 in the first half of the row,
  /// zeros up to a whole number of products.
  static void Weigh(int size, const float* query, int head_dim, const float* keys, int width,
                    float scale, const KeyInterval* visible, Running* running, float* shrink,
                    float* weights) {
    Score(size, query, head_dim, keys, width, weights);
    for (int j = 0; j < size; ++j) {
      shrink[j] = Softmax(weights + j * kScoreStride, scale, visible[j].begin, visible[j].end,
                          width, &running[j]);
    }
  }
  /// Of one query.
  static float Softmax(float* scores, float scale, int begin, int end, int width,
                       Running* running) {
    const int whole = WholeTileTokens(width);
    if (begin >= end) {
      __builtin_memset(scores, 0, size_t{2} * whole);
      return 1;
    }
    for (int t = 0; t < begin; ++t) scores[t] = -__builtin_inff();
    for (int t = end; t < whole; ++t) scores[t] = -__builtin_inff();
    V::Float highest = V::Load(scores);
    for (int t = V::kLanes; t < whole; t += V::kLanes) {
      highest = V::Max(highest, V::Load(scores + t));
    }
    const V::Float factor = V::Set(scale);
    const float shrink = RaiseHighest<V>(V::Mul(highest, factor), running);
    const V::Float shift = V::Set(-running->highest);
    V::Float low_sum = V::Zero(), high_sum = V::Zero();
    for (int t = 0; t < whole; t += kTileTokens) {
      const V::Float low = Exp2OfWeight(V::Fma(V::Load(scores + t), factor, shift));
      const V::Float high = Exp2OfWeight(V::Fma(V::Load(scores + t + V::kLanes), factor, shift));
      low_sum = V::Add(low_sum, low);
      high_sum = V::Add(high_sum, high);
      _mm512_storeu_si512(scores + t / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    running->sum = running->sum * shrink + V::Sum(V::Add(low_sum, high_sum));
    return shrink;
  }

  class ChunkValues {
   public:
    /// Tiles of 32 tokens by 16 channels: of each unit of 32 channels all of its first half, then
    /// all of its second.
    ChunkValues(const std::byte* v, size_t row_bytes, int head_dim, int count, float* scratch)
        : tiles_(reinterpret_cast<const std::byte*>(scratch)) {
      auto* const to = reinterpret_cast<std::byte*>(scratch);
      for (int t = 0; t < WholeTileTokens(count); t += 2, v += 2 * row_bytes) {
        std::byte* tiles = to + t / kTileTokens * 2 * kTileBytes;
        for (int c = 0; c < head_dim; c += Values::kChannels) {
          const int cells = Smaller(Values::kChannels, head_dim - c) / 2;
          const std::byte* even = t < count ? v + 2 * c : nullptr;
          const std::byte* odd = t + 1 < count ? v + row_bytes + 2 * c : nullptr;
          InterleaveTokens(even, odd, cells, t % kTileTokens / 2, tiles);
          tiles += kUnitBytes;
        }
      }
    }
    /// Sums behind the last query, up to a whole tile, are written too.
    void Accumulate(int size, const float* weights, const float* shrink, int width, int head_dim,
                    float* sums, int sums_stride) const {
      for (int i = 0; i < size; ++i) ShrinkSums(shrink[i], sums_stride, sums + i * sums_stride);
      const auto* a = reinterpret_cast<const std::byte*>(weights);
      constexpr size_t kStride = sizeof(float) * kScoreStride;
      const size_t stride = sizeof(float) * sums_stride;
      const int steps = WholeTileTokens(width) / kTileTokens;
      const std::byte* b = tiles_;
      for (int c = 0; c < head_dim; c += Values::kChannels) {
        float* const low = sums + c;
        float* const high = low + static_cast<size_t>(kTileRows) * sums_stride;
        LoadTile<0>(low, stride);
        LoadTile<1>(low + 16, stride);
        if (size > kTileRows) {
          LoadTile<2>(high, stride);
          LoadTile<3>(high + 16, stride);
          AddTilePairs<true>(a, kStride, kTileRowBytes, b, kTileRowBytes, 2 * kTileBytes,
                             kTileBytes, steps);
          StoreTile<2>(high, stride);
          StoreTile<3>(high + 16, stride);
        } else {
          AddTilePairs<false>(a, kStride, kTileRowBytes, b, kTileRowBytes, 2 * kTileBytes,
                              kTileBytes, steps);
        }
        StoreTile<0>(low, stride);
        StoreTile<1>(low + 16, stride);
        b += kUnitBytes;
      }
    }

   private:
    /// Of one unit of channels.
    static constexpr size_t kUnitBytes = kChunk / kTileTokens * 2 * kTileBytes;

    const std::byte* tiles_;
  };
};

}  // namespace
}  // namespace ziggurat::cpu
