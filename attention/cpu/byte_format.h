// Decode attention over int8, int4 and int2 codes by products of bytes, or for values of pairs of
// bf16, for queries that were rounded to bf16: a Format as decode_kernel.h wants it.
#pragma once

#include <type_traits>

#include "attention/cpu/byte_scores.h"
#include "attention/cpu/byte_values.h"
#include "attention/cpu/coded_format.h"
#include "attention/cpu/level_table.h"
#include "attention/cpu/paired_code_values.h"
#include "attention/cpu/vnni_product.h"

namespace ziggurat::cpu {
namespace {

/// How values are multiplied: cut into digits like keys, or but for int8 as pairs of bf16.
enum class ValueProducts { kDigits, kPairs };

/// Product: one of digits and codes (digits.h).
template <int kBits, class Product, ValueProducts kValues>
struct ByteFormat {
  using Sums = std::conditional_t<kValues == ValueProducts::kPairs && kBits != 8,
                                  PairedCodeSums<kBits>, ByteSums<kBits, Product>>;
  using Keys = void;  // queries are taken as they come
  using Values = typename Sums::Values;
  using Codes = ByteCodes<kBits>;
  using Ahead = BytesAhead<kBits>;

  static bool Takes(const DecodeJob& job) {
    return Values::Takes(job) && job.keys.slots_per_block % 16 == 0 &&
           job.values.slots_per_block % 16 == 0 && job.begin % 16 == 0;
  }

  static void Score(const HeadStep& step, const float* /*packed*/, Ahead* ahead, float* /*spare*/,
                    float* scores) {
    ScoreBytes<kBits, Product>(step, ahead, scores);
  }

  static void Accumulate(const HeadStep& step, float* weights, const float* shrink, Ahead* ahead,
                         float* sums) {
    MultiplyByFactors<Simd16>(Codes::kGrouped ? nullptr : &DecodeJob::value_scales,
                              &DecodeJob::value_norms, step, 1, weights);
    Sums::Accumulate(step, weights, shrink, ahead, sums);
  }
};

/// The same codes as f32.
template <int kBits>
void DecodeAsF32(const DecodeJob& job) {
  if constexpr (kBits == 8) {
    using Int8 = Int8Codes<Simd16>;
    constexpr BlockKernels kKernels = MakeCodedKernels<Int8, WidenedValues<Int8>>();
    kKernels.decode(job);
  } else {
    constexpr BlockKernels kKernels = MakeGroupedKernels<Simd16, kBits>();
    kKernels.decode(job);
  }
}

/// With this format where it takes the job and at least kFewest query heads share keys, else
/// kFewer.
template <int kBits, class Product, ValueProducts kValues, int kFewest,
          void (*kFewer)(const DecodeJob&) = DecodeAsF32<kBits>>
void DecodeBytes(const DecodeJob& job) {
  using Format = ByteFormat<kBits, Product, kValues>;
  if (job.group_size < kFewest || !Format::Takes(job)) return kFewer(job);
  [[maybe_unused]] const typename Product::Registers registers(job.group_size);
  Decode<Format>(job);
}

/// BlockKernels::decode_rounded of some encodings.
struct DecodeOfCodes {
  void (*int8)(const DecodeJob&);
  void (*int4)(const DecodeJob&);
  void (*int2)(const DecodeJob&);
};

/// By VPDPBUSD; kFewestOfInt8: query heads from which on int8 is faster as bytes; below that codes
/// become f32 faster than queries are cut into digits.
template <ValueProducts kValues, int kFewestOfInt8>
constexpr DecodeOfCodes kDecodeByVnni = {DecodeBytes<8, VnniProduct, kValues, kFewestOfInt8>,
                                         DecodeBytes<4, VnniProduct, kValues, 1>,
                                         DecodeBytes<2, VnniProduct, kValues, 1>};

constexpr CpuKernels With(DecodeOfCodes decode, CpuKernels kernels) {
  kernels.blocks[kInt8Blocks].decode_rounded = decode.int8;
  kernels.blocks[kInt4Blocks].decode_rounded = decode.int4;
  kernels.blocks[kInt2Blocks].decode_rounded = decode.int2;
  return kernels;
}

}  // namespace
}  // namespace ziggurat::cpu
