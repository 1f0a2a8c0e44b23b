// AMX: products of bf16, and of bytes, on tile registers, which do many times the multiply-adds per
// cycle of vectors. All else, and decode attention of one query a KV head, which waits for memory,
// as with AVX512-BF16 on the same CPUs (kernels_avx512bf16.cc), but for the order of reading.
// Compiled with its own flags (attention/CMakeLists.txt).

#include "attention/cpu/amx_byte_product.h"
#include "attention/cpu/amx_decode.h"
#include "attention/cpu/amx_product.h"
#include "attention/cpu/amx_workspace.h"
#include "attention/cpu/byte_format.h"
#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/simd_avx2.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {

const CpuKernels& AmxKernels() {
  static constexpr int kBf16 = 1;  // Encoding
  static constexpr CpuKernels kWithVectors =
      WithByteProducts<TileByteProduct, ValueProducts::kDigits, /*kFewestOfInt8=*/4>(
          MakeCpuKernels<Simd16, Simd8, HalfRateKeys, Bf16Values, ReadOrder::kWholeChunk,
                         TileWorkspace>(MakeTileProductKernels()));
  static constexpr CpuKernels kKernels = [] {
    CpuKernels kernels = kWithVectors;
    kernels.blocks[kBf16].decode_rounded = [](const DecodeJob& job) {
      DecodeOnTiles(job, kWithVectors.blocks[kBf16]);
    };
    return kernels;
  }();
  return kKernels;
}

}  // namespace ziggurat::cpu
