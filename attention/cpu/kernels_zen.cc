// AVX512-BF16 where VDPBF16PS does twice the multiply-adds per cycle of FMAs (AMD since Zen 4):
// it takes keys and values whatever the number of queries.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/byte_format.h"
#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

template <ReadOrder kOrder>
constexpr CpuKernels MakeZenKernels() {
  return With(kDecodeByVnni<ValueProducts::kPairs, /*kFewestOfInt8=*/2>,
              MakeCpuKernels<Simd16, Simd8, PairedKeys, PairedValues, kOrder>(
                  MakeProductKernels<PairedKeys<Simd16>>()));
}

}  // namespace

const CpuKernels& Zen4Kernels() {
  static constexpr CpuKernels kKernels = MakeZenKernels<ReadOrder::kWholeChunk>();
  return kKernels;
}

const CpuKernels& Zen5Kernels() {
  static constexpr CpuKernels kKernels = MakeZenKernels<ReadOrder::kFewBlocks>();
  return kKernels;
}

}  // namespace ziggurat::cpu
