// The AVX-512 level (F, BW, DQ, VL). Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/level_table.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {

const CpuKernels& Avx512Kernels() {
  static constexpr CpuKernels kKernels =
      MakeCpuKernels<Simd16, Simd8, WidenedBf16Keys, Bf16Values, ReadOrder::kAlongBlocks>(
          MakeProductKernels<WidenedBf16Keys<Simd16>>());
  return kKernels;
}

}  // namespace ziggurat::cpu
