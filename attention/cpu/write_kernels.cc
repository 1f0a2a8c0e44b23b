// Compiled with -mavx2 (attention/CMakeLists.txt); see write_kernels.h.

#include "attention/cpu/write_kernels.h"

#include <immintrin.h>

#include "attention/cpu/simd_avx2.h"

namespace ziggurat::cpu {
namespace {

using V = Simd8;
using Float = V::Float;
using Bits = V::Bits;

// ---- Lanes -------------------------------------------------------------------------------------

/// Up to 8 numbers, zeros behind.
Float LoadUpTo(const float* x, int lanes) {
  return lanes >= 8 ? V::Load(x) : V::AsFloat(V::LoadBits(x, lanes));
}

/// rows[i] lane j  <->  rows[j] lane i.
void Transpose(Float* rows) {
  Float pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  Float fours[8];
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

void StoreKeys(const std::byte* codes, int tokens, int cells, std::byte* to, size_t row_bytes) {
  const size_t token_bytes = static_cast<size_t>(cells) * 4;
  int cell = 0;
  if (tokens == 8) {
    for (; cell + 8 <= cells; cell += 8) {
      Float rows[8];
      for (int t = 0; t < 8; ++t) {
        rows[t] = V::AsFloat(V::LoadBits(codes + t * token_bytes + size_t{4} * cell));
      }
      Transpose(rows);
      for (int r = 0; r < 8; ++r) {
        V::Store(reinterpret_cast<float*>(to + (cell + r) * row_bytes), rows[r]);
      }
    }
  }
  for (; cell < cells; ++cell) {
    for (int t = 0; t < tokens; ++t) {
      __builtin_memcpy(to + cell * row_bytes + size_t{4} * t,
                       codes + t * token_bytes + size_t{4} * cell, 4);
    }
  }
}

int LowestScore(const float* scores, const int32_t* positions, int slots, int32_t newest,
                float* lowest) {
  const Float infinity = V::Set(__builtin_inff());
  const Bits limit = _mm256_set1_epi32(newest);
  const auto may_go = [&](int first) {
    const Bits lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(slots - first),
                                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const Bits recent = _mm256_cmpgt_epi32(V::LoadBits(positions + first, slots - first), limit);
    return V::AsFloat(_mm256_andnot_si256(recent, lanes));
  };
  const auto score = [&](int first, Float mask) {
    const Float x = LoadUpTo(scores + first, slots - first);
    return V::Min(_mm256_blendv_ps(infinity, x, mask), infinity);  // NaN: infinity
  };
  Float least = infinity;
  int any = 0;
  for (int first = 0; first < slots; first += 8) {
    const Float mask = may_go(first);
    any |= _mm256_movemask_ps(mask);
    least = V::Min(score(first, mask), least);
  }
  const float found = -V::Largest(V::Sub(V::Zero(), least));
  if (any == 0 || !(found < *lowest || *lowest != *lowest)) return -1;
  *lowest = found;
  for (int first = 0;; first += 8) {
    const Float mask = may_go(first);
    const Float is_least =
        _mm256_and_ps(mask, _mm256_cmp_ps(score(first, mask), V::Set(found), _CMP_EQ_OQ));
    if (const int lanes = _mm256_movemask_ps(is_least); lanes != 0) {
      return first + __builtin_ctz(static_cast<unsigned>(lanes));
    }
  }
}

// ---- int8, fp8 ---------------------------------------------------------------------------------

Float Magnitude(Float x) {
  return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

float LargestMagnitude(const float* x, int count) {
  Float largest = V::Zero();
  for (int c = 0; c < count; c += 8) {
    largest = V::Max(Magnitude(LoadUpTo(x + c, count - c)), largest);  // NaN is left out
  }
  return V::Largest(largest);
}

/// The lowest byte of each lane.
void StoreBytes(uint8_t* to, Bits cells, int lanes) {
  const __m128i low = _mm256_castsi256_si128(cells), high = _mm256_extracti128_si256(cells, 1);
  const __m128i select = _mm_set1_epi32(0x0c080400);
  const __m128i bytes =
      _mm_unpacklo_epi32(_mm_shuffle_epi8(low, select), _mm_shuffle_epi8(high, select));
  if (lanes >= 8) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
  } else {
    const int first_four = _mm_cvtsi128_si32(bytes);
    __builtin_memcpy(to, &first_four, 4);
  }
}

Bits Int8Codes(Float scaled) {
  const Float rounded = V::Round(scaled);
  const Float number = _mm256_cmp_ps(rounded, rounded, _CMP_ORD_Q);
  const Float clamped = V::Min(V::Max(rounded, V::Set(-127.0f)), V::Set(127.0f));
  return _mm256_cvtps_epi32(_mm256_and_ps(clamped, number));
}

/// FloatToE4m3 of fp8.h; NaN becomes 0.
Bits E4m3Codes(Float scaled) {
  const Bits number = _mm256_castps_si256(_mm256_cmp_ps(scaled, scaled, _CMP_ORD_Q));
  const Float magnitude = V::Min(Magnitude(scaled), V::Set(448.0f));
  const Bits bits = _mm256_castps_si256(magnitude);
  const Bits odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const Bits rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7ffff));
  const Bits normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32((127 - 7) << 3));
  // Multiples of 2^-9, which is the unit of the last place of 2^14.
  const Float base = V::Set(0x1p14f);
  const Bits small =
      _mm256_sub_epi32(_mm256_castps_si256(V::Add(magnitude, base)), _mm256_castps_si256(base));
  const Bits is_small = _mm256_castps_si256(_mm256_cmp_ps(magnitude, V::Set(0x1p-6f), _CMP_LT_OQ));
  const Bits sign =
      _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(scaled), 24), _mm256_set1_epi32(0x80));
  const Bits codes = _mm256_or_si256(_mm256_blendv_epi8(normal, small, is_small), sign);
  return _mm256_and_si256(codes, number);
}

template <Bits (*Codes)(Float)>
float EncodeToken(const float* x, int head_dim, float largest_code, uint8_t* codes) {
  const float scale = LargestMagnitude(x, head_dim) / largest_code;
  if (scale == 0) {
    for (int c = 0; c < head_dim; c += 4) __builtin_memset(codes + c, 0, 4);
    return scale;
  }
  for (int c = 0; c < head_dim; c += 8) {
    StoreBytes(codes + c, Codes(V::Div(LoadUpTo(x + c, head_dim - c), V::Set(scale))),
               head_dim - c);
  }
  return scale;
}

float EncodeInt8(const float* x, int head_dim, uint8_t* codes) {
  return EncodeToken<Int8Codes>(x, head_dim, 127, codes);
}

float EncodeFp8(const float* x, int head_dim, uint8_t* codes) {
  return EncodeToken<E4m3Codes>(x, head_dim, 448, codes);
}

// ---- int4, int2 --------------------------------------------------------------------------------

struct Scales {
  Float scale;
  Float zero;
};

/// Rounds to bf16 through memory: eight of them at `to`.
Float RoundToBf16(Float x, uint16_t* to) {
  V::StoreBf16(to, x);
  return V::LoadBf16(to);
}

Bits GroupCodes(Float x, Scales group, Float largest) {
  const Float is_constant = _mm256_cmp_ps(group.scale, V::Zero(), _CMP_EQ_OQ);
  const Float rounded = V::Round(V::Div(V::Sub(x, group.zero), group.scale));
  const Float clamped = V::Min(V::Max(rounded, V::Zero()), largest);  // NaN becomes 0
  return _mm256_cvtps_epi32(_mm256_andnot_ps(is_constant, clamped));
}

/// Eight codes side by side in 8 * kBits bits, the first lowest.
template <int kBits>
uint32_t Pack(Bits codes) {
  const Bits shifts =
      _mm256_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, 4 * kBits, 5 * kBits, 6 * kBits, 7 * kBits);
  const Bits placed = _mm256_sllv_epi32(codes, shifts);
  __m128i word = _mm_or_si128(_mm256_castsi256_si128(placed), _mm256_extracti128_si256(placed, 1));
  word = _mm_or_si128(word, _mm_unpackhi_epi64(word, word));
  word = _mm_or_si128(word, _mm_shuffle_epi32(word, 1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(word));
}

template <int kBits>
void EncodeKeys(const float* x, int group, int head_dim, uint16_t* scales, uint16_t* zeros,
                uint32_t* cells) {
  constexpr int kVectors = 4 / kBits;  // of 8 channels in a cell
  const Float largest = V::Set((1 << kBits) - 1);
  for (int first = 0; first < head_dim; first += 8 * kVectors, cells += group) {
    Scales of[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const float* column = x + first + 8 * i;
      Float low = V::Set(__builtin_inff()), high = V::Set(-__builtin_inff());
      for (int t = 0; t < group; ++t) {
        const Float value = V::Load(column + static_cast<size_t>(t) * head_dim);
        low = V::Min(value, low);  // NaN is left out
        high = V::Max(value, high);
      }
      of[i].scale = RoundToBf16(V::Div(V::Sub(high, low), largest), scales + first + 8 * i);
      of[i].zero = RoundToBf16(V::Add(low, V::Zero()), zeros + first + 8 * i);
    }
    for (int t = 0; t < group; ++t) {
      const float* token = x + static_cast<size_t>(t) * head_dim + first;
      uint32_t cell = Pack<kBits>(GroupCodes(V::Load(token), of[0], largest));
      if constexpr (kVectors == 2) {
        cell |= Pack<kBits>(GroupCodes(V::Load(token + 8), of[1], largest)) << 16;
      }
      cells[t] = cell;
    }
  }
}

template <int kBits>
void EncodeValue(const float* x, int group, int head_dim, uint16_t* scales, uint16_t* zeros,
                 std::byte* codes) {
  const Float largest = V::Set((1 << kBits) - 1);
  for (int g = 0; g < head_dim / group; ++g, x += group) {
    Float low = V::Set(__builtin_inff()), high = V::Set(-__builtin_inff());
    for (int c = 0; c < group; c += 8) {
      low = V::Min(V::Load(x + c), low);  // NaN is left out
      high = V::Max(V::Load(x + c), high);
    }
    const float lowest = -V::Largest(V::Sub(V::Zero(), low)), highest = V::Largest(high);
    uint16_t rounded[8];
    Scales of;
    of.scale = RoundToBf16(V::Div(V::Set(highest - lowest), largest), rounded);
    scales[g] = rounded[0];
    of.zero = RoundToBf16(V::Add(V::Set(lowest), V::Zero()), rounded);
    zeros[g] = rounded[0];
    for (int c = 0; c < group; c += 8, codes += kBits) {
      const uint32_t packed = Pack<kBits>(GroupCodes(V::Load(x + c), of, largest));
      __builtin_memcpy(codes, &packed, kBits);
    }
  }
}

void EncodeKeysOf(const float* x, int group, int head_dim, int bits, uint16_t* scales,
                  uint16_t* zeros, uint32_t* cells) {
  (bits == 4 ? EncodeKeys<4> : EncodeKeys<2>)(x, group, head_dim, scales, zeros, cells);
}

void EncodeValueOf(const float* x, int group, int head_dim, int bits, uint16_t* scales,
                   uint16_t* zeros, std::byte* codes) {
  (bits == 4 ? EncodeValue<4> : EncodeValue<2>)(x, group, head_dim, scales, zeros, codes);
}

}  // namespace

const WriteKernels& Avx2WriteKernels() {
  static constexpr WriteKernels kKernels = {
      .store_keys = StoreKeys,
      .lowest_score = LowestScore,
      .encode_int8 = EncodeInt8,
      .encode_fp8 = EncodeFp8,
      .encode_keys = EncodeKeysOf,
      .encode_value = EncodeValueOf,
  };
  return kKernels;
}

}  // namespace ziggurat::cpu
