// Scores of keys in int8, int4 and int2 codes, as products of bytes (digits.h).
//
// score = step * (digits of query times scales) . codes + query . zeros: the digits are those of a
// group of keys, and its code tiles are 16 slots wide. A row of cells becomes as many rows of a
// code tile as a byte has codes.
#pragma once

#include "attention/cpu/coded_format.h"
#include "attention/cpu/digits.h"
#include "attention/cpu/simd_avx512.h"

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

/// Scales of 1, and zeros.
inline void FillScales(int count, float zero, float* scales, float* zeros) {
  for (int i = 0; i < count; i += 16) {
    _mm512_storeu_ps(scales + i, _mm512_set1_ps(1));
    _mm512_storeu_ps(zeros + i, _mm512_set1_ps(zero));
  }
}

/// The keys and values of a step's next head, as runs that are fetched side by side: of either
/// kShares equal shares of a chunk. One half of the lines is fetched while keys are read, the other
/// with the values.
template <int kShares>
class RunsAhead {
 public:
  explicit RunsAhead(const HeadStep& step)
      : lines_(kSlots * static_cast<int>(step.here.job().row_bytes) / 64) {
    const std::byte* const own = step.here.AreaAt(&DecodeJob::keys, 0, nullptr);
    for (int i = 0; i < kShares; ++i) {
      runs_[i] = step.next.RunAt(&DecodeJob::keys, i * kSlots, own);
      runs_[kShares + i] = step.next.RunAt(&DecodeJob::values, i * kSlots, own);
    }
  }
  void Turn() {}

  // One line of each run. Always inlined: GCC drops calls of what only prefetches.

  /// line  of all that are fetched with keys
  __attribute__((always_inline)) void FetchWithKeys(int line) const {
#pragma GCC unroll 8
    for (const std::byte* run : runs_) Prefetch(run + line * 64, 64);
  }
  __attribute__((always_inline)) void FetchWithValues(int line) const {
    FetchWithKeys(lines_ / 2 + line);
  }

 private:
  static constexpr int kSlots = kChunk / kShares;

  const std::byte* runs_[2 * kShares];
  int lines_;  ///< of each
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

/// Makes code tiles of two times 16 slots.
///   slots     their cells, rows `row_bytes` apart
///   fetch(r)  called for every row
template <int kBits, class Fetch>
__attribute__((always_inline)) inline void UnpackKeys(const std::byte* const (&slots)[2], int rows,
                                                      size_t row_bytes, Fetch fetch,
                                                      CodeTilePair* pairs) {
  using Codes = ByteCodes<kBits>;
  for (int r = 0; r < rows; ++r) {
    fetch(r);
    const int at = r * Codes::kPerByte;
    auto& pair = pairs[at / kCodeTileRows].codes;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512i cells = _mm512_loadu_si512(slots[v] + r * row_bytes);
#pragma GCC unroll 4
      for (int f = 0; f < Codes::kPerByte; ++f) {
        _mm512_store_si512(pair[v][at % kCodeTileRows + f],
                           Codes::First(_mm512_srli_epi32(cells, kBits * f)));
      }
    }
  }
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
        _mm512_storeu_ps(scores + tiles[v] * 16, _mm512_fmadd_ps(sums.Of(v, i), digit_step, bias));
      }
    }
  }
};

/// Scores of a step's slots, as PlainFormat::Score gives them. Whole tiles of 16 slots are read.
template <int kBits, class Product>
inline void ScoreBytes(const HeadStep& step, const BytesAhead<kBits>& ahead, float* scores) {
  using Codes = ByteCodes<kBits>;
  const DecodeJob& job = step.here.job();
  const int group = Codes::kGrouped ? job.code_group : kChunk;
  const int dim = job.head_dim, rows = dim / Codes::kPerCell, count = step.here.count();
  const size_t row_bytes = static_cast<size_t>(job.keys.slots_per_block) * 4;
  const std::byte* tiles[kMostKeyTiles];
  FindKeyTiles(step.here, tiles);
  const float* q = job.q + static_cast<size_t>(step.here.head) * job.group_size * dim;
  Digits digits[2];
  CodeTilePair pairs[2][kMaxHeadDim / 4 / kCodeTileRows];
  for (int i = 0; i < job.group_size; i += kMaxQueries) {
    const int queries = Smaller(kMaxQueries, job.group_size - i);
    ByteScores of_pairs[kChunk / 32 + 1];  // a chunk may begin within a group
    int num_pairs = 0, num_groups = 0;
    LaggingProducts<Product> products(queries);
    for (int t = 0; t < count; ++num_groups) {
      const int end = Smaller(count, t + group - (step.here.begin() + t) % group);
      Digits* const of_group = &digits[num_groups % 2];
      DigitScales of_digits;
      alignas(64) float scales[2 * kMaxHeadDim];
      if constexpr (Codes::kGrouped) {
        WidenScales<Simd16>(UnitOf(step, &DecodeJob::key_scales, t, size_t{4} * dim), 2 * dim,
                            scales);
      } else {
        FillScales(dim, Codes::kZero, scales, scales + dim);
      }
      ForSubBlock(RoomySubBlock(queries), [&]<int NQ>() {
        CutIntoDigits<NQ>(queries, q + static_cast<size_t>(i) * dim, dim, scales, scales + dim, dim,
                          job.scale * kLog2E, kCellOrder<kBits>, of_group, &of_digits);
      });
      for (; t < end; t += 32, ++num_pairs) {
        ByteScores& pair = of_pairs[num_pairs];
        CodeTilePair* const codes = pairs[num_pairs % 2];
        const int tile = t / 16, other = t + 16 < end ? tile + 1 : tile;
        pair.scales = of_digits;
        pair.tiles[0] = tile;
        pair.tiles[1] = other;
        UnpackKeys<kBits>(
            {tiles[tile], tiles[other]}, rows, row_bytes,
            [&](int r) __attribute__((always_inline)) {
              constexpr int kRowsPerLine = Codes::kGrouped ? 2 : 4;
              if (i == 0 && r % kRowsPerLine == 0) {
                ahead.FetchWithKeys((tile / 2 * rows + r) / kRowsPerLine);
              }
            },
            codes);
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
