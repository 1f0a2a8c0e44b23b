// Puts the kernels of one level together. Included once by each level's translation unit.
#pragma once

#include "attention/cpu/coded_format.h"
#include "attention/cpu/column_sums_kernel.h"
#include "attention/cpu/decode_kernel.h"
#include "attention/cpu/distant_prefill_kernel.h"
#include "attention/cpu/elementwise_kernels.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/prefill_kernel.h"

namespace ziggurat::cpu {
namespace {

/// V: the widest Simd type of the level.
template <class V, class Workspace>
constexpr ElementKernels MakeElementKernels() {
  using Element = typename Workspace::Element;
  return {
      .prefill = Prefill<Workspace>,
      .distant_prefill = DistantPrefill<Workspace>,
      .column_sums = ColumnSums<Workspace>,
      .rms_norm = RmsNormRow<V, Element>,
      .swiglu = SwiGluRow<V, Element>,
      .to_f32 = ToF32<V, Element>,
      .from_f32 = FromF32<V, Element>,
      .rotate = {RotateHead<V, Element, F32Element>, RotateHead<V, Element, Bf16Element>},
  };
}

/// Keys, NarrowKeys: how keys are read a full vector, and a half one, at a time (blocks of 8
/// slots).
template <class Keys, class NarrowKeys, class Values, ReadOrder kOrder>
constexpr BlockKernels MakePlainKernels() {
  using Format = PlainFormat<Keys, NarrowKeys, Values, kOrder>;
  using Any = PlainFormat<Keys, NarrowKeys, Values, ReadOrder::kWholeChunk>;
  constexpr auto kDecode = [](const DecodeJob& job) {
    return Format::Takes(job) ? Decode<Format>(job) : Decode<Any>(job);
  };
  return {
      .decode = kDecode,
      .decode_rounded = kDecode,
      .slot_weights = SlotWeights<Any>,
  };
}

/// Values: how values are read where they can be.
template <class Codes, class Values>
constexpr BlockKernels MakeCodedKernels() {
  using Format = CodedFormat<Codes, Values>;
  using Tiled = CodedFormat<Codes, F32Values<typename Codes::Simd>>;
  constexpr auto kDecode = [](const DecodeJob& job) {
    if constexpr (Values::kIsAtHand) {
      if (Values::Takes(job.head_dim, job.code_group)) return Decode<Format>(job);
    }
    return Decode<Tiled>(job);
  };
  return {
      .decode = kDecode,
      .decode_rounded = kDecode,
      .slot_weights = SlotWeights<Tiled>,
  };
}

/// int4 and int2.
template <class V, int kBits>
constexpr BlockKernels MakeGroupedKernels() {
  using Codes = GroupedCodes<V, kBits>;
  return MakeCodedKernels<Codes, LookedUpValues<Codes>>();
}

/// How this level multiplies bf16: Keys<V> keys, Values<V> values; contiguous ones as
/// Bf16Workspace, those in blocks in this order.
template <class V, class Narrow, template <class> class Keys, template <class> class Values,
          ReadOrder kOrder = ReadOrder::kWholeChunk,
          class Bf16Workspace = VectorWorkspace<PackedKeys<Keys<V>>, PackedValues<Values<V>>>>
constexpr CpuKernels MakeCpuKernels(ProductKernels product) {
  using F32Workspace = VectorWorkspace<F32Keys<V>, F32Values<V>>;
  return {
      .element = {MakeElementKernels<V, F32Workspace>(), MakeElementKernels<V, Bf16Workspace>()},
      .blocks = {MakePlainKernels<F32Keys<V>, F32Keys<Narrow>, F32Values<V>, kOrder>(),
                 MakePlainKernels<Keys<V>, Keys<Narrow>, Values<V>, kOrder>(),
                 MakeCodedKernels<Int8Codes<V>, WidenedValues<Int8Codes<V>>>(),
                 MakeCodedKernels<Fp8Codes<V>, WidenedValues<Fp8Codes<V>>>(),
                 MakeGroupedKernels<V, 4>(), MakeGroupedKernels<V, 2>()},
      .product = product,
      .cosine = Cosine<V>};
}

}  // namespace
}  // namespace ziggurat::cpu
