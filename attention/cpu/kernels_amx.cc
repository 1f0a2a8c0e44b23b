// AMX: products of bf16, and of bytes, on tile registers, which do many times the multiply-adds per
// cycle of vectors. Decode attention waits for memory, and does more of that where it uses tiles:
// from how many query heads a KV head on they pay is a matter of the CPU. All else as with
// AVX512-BF16 on the same CPUs (kernels_avx512bf16.cc).
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
namespace {

constexpr DecodeOfCodes kByVectors = kDecodeByVnni<ValueProducts::kDigits, /*kFewestOfInt8=*/4>;

template <int kBits, int kFewest, void (*kFewer)(const DecodeJob&)>
constexpr auto kOnTiles =
    DecodeBytes<kBits, TileByteProduct, ValueProducts::kDigits, kFewest, kFewer>;

template <ReadOrder kOrder, bool kFetchesFew>
constexpr CpuKernels kWithVectors =
    MakeCpuKernels<Simd16, Simd8, HalfRateKeys, Bf16Values, kOrder, TileWorkspace>(
        MakeTileProductKernels<kFetchesFew>());

template <ReadOrder kOrder, bool kFetchesFew>
constexpr CpuKernels MakeAmxKernels(DecodeOfCodes codes) {
  CpuKernels kernels = With(codes, kWithVectors<kOrder, kFetchesFew>);
  kernels.blocks[kBf16Blocks].decode_rounded = [](const DecodeJob& job) {
    DecodeOnTiles(job, kWithVectors<kOrder, kFetchesFew>.blocks[kBf16Blocks]);
  };
  return kernels;
}

}  // namespace

const CpuKernels& AmxKernels() {
  static constexpr CpuKernels kKernels =
      MakeAmxKernels<ReadOrder::kAlongBlocks, /*kFetchesFew=*/true>(
          {kByVectors.int8, kOnTiles<4, 5, kByVectors.int4>, kOnTiles<2, 5, kByVectors.int2>});
  return kKernels;
}

const CpuKernels& GraniteKernels() {
  static constexpr CpuKernels kKernels =
      MakeAmxKernels<ReadOrder::kWholeChunk, /*kFetchesFew=*/false>(
          {kOnTiles<8, 4, kByVectors.int8>, kOnTiles<4, 2, kByVectors.int4>,
           kOnTiles<2, 2, kByVectors.int2>});
  return kKernels;
}

}  // namespace ziggurat::cpu
