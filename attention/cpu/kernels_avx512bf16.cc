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

/// Row of bf16 keys; the query is rounded to bf16 too, and has one cell with two channels per row.
template <class V>
struct PairedBf16Keys {
  using Simd = V;
  using Element = Bf16Element;
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
  static void PackQuery(const float* channels, float* cells) {
    uint16_t pair[2];
    StoreSome<Simd8, Bf16Element>(pair, LoadSome<Simd8, F32Element>(channels, 2), 2);
    __builtin_memcpy(cells, pair, 4);
  }
};

}  // namespace

const CpuKernels& Avx512Bf16Kernels() {
  static constexpr CpuKernels kKernels = MakeCpuKernels<Simd16, Simd8, PairedBf16Keys>();
  return kKernels;
}

}  // namespace ziggurat::cpu
