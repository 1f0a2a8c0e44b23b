// Scores of keys in int8, int4 and int2 codes, as products of bytes (digits.h).
//
// score = step * (digits of query times scales) . codes + query . zeros: the digits are those of a
// group of keys, and its code tiles are 16 slots wide. A row of cells becomes as many rows of a
// code tile as a byte has codes.
#pragma once

#include "attention/cpu/chunk.h"
#include "attention/cpu/digits.h"
#include "attention/cpu/score_tiles.h"
#include "attention/cpu/simd_avx512.h"
#include "attention/cpu/slot_factors.h"

namespace ziggurat::cpu {
namespace {

/// int8, int4 and int2 as unsigned bytes.
template <int kBits>
struct ByteCodes {
  static constexpr int kPerByte = 8 / kBits;
  static constexpr int kPerCell = 32 / kBits;
  /// Scales and zeros are those of groups; else a scale is that of a token, and kZero its zero.
  static constexpr bool kGrouped = kBits < 8;
  static constexpr float kZero = -128;

  /// Of bytes that were shifted so that the code of interest comes first.
  static __m512i First(__m512i shifted) {
    if constexpr (kBits == 8) {
      return _mm512_xor_si512(shifted, _mm512_set1_epi8(-128));
    } else {
      return _mm512_and_si512(shifted, _mm512_set1_epi8((1 << kBits) - 1));
    }
  }
};

/// The keys and values of a step's next head, as runs that are fetched side by side: of either
/// kShares equal shares of a chunk.
template <int kShares>
class RunsAhead {
 public:
  explicit RunsAhead(const HeadStep& step) : last_(kSlots * step.here.job().row_bytes - 64) {
    for (int i = 0; i < kShares; ++i) {
      const bool is_there = i * kSlots < step.next.count();
      const int tile = is_there ? i * kSlots / kTileSlots : 0;
      runs_[i] = step.next.TileAt(&Chunk::key_lines, tile);
      runs_[kShares + i] = step.next.TileAt(&Chunk::values, tile);
    }
  }
  void Turn() {}

  /// The next line of each run: for up to kMaxQueries queries half of them while keys are read,
  /// half with the values; for more all with keys, and then the last ones again. Always inlined:
  /// GCC drops calls of what only prefetches.
  __attribute__((always_inline)) void FetchLines() {
#pragma GCC unroll 8
    for (const std::byte* run : runs_) Prefetch(run + at_, 64);
    if (at_ < last_) at_ += 64;
  }

 private:
  static constexpr int kSlots = kChunk / kShares;

  const std::byte* runs_[2 * kShares];
  size_t at_ = 0;
  size_t last_;
};
/// A block holds half as many tokens of int8.
template <int kBits>
using BytesAhead = RunsAhead<kBits == 8 ? 4 : 2>;

/// Which channel has its digits at place k of 32: of each row of cells there come those of what is
/// unpacked first from its bytes, then those of what is unpacked next, and so on.
template <int kBits>
constexpr DigitOrder kCellOrder = DigitOrder([](int k) {
  using Codes = ByteCodes<kBits>;
  const int row = k / Codes::kPerCell, field = k % Codes::kPerCell / 4, byte = k % 4;
  return row * Codes::kPerCell + byte * Codes::kPerByte + field;
});

/// Makes code tiles of two times 16 slots, and fetches what is ahead. Not inlined, so that its
/// pointers stay in registers.
///   first, second  their cells, rows `row_bytes` apart: a multiple of kRowsPerLine of them
template <int kBits>
__attribute__((noinline)) void UnpackKeys(const std::byte* first, const std::byte* second, int rows,
                                          size_t row_bytes, BytesAhead<kBits>* step_ahead,
                                          CodeTilePair* pairs) {
  using Codes = ByteCodes<kBits>;
  constexpr int kRowsPerLine = Codes::kGrouped ? 2 : 4;
  constexpr int kRowsPerPair = kCodeTileRows / Codes::kPerByte;
  BytesAhead<kBits> ahead = *step_ahead;
  const auto unpack = [](const std::byte* cells, std::byte* to) __attribute__((always_inline)) {
    const __m512i from = _mm512_loadu_si512(cells);
#pragma GCC unroll 4
    for (int f = 0; f < Codes::kPerByte; ++f) {
      _mm512_store_si512(to + f * kCodeRowBytes, Codes::First(_mm512_srli_epi32(from, kBits * f)));
    }
  };
  for (; rows > 0; rows -= kRowsPerPair, ++pairs) {
    auto& codes = pairs->codes;
    std::byte* to = codes[0][0];
    std::byte* const end = to + Smaller(rows, kRowsPerPair) * Codes::kPerByte * kCodeRowBytes;
    while (to < end) {
      ahead.FetchLines();
#pragma GCC unroll 4
      for (int r = 0; r < kRowsPerLine; ++r) {
        unpack(first, to);
        unpack(second, to + sizeof(codes[0]));
        first += row_bytes;
        second += row_bytes;
        to += Codes::kPerByte * kCodeRowBytes;
      }
    }
  }
  *step_ahead = ahead;
}

/// Two times 16 slots of a group of keys times a sub-block of queries.
struct ByteScores {
  int tiles[2];  ///< which of the chunk's; the same twice where there is no other
  DigitScales scales;
  DigitSums sums;

  void Store(int queries, float* scores) const {
    for (int i = 0; i < queries; ++i, scores += kScoreStride) {
      const __m512 digit_step = _mm512_set1_ps(scales.step[i]);
      const __m512 bias = _mm512_set1_ps(scales.bias[i]);
      for (int v = 0; v < 2; ++v) {
        _mm512_storeu_ps(scores + tiles[v] * kTileSlots,
                         _mm512_fmadd_ps(sums.Of(v, i), digit_step, bias));
      }
    }
  }
};

/// Of a unit: the scales of all channels and then their zeros, bf16.
struct UnitScales {
  const uint16_t* scales;
  const uint16_t* zeros;

  UnitScales(const std::byte* unit, int dim)
      : scales(reinterpret_cast<const uint16_t*>(unit)), zeros(scales + dim) {}
  __m512 Scale(int c) const { return Simd16::LoadBf16(scales + c); }
  __m512 Zero(int c) const { return Simd16::LoadBf16(zeros + c); }
};

/// Scores of a step's slots, as PlainFormat::Score gives them. Whole tiles of 16 slots are read.
template <int kBits, class Product>
inline void ScoreBytes(const HeadStep& step, BytesAhead<kBits>* ahead, float* scores) {
  using Codes = ByteCodes<kBits>;
  const DecodeJob& job = step.here.job();
  const int group = Codes::kGrouped ? job.code_group : kChunk;
  const int dim = job.head_dim, rows = dim / Codes::kPerCell, count = step.here.count();
  const size_t row_bytes = static_cast<size_t>(job.keys.slots_per_block) * 4;
  const float scale = job.scale * kLog2E;
  const float* q = job.q + static_cast<size_t>(step.here.head) * job.group_size * dim;
  Digits digits[2];
  CodeTilePair pairs[2][kMaxHeadDim / 4 / kCodeTileRows];
  for (int i = 0; i < job.group_size; i += kMaxQueries, q += kMaxQueries * dim) {
    const int queries = Smaller(kMaxQueries, job.group_size - i);
    ByteScores of_pairs[kChunk / 32 + 1];  // a chunk may begin within a group
    int num_pairs = 0, num_groups = 0;
    LaggingProducts<Product> products(queries);
    for (int t = 0; t < count; ++num_groups) {
      const int end = Smaller(count, t + group - (step.here.begin() + t) % group);
      Digits* const of_group = &digits[num_groups % 2];
      DigitScales of_digits;
      const auto cut = [&](const auto& scales) {
        ForSubBlock(RoomySubBlock(queries), [&]<int NQ>() {
          CutIntoDigits<NQ>(queries, q, dim, scales, dim, scale, kCellOrder<kBits>, of_group,
                            &of_digits);
        });
      };
      if constexpr (Codes::kGrouped) {
        Prefetch(step.next.TileAt(&Chunk::key_units, t / kTileSlots), size_t{4} * dim);
        cut(UnitScales(step.here.TileAt(&Chunk::key_units, t / kTileSlots), dim));
      } else {
        cut(ConstantScales{Codes::kZero});
      }
      for (; t < end; t += 2 * kTileSlots, ++num_pairs) {
        ByteScores& pair = of_pairs[num_pairs];
        CodeTilePair* const codes = pairs[num_pairs % 2];
        const int tile = t / kTileSlots, other = t + kTileSlots < end ? tile + 1 : tile;
        pair.scales = of_digits;
        pair.tiles[0] = tile;
        pair.tiles[1] = other;
        UnpackKeys<kBits>(step.here.TileAt(&Chunk::keys, tile),
                          step.here.TileAt(&Chunk::keys, other), rows, row_bytes, ahead, codes);
        products.Add(*of_group, codes, rows * Codes::kPerByte, &pair.sums);
      }
      t = end;
    }
    products.Finish();
    for (int p = 0; p < num_pairs; ++p) of_pairs[p].Store(queries, scores + i * kScoreStride);
  }
  MultiplyByFactors<Simd16>(Codes::kGrouped ? nullptr : &DecodeJob::key_scales,
                            &DecodeJob::key_norms, step, 1, scores);
}

}  // namespace
}  // namespace ziggurat::cpu
