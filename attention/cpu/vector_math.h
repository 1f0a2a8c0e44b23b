// exp2 on vectors, and rows of elements taken a vector at a time. Needs a Simd type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

constexpr int Smaller(int a, int b) { return a < b ? a : b; }
constexpr int Larger(int a, int b) { return a > b ? a : b; }

/// 2^x within 2 ulp in [-100, 127]; 0 below that (subnormal numbers are slow to multiply with),
/// infinity from 128 on, NaN for NaN.
template <class V>
inline typename V::Float Exp2(typename V::Float x) {
  // 2^x = 2^n * 2^f with |f| <= 1/2; the polynomial through 7 Chebyshev nodes is within 2^-28 of
  // 2^f.
  x = V::Min(V::Set(128.0f), x);
  const typename V::Float n = V::Round(x);
  const typename V::Float f = V::Sub(x, n);
  typename V::Float p = V::Set(1.54614449e-4f);
  p = V::Fma(p, f, V::Set(1.3400428e-3f));
  p = V::Fma(p, f, V::Set(9.61805694e-3f));
  p = V::Fma(p, f, V::Set(5.55032715e-2f));
  p = V::Fma(p, f, V::Set(2.40226507e-1f));
  p = V::Fma(p, f, V::Set(6.93147182e-1f));
  p = V::Fma(p, f, V::Set(1.0f));
  return V::ZeroWhereLess(x, V::Set(-100.0f), V::TimesPowerOfTwo(p, n));
}

/// How f32 elements are read and written.
struct F32Element {
  using Type = float;
  template <class V>
  static typename V::Float Load(const float* p) {
    return V::Load(p);
  }
  template <class V>
  static void Store(float* p, typename V::Float x) {
    V::Store(p, x);
  }
};

/// How bf16 elements are read and written.
struct Bf16Element {
  using Type = uint16_t;
  template <class V>
  static typename V::Float Load(const uint16_t* p) {
    return V::LoadBf16(p);
  }
  template <class V>
  static void Store(uint16_t* p, typename V::Float x) {
    V::StoreBf16(p, x);
  }
};

/// A vector with the first `count` elements, zeros behind.
template <class V, class Element>
inline typename V::Float LoadSome(const typename Element::Type* p, int count) {
  typename Element::Type padded[V::kLanes] = {};
  for (int i = 0; i < count; ++i) padded[i] = p[i];
  return Element::template Load<V>(padded);
}

template <class V, class Element>
inline void StoreSome(typename Element::Type* p, typename V::Float x, int count) {
  typename Element::Type padded[V::kLanes];
  Element::template Store<V>(padded, x);
  for (int i = 0; i < count; ++i) p[i] = padded[i];
}

/// Calls body(offset, lanes) over [0, count); `lanes` is kLanes but in the last call.
template <class V, class Body>
inline void ForEachVector(size_t count, Body body) {
  size_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) body(i, V::kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

template <class V, class Element>
inline typename V::Float LoadUpTo(const typename Element::Type* p, int lanes) {
  return lanes == V::kLanes ? Element::template Load<V>(p) : LoadSome<V, Element>(p, lanes);
}

template <class V, class Element>
inline void StoreUpTo(typename Element::Type* p, typename V::Float x, int lanes) {
  if (lanes == V::kLanes) {
    Element::template Store<V>(p, x);
  } else {
    StoreSome<V, Element>(p, x, lanes);
  }
}

}  // namespace
}  // namespace ziggurat::cpu
