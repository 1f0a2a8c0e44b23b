// Decode attention over int4 and int2 codes by products of bytes, for queries that were rounded to
// bf16: a Format as decode_kernel.h wants it. Scores are those of vnni_scores.h.
//
// Values lie token by token, and VPDPBUSD adds up four neighbouring bytes: those of four tokens are
// interleaved for it. A weight belongs to a token and its scale to a group of channels of that
// token, so that the other factor of a lane's product is weight times scale, in two digits as for
// scores, 16 bits of a bound on those of a chunk and lane.
#pragma once

#include "attention/cpu/level_table.h"
#include "attention/cpu/simd_avx512.h"
#include "attention/cpu/vnni_scores.h"

namespace ziggurat::cpu {
namespace {

/// Some lines of the runs, one at a time.
struct LinesAhead {
  const RunsAhead& runs;
  int next;
  int end;

  __attribute__((always_inline)) void FetchNext() {
    if (next < end) runs.Fetch(next++);
  }
};

/// In every dword of a lane byte 0 of all its dwords.
struct TokenDigits {
  alignas(64) uint8_t from[64];

  constexpr TokenDigits() : from() {
    for (int i = 0; i < 64; ++i) from[i] = static_cast<uint8_t>((i / 16 * 4 + i % 4) * 4);
  }
};
constexpr TokenDigits kTokenDigits;

/// Values are taken in *steps*: 64 bytes of four tokens, or, where a row of one is only 32 or 16
/// bytes long, what stands in the 16-byte lanes of one register is of as many more tokens. Longer
/// rows are taken in *strips* of 64 bytes. Each strip has one or two *parts*, of vectors whose
/// lanes have one scale for each token.
template <int kBits>
struct ByteValues {
  using Simd = Simd16;
  static constexpr int kChannels = 32;  ///< accumulators are a whole number of these
  static constexpr int kPerByte = ByteCodes<kBits>::kPerByte;
  static constexpr int kVectors = 8;  ///< of a part
  static constexpr int kParts = 4 * kPerByte / kVectors;
  static constexpr int kMostSteps = kChunk / 4;
  static constexpr int kMostGroups = kMaxHeadDim / 32;

  /// How the rows of a job's values are cut.
  struct Cut {
    explicit Cut(const DecodeJob& job)
        : row_bytes(static_cast<int>(job.row_bytes)),
          width(Smaller(row_bytes, 64)),
          strips(row_bytes / width),
          tokens(4 * 64 / width),
          group(job.code_group),
          groups(job.head_dim / group) {
      for (int i = 0; i < 16; ++i) token_of[i] = i / 4 / (width / 16) * 4 + i % 4;
    }
    int row_bytes;
    int width;   ///< bytes of a row in a strip
    int strips;  ///< of a row
    int tokens;  ///< of a step
    int group;
    int groups;  ///< of channels
    /// Lane by lane the step's four tokens whose bytes stand there.
    alignas(64) int token_of[16];

    int Steps(int count) const { return (count + tokens - 1) / tokens; }
    int ChannelOf(int strip, int part, int lane) const {
      const int byte = strip * 64 + lane % (width / 16) * 16 + part * (16 / kParts);
      return byte * kPerByte;
    }
  };

  /// What all queries share of a chunk's strip.
  struct Strip {
    alignas(64) std::byte codes[kParts][kMostSteps][kVectors][64];
    /// Of lane l's four tokens, and the channels of the lane.
    alignas(64) float scales[kParts][kMostSteps][16];
    alignas(64) float zeros[kParts][kMostSteps][16];
    alignas(64) float most[kParts][16];  ///< the largest scale of each lane
  };

  static bool Takes(const DecodeJob& job) {
    const size_t row = job.row_bytes;
    return (row == 16 || row == 32 || row == 64 || row == 128) && job.code_group % 32 == 0;
  }

  /// The bytes of the four tokens at `step`, those of each token one dword apart.
  static void Interleave(const Cut& cut, const ValueRows& values, int strip, int step, int count,
                         Strip* out) {
    __m512i rows[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto at = [&](int first) {
        const int token = Smaller(step * cut.tokens + first + j, count - 1);
        return values.at(token, strip * size_t{64});
      };
      if (cut.width == 64) {
        rows[j] = _mm512_loadu_si512(at(0));
      } else if (cut.width == 32) {
        const auto half = [&](int first) {
          return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at(first)));
        };
        rows[j] = _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(4), 1);
      } else {
        const auto lane = [&](int first) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at(first)));
        };
        rows[j] = _mm512_castsi128_si512(lane(0));
        rows[j] = _mm512_inserti32x4(rows[j], lane(4), 1);
        rows[j] = _mm512_inserti32x4(rows[j], lane(8), 2);
        rows[j] = _mm512_inserti32x4(rows[j], lane(12), 3);
      }
    }
    const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]);
    const __m512i high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
    const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]);
    const __m512i high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
    const __m512i quads[4] = {
        _mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
        _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      __m512i codes[kPerByte];
      ByteCodes<kBits>::Unpack(quads[k], codes);
#pragma GCC unroll 4
      for (int f = 0; f < kPerByte; ++f) {
        const int vector = k * kPerByte + f;
        _mm512_store_si512(out->codes[vector / kVectors][step][vector % kVectors], codes[f]);
      }
    }
  }

  /// scales, zeros  [tokens of whole steps][groups], and room to read 32 floats from any step on
  static void SpreadScales(const Cut& cut, const float* scales, const float* zeros, int strip,
                           int steps, Strip* out) {
    for (int part = 0; part < kParts; ++part) {
      alignas(64) int entries[16];
      for (int i = 0; i < 16; ++i) {
        entries[i] = cut.token_of[i] * cut.groups + cut.ChannelOf(strip, part, i / 4) / cut.group;
      }
      const __m512i from = _mm512_load_si512(entries);
      const auto spread = [&](const float* x) {
        return _mm512_permutex2var_ps(_mm512_loadu_ps(x), from, _mm512_loadu_ps(x + 16));
      };
      __m512 most = _mm512_setzero_ps();
      for (int step = 0; step < steps; ++step) {
        const int first = step * cut.tokens * cut.groups;
        const __m512 of_step = spread(scales + first);
        _mm512_store_ps(out->scales[part][step], of_step);
        _mm512_store_ps(out->zeros[part][step], spread(zeros + first));
        most = LargestAbsolute(most, of_step);
      }
      most = _mm512_max_ps(most, _mm512_permute_ps(most, 0xb1));
      _mm512_store_ps(out->most[part], _mm512_max_ps(most, _mm512_permute_ps(most, 0x4e)));
    }
  }

  /// sums = shrink * sums + weights . values of one query and part, over `steps` steps.
  ///   weights  0 behind the last token
  ///   sums     [kVectors, cut.width / 4]
  static void AddPart(const Cut& cut, const Strip& strip, int part, const float* weights, int steps,
                      float shrink, LinesAhead ahead, float* sums) {
    const __m512i token_of = _mm512_load_si512(cut.token_of);
    __m512 most = _mm512_setzero_ps();
    for (int t = 0; t < steps * cut.tokens; t += 16) {
      most = _mm512_max_ps(most, _mm512_loadu_ps(weights + t));
    }
    const FixedPoint fixed = FixedPoint::UpTo(_mm512_mul_ps(
        _mm512_set1_ps(_mm512_reduce_max_ps(most)), _mm512_load_ps(strip.most[part])));
    __m512 zero = _mm512_setzero_ps();
    const __m512i low_of = _mm512_load_si512(kTokenDigits.from);
    const __m512i high_of = _mm512_add_epi8(low_of, _mm512_set1_epi8(1));
    __m512i low[kVectors], high[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) low[v] = high[v] = _mm512_setzero_si512();
    for (int step = 0; step < steps; ++step) {
      ahead.FetchNext();
      const __m512 weight =
          _mm512_permutexvar_ps(token_of, _mm512_loadu_ps(weights + step * cut.tokens));
      const __m512i shifted = _mm512_castps_si512(
          _mm512_fmadd_ps(weight, _mm512_load_ps(strip.scales[part][step]), fixed.shift));
      zero = _mm512_fmadd_ps(weight, _mm512_load_ps(strip.zeros[part][step]), zero);
      const __m512i high_digits = _mm512_permutexvar_epi8(high_of, shifted);
      const __m512i low_digits =
          _mm512_permutexvar_epi8(low_of, _mm512_xor_si512(shifted, _mm512_set1_epi32(0x80)));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const __m512i codes = _mm512_load_si512(strip.codes[part][step][v]);
        low[v] = AddProducts(low[v], codes, low_digits);
        high[v] = AddProducts(high[v], codes, high_digits);
      }
    }
    // A lane's zeros are those of all its channels.
    zero = _mm512_add_ps(zero, _mm512_permute_ps(zero, 0xb1));
    zero = _mm512_add_ps(zero, _mm512_permute_ps(zero, 0x4e));
    const int lanes = cut.width / 4;
    const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
    for (int v = 0; v < kVectors; ++v, sums += lanes) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[v], 8), low[v]);
      __m512 x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), fixed.step, zero);
      if (lanes <= 8) x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
      if (lanes <= 4) x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
      x = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, sums), _mm512_set1_ps(shrink), x);
      _mm512_mask_storeu_ps(sums, mask, x);
    }
  }

  /// As the function of this name in value_tiles.h.
  static void PutInOrder(const float* sums, float factor, int head_dim, float* out) {
    const int row_bytes = head_dim / kPerByte, width = Smaller(row_bytes, 64);
    for (int first = 0; first < row_bytes; first += width) {
      for (int vector = 0; vector < kParts * kVectors; ++vector) {
        for (int byte = 0; byte < width; byte += 16) {
          float* to = out + (first + byte + vector / kPerByte * 4) * kPerByte + vector % kPerByte;
          for (int i = 0; i < 4; ++i) to[i * kPerByte] = *sums++ * factor;
        }
      }
    }
  }
};

template <int kBits>
struct ByteFormat : CodedScores<GroupedCodes<Simd16, kBits>> {
  using Base = CodedScores<GroupedCodes<Simd16, kBits>>;
  using Keys = void;  // queries are taken as they come
  using Values = ByteValues<kBits>;

  static bool Takes(const DecodeJob& job) {
    return Values::Takes(job) && job.keys.slots_per_block % 16 == 0 && job.begin % 16 == 0;
  }

  static void Score(const HeadStep& step, const float* /*packed*/, float* /*spare*/,
                    float* scores) {
    ScoreBytes<kBits>(step, scores);
  }

  static void Accumulate(const HeadStep& step, float* weights, const float* shrink, float* sums) {
    const DecodeJob& job = step.here.job();
    const int count = step.here.count();
    float factors[kScoreStride] = {};  // weights stay 0 behind the last token
    if (LoadFactors(nullptr, &DecodeJob::value_norms, step, 1, factors)) {
      MultiplyRows<Simd16>(job.group_size, factors, count, weights);
    }
    const typename Values::Cut cut(job);
    const int steps = cut.Steps(count);
    // What stands behind is read with what there is, and weighted 0.
    constexpr int kRoom = kChunk * Values::kMostGroups + 32;
    alignas(64) float scales[kRoom], zeros[kRoom];
    Base::LoadValueScales(step, 0, count, scales, zeros);
    const size_t behind = static_cast<size_t>(steps * cut.tokens - count) * cut.groups;
    __builtin_memset(scales + count * cut.groups, 0, sizeof(float) * behind);
    __builtin_memset(zeros + count * cut.groups, 0, sizeof(float) * behind);

    const ValueRows values = ValuesOf(step);
    const int stride = AccumulatorFloats<Values>(job.head_dim);
    const int part_floats = Values::kVectors * cut.width / 4;
    const RunsAhead runs(step);
    const int turns = cut.strips * (job.group_size * Values::kParts + 1);
    int line = runs.lines / 2;
    const auto next_lines = [&, some = (runs.lines - line + turns - 1) / turns] {
      const int first = line;
      line = Smaller(line + some, runs.lines);
      return LinesAhead{runs, first, line};
    };
    typename Values::Strip strip;
    for (int s = 0; s < cut.strips; ++s) {
      LinesAhead ahead = next_lines();
      for (int i = 0; i < steps; ++i) {
        ahead.FetchNext();
        Values::Interleave(cut, values, s, i, count, &strip);
      }
      Values::SpreadScales(cut, scales, zeros, s, steps, &strip);
      for (int i = 0; i < job.group_size; ++i) {
        float* to = sums + static_cast<size_t>(i) * stride + s * Values::kParts * part_floats;
        for (int part = 0; part < Values::kParts; ++part, to += part_floats) {
          Values::AddPart(cut, strip, part, weights + i * kScoreStride, steps, shrink[i],
                          next_lines(), to);
        }
      }
    }
  }
};

/// `kernels` with this format where it takes a job.
template <int kBits>
constexpr BlockKernels WithBytes(BlockKernels kernels) {
  kernels.decode_rounded = [](const DecodeJob& job) {
    if (ByteFormat<kBits>::Takes(job)) return Decode<ByteFormat<kBits>>(job);
    constexpr BlockKernels kOther = MakeGroupedKernels<Simd16, kBits>();
    return kOther.decode(job);
  };
  return kernels;
}

constexpr CpuKernels WithVnni(CpuKernels kernels) {
  constexpr int kInt4 = 4, kInt2 = 5;  // Encoding
  kernels.blocks[kInt4] = WithBytes<4>(kernels.blocks[kInt4]);
  kernels.blocks[kInt2] = WithBytes<2>(kernels.blocks[kInt2]);
  return kernels;
}

}  // namespace
}  // namespace ziggurat::cpu
