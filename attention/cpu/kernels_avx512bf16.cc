// The AVX512-BF16 level: two bf16 channels of a key are multiplied and added in one instruction.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/byte_format.h"
#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {

const CpuKernels& Avx512Bf16Kernels() {
  static constexpr CpuKernels kKernels =
      With(kDecodeByVnni<ValueProducts::kDigits, /*kFewestOfInt8=*/4>,
           MakeCpuKernels<Simd16, Simd8, HalfRateKeys, Bf16Values, ReadOrder::kAlongBlocks>(
               MakeProductKernels<HalfRateKeys<Simd16>>()));
  return kKernels;
}

}  // namespace ziggurat::cpu
