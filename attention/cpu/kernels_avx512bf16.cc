// The AVX512-BF16 level: two bf16 channels of a key are multiplied and added in one instruction.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/level_table.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

inline __m512 DotPairs(__m512 sum, __m512i keys, int pair) {
  return _mm512_dpbf16_ps(sum, (__m512bh)keys, (__m512bh)_mm512_set1_epi32(pair));
}
inline __m256 DotPairs(__m256 sum, __m256i keys, int pair) {
  return _mm256_dpbf16_ps(sum, (__m256bh)keys, (__m256bh)_mm256_set1_epi32(pair));
}

/// Rounds to bf16, to nearest even.
inline uint32_t RoundToBf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// Row of bf16 keys; a query is rounded to bf16 too, and has one cell with two channels per row.
///
/// A single query costs one instruction per row this way instead of four. Where several queries
/// share the widened row, plain FMAs win: VDPBF16PS issues only every other cycle (measured on
/// Emerald Rapids), half the multiply-adds per cycle of the two FMA ports.
template <class V>
struct PairedBf16Keys {
  using Simd = V;
  using Element = Bf16Element;
  using One = PairedBf16Keys;
  using Many = WidenedBf16Keys<V>;
  static constexpr int kChannelsPerRow = 2;
  static constexpr int kCells = 1;
  using Row = typename V::Bits;

  static Row Load(const std::byte* p) { return V::LoadBits(p); }
  static Row Load(const std::byte* p, int slots) { return V::LoadBits(p, slots); }
  static typename V::Float Dot(typename V::Float sum, Row row, const float* query) {
    int pair;
    __builtin_memcpy(&pair, query, 4);
    return DotPairs(sum, row, pair);
  }
  static void PackRow(const float* channels, float* cells) {
    const uint32_t pair = RoundToBf16(channels[0]) | RoundToBf16(channels[1]) << 16;
    __builtin_memcpy(cells, &pair, 4);
  }
};

}  // namespace

const CpuKernels& Avx512Bf16Kernels() {
  static constexpr CpuKernels kKernels = MakeCpuKernels<Simd16, Simd8, PairedBf16Keys>();
  return kKernels;
}

}  // namespace ziggurat::cpu
