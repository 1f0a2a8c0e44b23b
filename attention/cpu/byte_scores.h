// Scores of keys in int8, int4 and int2 codes, as products of bytes (digits.h).
//
// score = step * (digits of query times scales) . codes + query . zeros: the digits are those of a
// group of keys, and the columns of codes are its slots. A row of cells becomes as many rows of
// codes as a byte has codes.
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

/// Two times 16 keys of a group: rows of codes as digits.h has them.
template <int kBits>
struct KeyRows {
  using Codes = ByteCodes<kBits>;
  static constexpr int kUnits = 1;
  static constexpr int kMostRows = kMaxHeadDim / 4;

  const std::byte* first;  ///< cells, rows `row_bytes` apart
  const std::byte* second;
  int cell_rows;  ///< a multiple of kRowsPerLine
  size_t row_bytes;
  BytesAhead<kBits>* ahead;
  static constexpr int unit = 0;

  int num_rows() const { return cell_rows * Codes::kPerByte; }

  template <int kTaken, bool kFetches, class Use>
  __attribute__((always_inline)) void ForEach(Use use) const {
    BytesAhead<kBits> lines = *ahead;
    const std::byte *a = first, *b = second;
    // What `use` stores may be anything's, these members' too.
    const int rows = num_rows();
    const size_t stride = row_bytes;
    for (int row = 0; row < rows; row += kRowsPerLine * Codes::kPerByte) {
      if (kFetches) lines.FetchLines();
#pragma GCC unroll 4
      for (int r = 0; r < kRowsPerLine; ++r, a += stride, b += stride) {
        const __m512i first_cells = _mm512_loadu_si512(a), second_cells = _mm512_loadu_si512(b);
#pragma GCC unroll 4
        for (int f = 0; f < Codes::kPerByte; ++f) {
          use(0, row, r * Codes::kPerByte + f,
              Codes::First(_mm512_srli_epi32(first_cells, kBits * f)),
              Codes::First(_mm512_srli_epi32(second_cells, kBits * f)));
        }
      }
    }
    if (kFetches) *ahead = lines;
  }

 private:
  static constexpr int kRowsPerLine = Codes::kGrouped ? 2 : 4;
};

/// Where the scores of KeyRows go.
struct ScoreSink {
  DigitScales scales;
  int slots[2];   ///< the first of either 16
  float* scores;  ///< kScoreStride apart

  __attribute__((always_inline)) void operator()(int v, int i, __m512 sum) const {
    _mm512_storeu_ps(
        scores + i * kScoreStride + slots[v],
        _mm512_fmadd_ps(sum, _mm512_set1_ps(scales.step[i]), _mm512_set1_ps(scales.bias[i])));
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

/// The slots of a step whose keys share scales: those up to `end`, which are in no group before.
struct KeyGroup {
  int end;
  const std::byte* unit;  ///< where codes are grouped
};

/// Of grouped codes those of a group each; else one of all slots.
template <int kBits>
struct KeyGroups {
  static constexpr int kMost = kChunk / 32 + 1;  ///< of 32 at least; a chunk may begin within one
  int count = 0;
  KeyGroup of[kMost];

  explicit KeyGroups(const HeadStep& step) {
    const int slots = step.here.count();
    if constexpr (ByteCodes<kBits>::kGrouped) {
      const int group = step.here.job().code_group;
      for (int t = 0, end = group - step.here.begin() % group; t < slots; t = end, end += group) {
        of[count++] = {Smaller(end, slots), step.here.TileAt(&Chunk::key_units, t / kTileSlots)};
      }
    } else {
      of[count++] = {slots, nullptr};
    }
  }
};

/// The largest absolute scale of each channel, of some groups of codes.
struct LargestScales {
  alignas(64) uint16_t of[kMaxHeadDim];

  /// `dim`: a multiple of 32.
  template <int kBits>
  LargestScales(const KeyGroups<kBits>& groups, int dim) {
    for (int c = 0; c < dim; c += 32) {
      __m512i largest = _mm512_setzero_si512();
      for (int g = 0; g < groups.count; ++g) {
        const __m512i scales = _mm512_loadu_si512(UnitScales(groups.of[g].unit, dim).scales + c);
        // Of bf16 without a sign the larger word is the larger number.
        largest = _mm512_max_epu16(largest, _mm512_and_si512(scales, _mm512_set1_epi16(0x7fff)));
      }
      _mm512_store_si512(of + c, largest);
    }
  }
  __m512 Scale(int c) const { return Simd16::LoadBf16(of + c); }
};

/// Scores of a step's slots, as PlainFormat::Score gives them. Whole tiles of 16 slots are read.
template <int kBits, class Product>
inline void ScoreBytes(const HeadStep& step, BytesAhead<kBits>* ahead, float* scores) {
  using Codes = ByteCodes<kBits>;
  const DecodeJob& job = step.here.job();
  const int dim = job.head_dim, rows = dim / Codes::kPerCell;
  const size_t row_bytes = static_cast<size_t>(job.keys.slots_per_block) * 4;
  const float scale = job.scale * kLog2E;
  const float* q = job.q + static_cast<size_t>(step.here.head) * job.group_size * dim;
  const KeyGroups<kBits> groups(step);
  // A bound of the chunk, which the products with each group's scales keep to.
  const auto bound = [&] {
    if constexpr (Codes::kGrouped) {
      return LargestScales(groups, dim);
    } else {
      return ConstantScales{Codes::kZero};
    }
  }();
  Digits digits[2];
  for (int i = 0; i < job.group_size; i += kMaxQueries, q += kMaxQueries * dim) {
    const int queries = Smaller(kMaxQueries, job.group_size - i);
    FixedRows fixed;
    ForSubBlock(RoomySubBlock(queries),
                [&]<int NQ>() { fixed = FixedForProducts<NQ>(queries, q, dim, bound, dim); });
    typename Product::template Sums<KeyRows<kBits>, ScoreSink> sums(queries);
    for (int g = 0, t = 0; g < groups.count; ++g) {
      const auto [end, unit] = groups.of[g];
      Digits* const of_group = &digits[g % 2];
      ScoreSink sink;
      sink.scores = scores + i * kScoreStride;
      const auto cut = [&](const auto& scales) {
        ForSubBlock(RoomySubBlock(queries), [&]<int NQ>() {
          CutIntoDigits<NQ>(queries, q, dim, scales, dim, fixed, scale, kCellOrder<kBits>, of_group,
                            &sink.scales);
        });
      };
      if constexpr (Codes::kGrouped) {
        Prefetch(step.next.TileAt(&Chunk::key_units, t / kTileSlots), size_t{4} * dim);
        cut(UnitScales(unit, dim));
      } else {
        cut(ConstantScales{Codes::kZero});
      }
      for (; t < end; t += 2 * kTileSlots) {
        const int other = t + kTileSlots < end ? t + kTileSlots : t;  // the same where none is left
        sink.slots[0] = t;
        sink.slots[1] = other;
        sums.Add(*of_group,
                 KeyRows<kBits>{step.here.TileAt(&Chunk::keys, t / kTileSlots),
                                step.here.TileAt(&Chunk::keys, other / kTileSlots), rows, row_bytes,
                                ahead},
                 sink);
      }
      t = end;
    }
    sums.Finish();
  }
  MultiplyByFactors<Simd16, /*kRounded=*/true>(Codes::kGrouped ? nullptr : &DecodeJob::key_scales,
                                               &DecodeJob::key_norms, step, 1, scores);
}

}  // namespace
}  // namespace ziggurat::cpu
