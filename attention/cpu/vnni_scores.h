// Codes in groups times queries, as products of bytes: VPDPBUSD multiplies four unsigned bytes of
// each lane with four signed ones and adds them to a sum of 32 bits.
//
// Codes are such bytes as they are. The other factor, a query times the scales of a group of keys,
// is cut into two digits of 8 bits: 16 bits of its largest channel. That is less than f32 has and
// more than the bf16 that the query came from, so this is for queries of bf16 models. A product of
// a code and a channel costs half of an FMA's, and a code is unpacked to a byte with a fifth of the
// work that an f32 takes.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/coded_format.h"

namespace ziggurat::cpu {
namespace {

/// Numbers as step * (256 * high + low), both digits signed bytes.
struct FixedPoint {
  __m512 step;
  /// Added to a number, leaves its high digit in byte 1 and its low digit + 128 in byte 0.
  __m512 shift;

  /// Of numbers up to `most` in each lane. Where that is not finite, neither is the step.
  static FixedPoint UpTo(__m512 most) {
    // A number and 128 steps are at most 2^15 of them, the step being a power of two.
    const __m512 bound = _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(1e-30f), most),
                                       _mm512_set1_ps(32768.0f / 32639));
    const __m512 power = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(bound), _mm512_set1_epi32(0x7f800000)));
    const __m512 step = _mm512_mul_ps(power, _mm512_set1_ps(0x1p-14f));
    // From 2^23 steps on the lowest bit of an f32 is a step; half as much again keeps it so for
    // negative numbers.
    return {step, _mm512_mul_ps(step, _mm512_set1_ps(0x1.8p23f + 128))};
  }
};

/// sum + codes . digits of each lane. In assembler, since GCC 12 copies sums about and has no
/// operand in memory for the intrinsic.
inline __m512i AddProducts(__m512i sum, __m512i codes, __m512i digits) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
  return sum;
}
/// The same four digits for each lane.
inline __m512i AddProducts(__m512i sum, __m512i codes, const int* digits) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*digits));
  return sum;
}

/// The larger absolute value of each lane.
inline __m512 LargestAbsolute(__m512 a, __m512 b) { return _mm512_range_ps(a, b, 0x0b); }

/// int4 and int2 as bytes.
template <int kBits>
struct ByteCodes {
  static constexpr int kPerByte = 8 / kBits;
  static constexpr int kPerCell = 32 / kBits;

  /// The codes at bits kBits * i and up of every byte in out[i].
  static void Unpack(__m512i packed, __m512i* out) { UnpackFrom<0>(packed, out); }

 private:
  template <int kFirst>
  static void UnpackFrom(__m512i packed, __m512i* out) {
    if constexpr (kFirst < kPerByte) {
      const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
      out[kFirst] = _mm512_and_si512(_mm512_srli_epi32(packed, kBits * kFirst), mask);
      UnpackFrom<kFirst + 1>(packed, out);
    }
  }
};

/// Where the bytes of a query's digits come from. Of each row of cells there are the low digits of
/// what ByteCodes unpacks first from its bytes, of what it unpacks next, and so on, then the high
/// digits in the same order. They are taken from 32 channels in 16 lanes: a word each, first those
/// in the low words.
template <int kBits>
struct DigitOrder {
  alignas(64) uint8_t from[64];

  constexpr DigitOrder() : from() {
    constexpr int kChannels = 32 / kBits;
    for (int i = 0; i < 64; ++i) {
      const int row = i / (2 * kChannels), digit = i / kChannels % 2;
      const int field = i % kChannels / 4, byte = i % 4;
      const int channel = row * kChannels + byte * (8 / kBits) + field;
      from[i] = static_cast<uint8_t>(channel % 16 * 4 + channel / 16 * 2 + digit);
    }
  }
};
template <int kBits>
constexpr DigitOrder<kBits> kDigitOrder;

/// A sub-block of queries, for one head and one group of keys: score = step * digits . codes +
/// bias.
struct ByteQueries {
  alignas(64) int digits[kMaxQueries][kMaxHeadDim / 2];  ///< of four channels each
  float step[kMaxQueries];
  float bias[kMaxQueries];

  /// Query i, of a multiple of 32 channels.   factor  of all scores
  template <int kBits>
  void Pack(int i, const float* query, const float* scales, const float* zeros, int dim,
            float factor) {
    __m512 most = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 16) {
      const __m512 channels = _mm512_loadu_ps(query + c);
      most = LargestAbsolute(most, _mm512_mul_ps(channels, _mm512_load_ps(scales + c)));
      sum = _mm512_fmadd_ps(channels, _mm512_load_ps(zeros + c), sum);
    }
    const FixedPoint fixed = FixedPoint::UpTo(_mm512_set1_ps(_mm512_reduce_max_ps(most)));
    step[i] = _mm512_cvtss_f32(fixed.step) * factor;
    bias[i] = _mm512_reduce_add_ps(sum) * factor;
    const __m512i order = _mm512_load_si512(kDigitOrder<kBits>.from);
    for (int c = 0; c < dim; c += 32) {
      const auto shifted = [&](int at) {
        return _mm512_castps_si512(
            _mm512_fmadd_ps(_mm512_loadu_ps(query + at), _mm512_load_ps(scales + at), fixed.shift));
      };
      const __m512i words =
          _mm512_mask_blend_epi16(0xaaaaaaaa, shifted(c), _mm512_slli_epi32(shifted(c + 16), 16));
      const __m512i bytes = _mm512_xor_si512(words, _mm512_set1_epi16(0x80));
      _mm512_store_si512(digits[i] + c / 2, _mm512_permutexvar_epi8(order, bytes));
    }
  }
};

/// The keys and values of a step's next head, as four runs that are fetched side by side: of either
/// the first and the second half of a chunk. Scores fetch the first half of the lines.
struct RunsAhead {
  const std::byte* runs[4];
  int lines;  ///< of each

  explicit RunsAhead(const HeadStep& step) : lines(static_cast<int>(step.here.job().row_bytes)) {
    const std::byte* const own = step.here.AreaAt(&DecodeJob::keys, 0, nullptr);
    runs[0] = RunAt(step.next, &DecodeJob::keys, 0, own);
    runs[1] = RunAt(step.next, &DecodeJob::keys, kChunk / 2, own);
    runs[2] = RunAt(step.next, &DecodeJob::values, 0, own);
    runs[3] = RunAt(step.next, &DecodeJob::values, kChunk / 2, own);
  }

  /// One line of each. Always inlined: GCC drops calls of what only prefetches.
  __attribute__((always_inline)) void Fetch(int line) const {
#pragma GCC unroll 4
    for (const std::byte* run : runs) {
      _mm_prefetch(reinterpret_cast<const char*>(run + line * 64), _MM_HINT_T1);
    }
  }

 private:
  static const std::byte* RunAt(const HeadChunk& next, HeadBlocks DecodeJob::*plane, int t,
                                const std::byte* otherwise) {
    const HeadBlocks& blocks = next.job().*plane;
    const std::byte* area = next.AreaAt(plane, t, otherwise);
    const int slot = (next.begin() + t) % static_cast<int>(blocks.slots_per_block);
    return area == otherwise ? area : area + slot * next.job().row_bytes;
  }
};

/// scores[i][slot] of 16 slots for NQ queries, as ScoreBlockTiles.
template <int kBits, int NQ>
inline void ScoreByteTile(const ByteQueries& queries, int rows, const BlockTile& tile,
                          size_t row_bytes, const RunsAhead& ahead, float* scores) {
  using Codes = ByteCodes<kBits>;
  // Enough independent sums to hide the latency of a product.
  constexpr int kSums = NQ <= 2 ? 4 : NQ <= 4 ? 2 : 1;
  __m512i low[NQ][kSums], high[NQ][kSums];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 0; u < kSums; ++u) low[i][u] = high[i][u] = _mm512_setzero_si512();
  }
  const auto add_row = [&](int r, int u) __attribute__((always_inline)) {
    if (r % 4 == 0) ahead.Fetch((tile.slot / 16 * rows + r) / 4);
    __m512i codes[Codes::kPerByte];
    Codes::Unpack(_mm512_loadu_si512(tile.keys + r * row_bytes), codes);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const int* digits = queries.digits[i] + r * 2 * Codes::kPerByte;
#pragma GCC unroll 4
      for (int f = 0; f < Codes::kPerByte; ++f) {
        low[i][u] = AddProducts(low[i][u], codes[f], digits + f);
        high[i][u] = AddProducts(high[i][u], codes[f], digits + Codes::kPerByte + f);
      }
    }
  };
  ForEachRow<kSums>(rows, add_row);
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 1; u < kSums; ++u) {
      low[i][0] = _mm512_add_epi32(low[i][0], low[i][u]);
      high[i][0] = _mm512_add_epi32(high[i][0], high[i][u]);
    }
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[i][0], 8), low[i][0]);
    _mm512_storeu_ps(scores + i * kScoreStride + tile.slot,
                     _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(queries.step[i]),
                                     _mm512_set1_ps(queries.bias[i])));
  }
}

/// Scores of a step's slots, as PlainFormat::Score gives them. Whole tiles of 16 slots are read.
template <int kBits>
inline void ScoreBytes(const HeadStep& step, float* scores) {
  const DecodeJob& job = step.here.job();
  const int dim = job.head_dim, group = job.code_group, rows = dim / ByteCodes<kBits>::kPerCell;
  const size_t row_bytes = static_cast<size_t>(job.keys.slots_per_block) * 4;
  BlockTile tiles[kChunk / 16];
  ForEachRun(job.keys, step.here.head, step.here.begin(), step.here.count(),
             [&](int t, int run, int slot, const std::byte* area) {
               for (const int end = slot + run; slot < end; slot += 16, t += 16) {
                 tiles[t / 16] = {area + static_cast<size_t>(slot) * 4, nullptr, t};
               }
             });
  const RunsAhead ahead(step);
  const float* q = job.q + static_cast<size_t>(step.here.head) * job.group_size * dim;
  alignas(64) float scale_zero[2 * kMaxHeadDim];
  ByteQueries queries;
  for (int t = 0; t < step.here.count();) {
    const int run = Smaller(step.here.count() - t, group - (step.here.begin() + t) % group);
    WidenScales<Simd16>(UnitOf(step, &DecodeJob::key_scales, t, size_t{4} * dim), 2 * dim,
                        scale_zero);
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      for (int j = 0; j < size; ++j) {
        queries.Pack<kBits>(j, q + static_cast<size_t>(i + j) * dim, scale_zero, scale_zero + dim,
                            dim, job.scale * kLog2E);
      }
      ForSubBlock(size, [&]<int NQ>() {
        for (int tile = t; tile < t + run; tile += 16) {
          ScoreByteTile<kBits, NQ>(queries, rows, tiles[tile / 16], row_bytes, ahead,
                                   scores + i * kScoreStride);
        }
      });
      i += size;
    }
    t += run;
  }
  float factors[kScoreStride];
  if (LoadFactors(nullptr, &DecodeJob::key_norms, step, 1, factors)) {
    MultiplyRows<Simd16>(job.group_size, factors, step.here.count(), scores);
  }
}

}  // namespace
}  // namespace ziggurat::cpu
