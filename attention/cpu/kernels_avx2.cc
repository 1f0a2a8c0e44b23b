// The AVX2 + FMA level. Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/level_table.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"

namespace ziggurat::cpu {

const CpuKernels& Avx2Kernels() {
  static constexpr CpuKernels kKernels = MakeCpuKernels<Simd8, Simd8, WidenedBf16Keys, Bf16Values>(
      MakeProductKernels<WidenedBf16Keys<Simd8>, /*kPanelsAtOnce=*/4>());
  return kKernels;
}

}  // namespace ziggurat::cpu
