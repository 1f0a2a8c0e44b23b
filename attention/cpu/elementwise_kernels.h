// The small operations between the GEMMs, one row or one range at a time.
#pragma once

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

template <class V, class Element>
void RmsNormRow(const float* x, const float* weight, float epsilon, int width, void* out) {
  auto* to = static_cast<typename Element::Type*>(out);
  auto squares = V::Zero();
  ForEachVector<V>(width, [&](size_t i, int lanes) {
    const auto value = LoadUpTo<V, F32Element>(x + i, lanes);
    squares = V::Fma(value, value, squares);
  });
  const auto inverse = V::Set(1.0f / __builtin_sqrtf(V::Sum(squares) / width + epsilon));
  ForEachVector<V>(width, [&](size_t i, int lanes) {
    const auto value = V::Mul(LoadUpTo<V, F32Element>(x + i, lanes), inverse);
    StoreUpTo<V, Element>(to + i, V::Mul(value, LoadUpTo<V, F32Element>(weight + i, lanes)), lanes);
  });
}

template <class V, class Element>
void SwiGluRow(const void* gate_up, int width, void* out) {
  const auto* gates = static_cast<const typename Element::Type*>(gate_up);
  auto* to = static_cast<typename Element::Type*>(out);
  ForEachVector<V>(width, [&](size_t i, int lanes) {
    const auto gate = LoadUpTo<V, Element>(gates + i, lanes);
    const auto up = LoadUpTo<V, Element>(gates + width + i, lanes);
    // gate / (1 + e^-gate) * up
    const auto denominator = V::Add(V::Set(1.0f), Exp2<V>(V::Mul(gate, V::Set(-kLog2E))));
    StoreUpTo<V, Element>(to + i, V::Mul(V::Div(gate, denominator), up), lanes);
  });
}

template <class V, class From, class To>
void ConvertRange(const typename From::Type* x, size_t count, typename To::Type* out) {
  ForEachVector<V>(count, [&](size_t i, int lanes) {
    StoreUpTo<V, To>(out + i, LoadUpTo<V, From>(x + i, lanes), lanes);
  });
}

template <class V, class Element>
void ToF32(const void* x, size_t count, float* out) {
  ConvertRange<V, Element, F32Element>(static_cast<const typename Element::Type*>(x), count, out);
}

template <class V, class Element>
void FromF32(const float* x, size_t count, void* out) {
  ConvertRange<V, F32Element, Element>(x, count, static_cast<typename Element::Type*>(out));
}

/// In double, as Cosine, for rows whose squares leave the range of f32.
inline double CosineOfAnySize(const float* a, const float* b, int width) {
  double dot = 0, a_square = 0, b_square = 0;
  for (int i = 0; i < width; ++i) {
    dot += double{a[i]} * b[i];
    a_square += double{a[i]} * a[i];
    b_square += double{b[i]} * b[i];
  }
  if (a_square == 0 || b_square == 0) return a_square == b_square ? 1 : 0;
  return dot / (__builtin_sqrt(a_square) * __builtin_sqrt(b_square));
}

/// Cosine of two rows; 1 where both are zero, 0 where one is.
template <class V>
double Cosine(const float* a, const float* b, int width) {
  auto dot = V::Zero(), a_squares = V::Zero(), b_squares = V::Zero();
  ForEachVector<V>(width, [&](size_t i, int lanes) {
    const auto x = LoadUpTo<V, F32Element>(a + i, lanes), y = LoadUpTo<V, F32Element>(b + i, lanes);
    dot = V::Fma(x, y, dot);
    a_squares = V::Fma(x, x, a_squares);
    b_squares = V::Fma(y, y, b_squares);
  });
  const double a_square = V::Sum(a_squares), b_square = V::Sum(b_squares);
  // Above: sums of products stay below f32's largest number. Below: squares that it loses count
  // for nothing.
  const auto is_exact = [](double square) { return square > 1e-24 && square < 1e36; };
  if (!is_exact(a_square) || !is_exact(b_square)) return CosineOfAnySize(a, b, width);
  return V::Sum(dot) / __builtin_sqrt(a_square * b_square);
}

/// RoPE on one head, its two halves as the two coordinates.
template <class V, class From, class To>
void RotateHead(const void* x, const float* cos, const float* sin, int head_dim, void* out) {
  const int half = head_dim / 2;
  const auto* from = static_cast<const typename From::Type*>(x);
  auto* to = static_cast<typename To::Type*>(out);
  ForEachVector<V>(half, [&](size_t i, int lanes) {
    const auto c = LoadUpTo<V, F32Element>(cos + i, lanes);
    const auto s = LoadUpTo<V, F32Element>(sin + i, lanes);
    const auto a = LoadUpTo<V, From>(from + i, lanes);
    const auto b = LoadUpTo<V, From>(from + half + i, lanes);
    StoreUpTo<V, To>(to + i, V::Sub(V::Mul(a, c), V::Mul(b, s)), lanes);
    StoreUpTo<V, To>(to + half + i, V::Add(V::Mul(b, c), V::Mul(a, s)), lanes);
  });
}

}  // namespace
}  // namespace ziggurat::cpu
