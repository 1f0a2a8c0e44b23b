// Puts the kernels of one level together. Included once by each level's translation unit.
#pragma once

#include "attention/cpu/decode_kernel.h"
#include "attention/cpu/elementwise_kernels.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/prefill_kernel.h"

namespace ziggurat::cpu {
namespace {

/// V: the widest Simd type of the level. Keys, NarrowKeys: how keys are read a full vector, and a
/// half one, at a time (blocks of 8 slots).
template <class V, class Keys, class NarrowKeys, class Values>
constexpr ElementKernels MakeElementKernels() {
  using Element = typename Keys::Element;
  return {
      .decode = Decode<Keys, NarrowKeys, Values>,
      .prefill = Prefill<Keys, Values>,
      .window_scores = WindowScores<Keys>,
      .rms_norm = RmsNormRow<V, Element>,
      .swiglu = SwiGluRow<V, Element>,
      .add = AddRange<V, Element>,
      .to_f32 = ToF32<V, Element>,
      .from_f32 = FromF32<V, Element>,
      .rotate = {RotateHead<V, Element, F32Element>, RotateHead<V, Element, Bf16Element>},
  };
}

/// Bf16Keys<V>: how this level multiplies bf16 keys.
template <class V, class Narrow, template <class> class Bf16Keys>
constexpr CpuKernels MakeCpuKernels() {
  return {.element = {MakeElementKernels<V, F32Keys<V>, F32Keys<Narrow>, F32Values<V>>(),
                      MakeElementKernels<V, Bf16Keys<V>, Bf16Keys<Narrow>, Bf16Values<V>>()}};
}

}  // namespace
}  // namespace ziggurat::cpu
