// Sums of values in int8, int4 and int2 codes, as products of bytes (digits.h).
//
// Values lie token by token, so the bytes of four tokens are interleaved for a row of codes, whose
// columns are channels. A weight belongs to a token and its scale to a group of channels of that
// token: the digits are those of weight times scale, of a group and the tokens of a chunk.
#pragma once

#include "attention/cpu/byte_scores.h"

namespace ziggurat::cpu {
namespace {

/// Scales and zeros of a chunk's values, group by group.
struct GroupScales {
  static constexpr int kMostGroups = kMaxHeadDim / 32;

  /// 0 from the last token on to a multiple of 32.
  alignas(64) float scales[kMostGroups][kChunk];
  alignas(64) float zeros[kMostGroups][kChunk];

  /// Those of a step; what stands there for the next one is fetched.
  void Load(const HeadStep& step) {
    const DecodeJob& job = step.here.job();
    const int group = job.code_group, groups = job.head_dim / group, count = step.here.count();
    const size_t zeros_at = static_cast<size_t>(job.head_dim) * 2;  // [group][groups] bf16 behind
    Places places[kMostGroups];
    for (int g = 0; g < groups; ++g) places[g] = Places(groups, g);
    int t = 0;
    for (int tile = 0; t < count; ++tile, t += kTileSlots) {
      const int slot = (step.here.begin() + t) % group;
      const size_t at = static_cast<size_t>(slot) * groups * 2;
      const std::byte* const from = step.here.TileAt(&Chunk::value_units, tile) + at;
      const std::byte* const ahead = step.next.TileAt(&Chunk::value_units, tile) + at;
      Prefetch(ahead, static_cast<size_t>(kTileSlots) * groups * 2);
      Prefetch(ahead + zeros_at, static_cast<size_t>(kTileSlots) * groups * 2);
      const auto lanes = static_cast<__mmask16>((1u << Smaller(count - t, kTileSlots)) - 1);
      const Words of_scales(from, groups), of_zeros(from + zeros_at, groups);
      for (int g = 0; g < groups; ++g) {
        _mm512_store_ps(scales[g] + t, of_scales.At(places[g], lanes));
        _mm512_store_ps(zeros[g] + t, of_zeros.At(places[g], lanes));
      }
    }
    for (; t % 32 != 0; t += kTileSlots) {
      for (int g = 0; g < groups; ++g) {
        _mm512_store_ps(scales[g] + t, _mm512_setzero_ps());
        _mm512_store_ps(zeros[g] + t, _mm512_setzero_ps());
      }
    }
  }
  /// Of a group.
  struct OfTokens {
    const float* scales;
    const float* zeros;

    __m512 Scale(int t) const { return _mm512_load_ps(scales + t); }
    __m512 Zero(int t) const { return _mm512_load_ps(zeros + t); }
  };
  OfTokens Of(int group) const { return {scales[group], zeros[group]}; }

 private:
  /// Where the words of a group are in [16 tokens][groups] bf16, token by token.
  struct Places {
    __m512i dword;
    __m512i shift;        ///< brings the word into the upper half
    __mmask16 is_behind;  ///< the first 32 dwords

    Places() = default;
    Places(int groups, int group) {
      const __m512i tokens =
          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i word = _mm512_add_epi32(_mm512_mullo_epi32(tokens, _mm512_set1_epi32(groups)),
                                            _mm512_set1_epi32(group));
      dword = _mm512_srli_epi32(word, 1);
      shift = _mm512_slli_epi32(_mm512_andnot_epi32(word, _mm512_set1_epi32(1)), 4);
      is_behind = _mm512_cmpge_epi32_mask(dword, _mm512_set1_epi32(32));
    }
  };

  struct Words {
    int vectors;
    __m512i words[4];

    Words(const std::byte* from, int groups) : vectors((groups + 1) / 2) {
      const auto load = [&](int i) {
        const int left = Smaller(32, 16 * groups - 32 * i);
        return _mm512_maskz_loadu_epi16(0xffffffff >> (32 - left), from + 64 * i);
      };
      words[0] = load(0);
      words[1] = vectors > 1 ? load(1) : _mm512_setzero_si512();
      words[2] = vectors > 2 ? load(2) : _mm512_setzero_si512();
      words[3] = vectors > 3 ? load(3) : _mm512_setzero_si512();
    }
    /// As f32, 0 where not in `lanes`.
    __m512 At(const Places& places, __mmask16 lanes) const {
      __m512i out = _mm512_permutex2var_epi32(words[0], places.dword, words[1]);
      if (vectors > 2) {
        const __m512i behind = _mm512_permutex2var_epi32(words[2], places.dword, words[3]);
        out = _mm512_mask_mov_epi32(out, places.is_behind, behind);
      }
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
      return _mm512_castsi512_ps(
          _mm512_maskz_and_epi32(lanes, _mm512_sllv_epi32(out, places.shift), upper));
    }
  };
};

constexpr DigitOrder kTokenOrder = DigitOrder([](int k) { return k; });

/// Values are taken in units of 32 channels, of which each has two columns of accumulators.
///   kWholeBytes  the second column of int4 takes whole bytes, 16 times the upper code and the lower
///                one, which the first column takes too: that is less to unpack, and undone at the end
template <int kBits, bool kWholeBytes>
struct ByteValues {
  using Simd = Simd16;
  using Codes = ByteCodes<kBits>;
  static constexpr int kChannels = 32;
  static constexpr int kUnitBytes = kChannels / Codes::kPerByte;
  /// Bytes of a row that are read at a time.
  static constexpr int kGranule = Larger(16, kUnitBytes);
  static constexpr int kUnits = kGranule / kUnitBytes;  ///< of a granule
  static constexpr bool kTakesWholeBytes = kWholeBytes && kBits == 4;

  static bool Takes(const DecodeJob& job) {
    return job.row_bytes % kGranule == 0 && job.code_group % kChannels == 0;
  }

  /// A unit of all values of a step, whole tiles of 16 slots: rows of codes as digits.h has them.
  struct Rows {
    static constexpr int kUnits = ByteValues::kUnits;
    static constexpr int kMost = kMaxHeadDim / kChannels;
    static constexpr int kMostRows = kChunk / 4;

    HeadChunk here;
    int granule;
    int unit;
    BytesAhead<kBits>* ahead;

    int num_rows() const { return (here.count() + 3) / 4; }

    template <int kTaken, bool kFetches, class Use>
    __attribute__((always_inline)) void ForEach(Use use) const {
      const size_t row_bytes = here.job().row_bytes;
      const size_t at = granule * size_t{kGranule};
      const int tiles = here.num_tiles();
      BytesAhead<kBits> lines = *ahead;
      constexpr int kQuads = kTileSlots / 4;
      for (int tile = 0; tile < tiles; ++tile) {
        if (kFetches) lines.FetchLines();
        const std::byte* first = here.TileAt(&Chunk::values, tile) + at;
#pragma GCC unroll 4
        for (int quad = 0; quad < kQuads; ++quad, first += 4 * row_bytes) {
          __m512i codes[kTaken][2];
          Unpack<kTaken>(first, row_bytes, unit, codes);
#pragma GCC unroll 2
          for (int u = 0; u < kTaken; ++u) {
            use(u, tile * kQuads, quad, codes[u][0], codes[u][1]);
          }
        }
      }
      if (kFetches) *ahead = lines;
    }
  };

  /// As the function of this name in value_tiles.h: accumulators are [units][2][16].
  static void PutInOrder(const float* sums, float factor, float* out) {
    const __m512 low = _mm512_loadu_ps(sums);
    __m512 high = _mm512_loadu_ps(sums + 16);
    if (kTakesWholeBytes) high = _mm512_mul_ps(_mm512_sub_ps(high, low), _mm512_set1_ps(1.0f / 16));
    const __m512 scale = _mm512_set1_ps(factor);
#pragma GCC unroll 2
    for (int i = 0; i < kChannels; i += 16) {
      const __m512i from = _mm512_load_si512(kAccumulators.of + i);
      _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_permutex2var_ps(low, from, high), scale));
    }
  }

 private:
  /// The codes of four tokens, of so many units from `unit` on.
  template <int kTaken>
  __attribute__((always_inline)) static void Unpack(const std::byte* first, size_t row_bytes,
                                                    int unit, __m512i codes[][2]) {
    // Side by side, 16 bytes of each.
    const auto four_rows = [=](const std::byte* from) __attribute__((always_inline)) {
      const auto token = [=](size_t at) __attribute__((always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
      };
      __m512i rows = _mm512_castsi128_si512(token(0));
      rows = _mm512_mask_broadcast_i32x4(rows, 0x00f0, token(row_bytes));
      rows = _mm512_mask_broadcast_i32x4(rows, 0x0f00, token(2 * row_bytes));
      return _mm512_mask_broadcast_i32x4(rows, 0xf000, token(3 * row_bytes));
    };
    if constexpr (kUnitBytes == 32) {
      const __m512i from = _mm512_load_si512(kInterleaved[0].from);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        codes[0][v] = Codes::First(_mm512_permutexvar_epi8(from, four_rows(first + 16 * v)));
      }
    } else {
      const __m512i rows = four_rows(first);
#pragma GCC unroll 2
      for (int u = 0; u < kTaken; ++u) {
        const __m512i from = _mm512_load_si512(kInterleaved[kTaken == kUnits ? u : unit + u].from);
        const __m512i bytes = _mm512_permutexvar_epi8(from, rows);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          if (kTakesWholeBytes && v == 1) {
            codes[u][v] = bytes;
            continue;
          }
          codes[u][v] = Codes::First(
              kUnits == 1 ? _mm512_srli_epi32(bytes, kBits * v)
                          : _mm512_srlv_epi32(bytes, _mm512_load_si512(kShifts[v].of)));
        }
      }
    }
  }

  /// Which byte of 16 that are read, and which code of it, a column has in tile v.
  static constexpr int ByteOf(int column) { return column % kUnitBytes; }
  static constexpr int FieldOf(int v, int column) { return v * kUnits + column / kUnitBytes; }
  static constexpr int ChannelOf(int v, int column) {
    if (Codes::kPerByte == 1) return v * 16 + column;
    return ByteOf(column) * Codes::kPerByte + FieldOf(v, column);
  }

  /// The bytes of a unit of four rows of 16, column by column.
  struct Interleaved {
    alignas(64) uint8_t from[64];
    constexpr explicit Interleaved(int unit) : from() {
      for (int i = 0; i < 64; ++i) {
        from[i] = static_cast<uint8_t>(i % 4 * 16 + unit * kUnitBytes + ByteOf(i / 4));
      }
    }
  };
  struct Shifts {
    alignas(64) int of[16];
    constexpr explicit Shifts(int v) : of() {
      for (int i = 0; i < 16; ++i) of[i] = kBits * FieldOf(v, i);
    }
  };
  static constexpr Interleaved kInterleaved[2] = {Interleaved(0), Interleaved(kUnits - 1)};
  static constexpr Shifts kShifts[2] = {Shifts(0), Shifts(1)};
  /// Which accumulator each channel has.
  struct Accumulators {
    alignas(64) int of[kChannels];
    constexpr Accumulators() : of() {
      for (int i = 0; i < kChannels; ++i) of[ChannelOf(i / 16, i % 16)] = i;
    }
  };
  static constexpr Accumulators kAccumulators = Accumulators();
};

/// Where the sums of ByteValues::Rows go: sums[i] = shrink[i] * sums[i] + what is added.
///   kZerosOfSecond  for how many zeros of its group stands what the second column takes
template <int kZerosOfSecond>
struct ValueSink {
  DigitScales scales;
  const float* shrink;
  float* sums;  ///< of the unit, rows `stride` apart
  size_t stride;

  __attribute__((always_inline)) void operator()(int v, int i, __m512 sum) const {
    float* const to = sums + i * stride + v * 16;
    const float bias = v == 0 ? scales.bias[i] : kZerosOfSecond * scales.bias[i];
    const __m512 added = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales.step[i]), _mm512_set1_ps(bias));
    _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), _mm512_set1_ps(shrink[i]), added));
  }
};

/// sums[i] = shrink[i] * sums[i] + weights[i] . values for `size` queries of a step's head, those
/// that begin with the first one of `weights`.
///   weights  0 behind the last token
///   scales   of grouped codes; of others anything: they have one zero, and their scales are the
///            weights'
template <int kBits, class Product>
inline void AccumulateBytes(const HeadStep& step, int size, const float* weights,
                            const float* shrink, const GroupScales& scales,
                            BytesAhead<kBits>* ahead, float* sums, int sums_stride) {
  using Values = ByteValues<kBits, Product::kTakesWholeBytes>;
  using Codes = typename Values::Codes;
  const DecodeJob& job = step.here.job();
  const int count = step.here.count(), units = job.head_dim / Values::kChannels;
  const int group_channels = Codes::kGrouped ? job.code_group : job.head_dim;
  Digits digits[2];
  using Sink = ValueSink<Values::kTakesWholeBytes ? 17 : 1>;
  Sink sink;
  sink.shrink = shrink;
  sink.stride = static_cast<size_t>(sums_stride);
  typename Product::template Sums<typename Values::Rows, Sink> products(size);
  for (int u = 0; u < units; ++u) {
    const int channel = u * Values::kChannels, group = channel / group_channels;
    Digits* const of_group = &digits[group % 2];
    if (channel % group_channels == 0) {
      const auto cut = [&](const auto& of_tokens) {
        ForSubBlock(RoomySubBlock(size), [&]<int NQ>() {
          CutIntoDigits<NQ>(size, weights, kScoreStride, of_tokens, count, /*factor=*/1,
                            kTokenOrder, of_group, &sink.scales);
        });
      };
      if constexpr (Codes::kGrouped) {
        cut(scales.Of(group));
      } else {
        cut(ConstantScales{Codes::kZero});
      }
    }
    sink.sums = sums + channel;
    products.Add(*of_group,
                 typename Values::Rows{step.here, u / Values::kUnits, u % Values::kUnits, ahead},
                 sink);
  }
  products.Finish();
}

}  // namespace
}  // namespace ziggurat::cpu
