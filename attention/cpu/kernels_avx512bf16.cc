// The AVX512-BF16 level: two bf16 channels of a key are multiplied and added in one instruction.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

/// A single query costs one instruction per row instead of four. Where several queries share the
/// widened row, plain FMAs win: VDPBF16PS issues only every other cycle here (measured on Intel's
/// Sapphire and Emerald Rapids), half the multiply-adds per cycle of the two FMA ports.
template <class V>
struct HalfRateKeys : PairedKeys<V> {
  using Many = WidenedBf16Keys<V>;
};

}  // namespace

const CpuKernels& Avx512Bf16Kernels() {
  static constexpr CpuKernels kKernels = MakeCpuKernels<Simd16, Simd8, HalfRateKeys, Bf16Values>(
      MakeProductKernels<HalfRateKeys<Simd16>>());
  return kKernels;
}

}  // namespace ziggurat::cpu
