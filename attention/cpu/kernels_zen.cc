// AVX512-BF16 where VDPBF16PS does twice the multiply-adds per cycle of FMAs (AMD since Zen 4):
// it takes keys and values whatever the number of queries.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/byte_format.h"
#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/paired_decode.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

constexpr CpuKernels kZen4 = With(kDecodeByVnni<ValueProducts::kPairs, /*kFewestOfInt8=*/2>,
                                  MakeCpuKernels<Simd16, Simd8, PairedKeys, PairedValues>(
                                      MakeProductKernels<PairedKeys<Simd16>>()));

void DecodeBf16OfZen5(const DecodeJob& job) {
  PairedFormat::Takes(job) ? Decode<PairedFormat>(job) : kZen4.blocks[kBf16Blocks].decode(job);
}

constexpr CpuKernels MakeZen5() {
  CpuKernels kernels = kZen4;
  kernels.product = MakeProductKernels<PairedKeys<Simd16>, /*kPanelsAtOnce=*/1, /*kManyRows=*/9>();
  BlockKernels& bf16 = kernels.blocks[kBf16Blocks];
  bf16.decode = bf16.decode_rounded = DecodeBf16OfZen5;
  bf16.decode_query_floats = 8 * kMaxQueries * kMaxHeadDim;  // L2 is near enough
  return kernels;
}
constexpr CpuKernels kZen5 = MakeZen5();

}  // namespace

const CpuKernels& Zen4Kernels() { return kZen4; }
const CpuKernels& Zen5Kernels() { return kZen5; }

}  // namespace ziggurat::cpu
