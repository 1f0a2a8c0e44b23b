// Decode attention of bf16 by VDPBF16PS where a CPU issues two of them a cycle (AMD since Zen 5).
//
// decode_kernel.h takes the scores of a whole chunk, softmax and the values one after the other and
// passes on what each leaves through memory. Here two or four tiles of a chunk (chunk.h) are taken
// at a time: their scores become weights while they are in registers. That leaves little but
// multiplications, and a block is read in the order of its addresses: head after head, keys and
// then values.
#pragma once

#include <immintrin.h>

#include "attention/cpu/chunk.h"
#include "attention/cpu/decode_kernel.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

/// What a head holds of 16 slots. With each line of keys, and of values, another one is fetched.
struct PairedTile {
  const std::byte* keys;
  const std::byte* values;
  const std::byte* keys_ahead;
  const std::byte* values_ahead;
};

/// From a line to the next: of a tile's keys, and of what is fetched with keys and with values.
struct LineSteps {
  size_t keys;
  size_t keys_ahead;
  size_t values_ahead;
};

/// Factors of the slots of a tile and the next ones, or null: norms of merged keys and values.
struct SlotFactors {
  const float* keys;
  const float* values;
};

/// Of a sub-block of queries, from the first on.
struct PairedQueries {
  const float* cells;  ///< as PackQueries leaves them
  int head_dim;
  float scale;       ///< for scores in units of log2
  Running* running;  ///< whose sums are those of `lanes`
  float* lanes;      ///< [queries, 16]: sums of weights
  float* sums;       ///< [queries, head_dim]: accumulators of PairedValues
};

/// Makes `largest` what the weights of query `i` are relative to.
__attribute__((noinline)) void Raise(const PairedQueries& queries, int i, float largest) {
  Running* const running = &queries.running[i];
  const __m512 shrink = Exp2<Simd16>(_mm512_set1_ps(running->highest - largest));
  const auto shrink_all = [shrink](float* x, int count) {
    for (int c = 0; c < count; c += 16) {
      _mm512_storeu_ps(x + c, _mm512_mul_ps(_mm512_loadu_ps(x + c), shrink));
    }
  };
  shrink_all(queries.lanes + i * Simd16::kLanes, Simd16::kLanes);
  shrink_all(queries.sums + i * queries.head_dim, queries.head_dim);
  running->highest = largest;
}

/// The weights of queries [First, First + NQ) of `Of`, as pairs of slots. Where the others come in
/// another pass, each fetches for half of the tiles.
///   slots    that count, if there is one tile; of several all do
///   weights  [Of, Tiles * 8]
template <int First, int NQ, int Of, int Tiles>
inline void WeighTiles(const PairedQueries& queries, const PairedTile* tiles, LineSteps steps,
                       SlotFactors factors, int slots, uint32_t* weights) {
  using V = Simd16;
  constexpr int kFetchesFrom = Tiles * First / Of, kFetchesTo = Tiles * (First + NQ) / Of;
  ScoreSums<V, NQ, Tiles> sums;
  const auto add_row = [&](int r, int u) __attribute__((always_inline)) {
    __m512i row[Tiles];
#pragma GCC unroll 4
    for (int v = 0; v < Tiles; ++v) {
      if (v >= kFetchesFrom && v < kFetchesTo) {
        Prefetch<_MM_HINT_T0>(tiles[v].keys_ahead + r * steps.keys_ahead);
      }
      row[v] = V::LoadBits(tiles[v].keys + r * steps.keys);
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const __m512i cell = _mm512_castps_si512(V::Set(queries.cells[r * Of + First + i]));
#pragma GCC unroll 4
      for (int v = 0; v < Tiles; ++v) {
        sums.of[i][u][v] = DotPairs(sums.of[i][u][v], row[v], cell);
      }
    }
  };
  ForEachRow<sums.kSums>(queries.head_dim / 2, add_row);

  // What stands behind the last slot, in blocks and factors, may be anything.
  const __mmask16 live = static_cast<__mmask16>(Tiles == 1 ? (1u << slots) - 1 : 0xffff);
  const auto factors_of = [live](const float* of, int v) __attribute__((always_inline)) {
    return _mm512_maskz_loadu_ps(live, of + v * kTileSlots);
  };
  const __m512 scale = V::Set(queries.scale);
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Tiles; ++v) {
      __m512& score = sums.of[i][0][v];
#pragma GCC unroll 4
      for (int u = 1; u < sums.kSums; ++u) score = V::Add(score, sums.of[i][u][v]);
      score = V::Mul(score, scale);
      if (factors.keys != nullptr) score = V::Mul(score, factors_of(factors.keys, v));
      if (Tiles == 1) score = _mm512_mask_mov_ps(V::Set(-__builtin_inff()), live, score);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
    __m512* const scores = sums.of[i][0];
    __m512 highest = scores[0];
#pragma GCC unroll 4
    for (int v = 1; v < Tiles; ++v) highest = V::Max(highest, scores[v]);
    Running* const running = &queries.running[First + i];
    const __m512 limit = V::Set(running->highest + Running::kSlack);
    if (__builtin_expect(_mm512_cmp_ps_mask(highest, limit, _CMP_GT_OQ) != 0, 0)) {
      Raise(queries, First + i, V::Largest(highest));
    }
    const __m512 shift = V::Set(-running->highest);
    float* const lanes = queries.lanes + (First + i) * V::kLanes;
    __m512 sum = V::Load(lanes);
#pragma GCC unroll 4
    for (int v = 0; v < Tiles; ++v) {
      __m512 weight = V::Weight(V::Add(scores[v], shift));
      sum = V::Add(sum, weight);
      if (factors.values != nullptr) weight = V::Mul(weight, factors_of(factors.values, v));
      uint32_t* const to = weights + ((First + i) * Tiles + v) * (kTileSlots / 2);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(weight));
    }
    V::Store(lanes, sum);
  }
}

/// Adds units [unit, unit + Units) of 32 channels, times the weights of queries [First, First +
/// NQ), to their accumulators.
template <int First, int NQ, int Of, int Units, int Tiles>
__attribute__((always_inline)) inline void AddUnits(const PairedQueries& queries,
                                                    const PairedTile* tiles, LineSteps steps,
                                                    int unit, const uint32_t* weights) {
  using V = Simd16;
  constexpr int kChannels = 32, kLineBytes = 64;
  const size_t row_bytes = static_cast<size_t>(queries.head_dim) * 2;
  const size_t lines = row_bytes / kLineBytes;
  float* const sums = queries.sums + First * queries.head_dim + unit * kChannels;
  __m512 sum[NQ][Units][2];
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 0; u < Units; ++u) {
      const float* const of = sums + i * queries.head_dim + u * kChannels;
      sum[i][u][0] = V::Load(of);
      sum[i][u][1] = V::Load(of + 16);
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < kTileSlots; t += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < Tiles; ++v) {
      const size_t at = t * row_bytes + unit * kLineBytes;
      __m512i weight[NQ];
#pragma GCC unroll 4
      for (int i = 0; i < NQ; ++i) {
        weight[i] = _mm512_set1_epi32(
            static_cast<int>(weights[((First + i) * Tiles + v) * (kTileSlots / 2) + t / 2]));
      }
#pragma GCC unroll 4
      for (int u = 0; u < Units; ++u) {
        const std::byte* const ahead =
            tiles[v].values_ahead + (t * lines + unit + u) * steps.values_ahead;
        if (First == 0) Prefetch<_MM_HINT_T0>(ahead);
        if (First + NQ == Of) Prefetch<_MM_HINT_T0>(ahead + lines * steps.values_ahead);
        const __m512i even = V::LoadBits(tiles[v].values + at + u * kLineBytes);
        const __m512i odd = V::LoadBits(tiles[v].values + at + row_bytes + u * kLineBytes);
        const __m512i low = _mm512_unpacklo_epi16(even, odd);
        const __m512i high = _mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 4
        for (int i = 0; i < NQ; ++i) {
          sum[i][u][0] = DotPairs(sum[i][u][0], low, weight[i]);
          sum[i][u][1] = DotPairs(sum[i][u][1], high, weight[i]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 0; u < Units; ++u) {
      float* const of = sums + i * queries.head_dim + u * kChannels;
      V::Store(of, sum[i][u][0]);
      V::Store(of + 16, sum[i][u][1]);
    }
  }
}

/// All NQ queries of a sub-block attend to the tiles of their head.
template <int NQ, int Tiles>
inline void AttendTiles(const PairedQueries& queries, const PairedTile* tiles, LineSteps steps,
                        SlotFactors factors, int slots) {
  alignas(32) uint32_t weights[NQ * Tiles * kTileSlots / 2];
  const auto weigh = [&]<int First, int Some>() {
    WeighTiles<First, Some, NQ, Tiles>(queries, tiles, steps, factors, slots, weights);
  };
  if constexpr (NQ * Tiles <= Simd16::kAccumulators) {
    weigh.template operator()<0, NQ>();
  } else {
    weigh.template operator()<0, NQ / 2>();
    weigh.template operator()<NQ / 2, NQ / 2>();
  }
  constexpr int kAtOnce = Smaller(NQ, 4);
  const auto add = [&]<int First>() {
    const int units = queries.head_dim / 32;
    int unit = 0;
    if constexpr (NQ == 1) {
      for (; unit + 4 <= units; unit += 4) {
        AddUnits<First, kAtOnce, NQ, 4, Tiles>(queries, tiles, steps, unit, weights);
      }
    }
    for (; unit + 2 <= units; unit += 2) {
      AddUnits<First, kAtOnce, NQ, 2, Tiles>(queries, tiles, steps, unit, weights);
    }
    if (unit < units) AddUnits<First, kAtOnce, NQ, 1, Tiles>(queries, tiles, steps, unit, weights);
  };
  static_assert(NQ == kAtOnce || NQ == 2 * kAtOnce);
  add.template operator()<0>();
  if constexpr (kAtOnce < NQ) add.template operator()<kAtOnce>();
}

/// One head's part of a chunk. Of its tiles two or four are read beside each other, and 8 KiB ahead
/// of that is fetched, 16 with heads of more than 64 channels: their own values and then the keys
/// of those that come next, or the keys and values of these.
class PairedStep {
 public:
  PairedStep(const HeadStep& step, const DecodeScratch& scratch)
      : step_(step), job_(step.here.job()), scratch_(scratch) {
    const size_t tile_bytes = kTileSlots * job_.row_bytes;
    // Many queries of few channels are faster with two.
    const bool may_be_four = job_.group_size <= 4 || tile_bytes > 2 << 10;
    tiles_at_once_ = may_be_four && 4 * tile_bytes <= 16 << 10 ? 4 : 2;
    fetches_own_ = 2 * tiles_at_once_ * tile_bytes > 8 << 10;
    const size_t keys = job_.keys.slots_per_block * size_t{4};
    steps_ = fetches_own_ ? LineSteps{keys, 64, keys} : LineSteps{keys, keys, 64};
    factors_ = {Load(&DecodeJob::key_norms, key_factors_),
                Load(&DecodeJob::value_norms, value_factors_)};
  }

  void Attend() {
    const int whole = step_.here.count() / kTileSlots;
    int i = 0;
    if (tiles_at_once_ == 4) {
      for (; i + 4 <= whole; i += 4) AttendTo<4>(i);
    }
    for (; i + 2 <= whole; i += 2) AttendTo<2>(i);
    for (; i < step_.here.num_tiles(); ++i) AttendTo<1>(i);
  }

 private:
  const float* Load(HeadBlocks DecodeJob::*norms, float* factors) const {
    return LoadFactors(norms, nullptr, step_, /*constant=*/1, factors) ? factors : nullptr;
  }

  /// To tiles [first, first + Tiles).
  template <int Tiles>
  void AttendTo(int first) {
    const int slots = step_.here.count() - first * kTileSlots, after = first + Tiles;
    const bool is_last = after >= step_.here.num_tiles();
    const HeadChunk& next = is_last ? step_.next : step_.here;
    PairedTile tiles[Tiles];
    for (int v = 0; v < Tiles; ++v) {
      const int ahead = Smaller(is_last ? v : after + v, kMostTiles - 1);
      PairedTile& tile = tiles[v];
      tile.keys = step_.here.TileAt(&Chunk::keys, first + v);
      tile.values = step_.here.TileAt(&Chunk::values, first + v);
      const std::byte* const keys = next.TileAt(&Chunk::keys, ahead);
      tile.keys_ahead = fetches_own_ ? tile.values : keys;
      tile.values_ahead = fetches_own_ ? keys : next.TileAt(&Chunk::values, ahead);
    }
    // NaN or infinity behind the last slot would survive any weight.
    alignas(64) std::byte rows[Tiles == 1 ? kTileSlots * kMaxHeadDim * 2 : 1];
    if (Tiles == 1 && slots < kTileSlots) {
      __builtin_memset(rows, 0, sizeof(rows));
      __builtin_memcpy(rows, tiles[0].values, slots * job_.row_bytes);
      tiles[0].values = rows;
    }
    SlotFactors factors = factors_;
    if (factors.keys != nullptr) factors.keys += first * kTileSlots;
    if (factors.values != nullptr) factors.values += first * kTileSlots;
    for (int i = 0; i < job_.group_size;) {
      const int size = NextSubBlock(job_.group_size - i);
      const PairedQueries queries = QueriesFrom(i);
      ForSubBlock(size, [&]<int NQ>() {
        AttendTiles<NQ, Tiles>(queries, tiles, steps_, factors, Smaller(slots, kTileSlots));
      });
      i += size;
      for (PairedTile& tile : tiles) {  // what was fetched once need not be again
        tile.keys_ahead = tile.keys;
        tile.values_ahead = tile.values;
      }
    }
  }

  PairedQueries QueriesFrom(int i) const {
    const size_t query = static_cast<size_t>(step_.here.head) * job_.group_size + i;
    const size_t dim = job_.head_dim;
    return {scratch_.packed + query * dim,
            job_.head_dim,
            job_.scale * kLog2E,
            scratch_.running + query,
            scratch_.scores + query * Simd16::kLanes,
            scratch_.sums + query * dim};
  }

  const HeadStep& step_;
  const DecodeJob& job_;
  const DecodeScratch& scratch_;
  int tiles_at_once_;
  bool fetches_own_;  ///< with a tile's keys its values, and with these the next keys
  LineSteps steps_;
  SlotFactors factors_;
  float key_factors_[kScoreStride], value_factors_[kScoreStride];
};

/// A Format (decode_kernel.h) for blocks of whole tiles. The scores of its scratch hold the lanes
/// of PairedQueries.
struct PairedFormat {
  using Keys = PairedKeys<Simd16>;
  using Values = PairedValues<Simd16>;

  static bool Takes(const DecodeJob& job) {
    return job.keys.slots_per_block % kTileSlots == 0 &&
           job.values.slots_per_block % kTileSlots == 0 && job.begin % kTileSlots == 0 &&
           job.head_dim % 32 == 0;
  }

  static void DecodeSteps(const DecodeJob& job, const DecodeScratch& scratch) {
    const int queries = job.num_heads * job.group_size;
    __builtin_memset(scratch.scores, 0, sizeof(float) * queries * Simd16::kLanes);
    ForEachHeadStep(job, [&](const HeadStep& step) { PairedStep(step, scratch).Attend(); });
    for (int i = 0; i < queries; ++i) {
      scratch.running[i].sum = Simd16::Sum(Simd16::Load(scratch.scores + i * Simd16::kLanes));
    }
  }
};

}  // namespace
}  // namespace ziggurat::cpu
