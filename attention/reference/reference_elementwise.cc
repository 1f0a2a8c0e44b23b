#include <cmath>

#include "attention/reference/elements.h"
#include "attention/reference/reference_backend.h"

namespace ziggurat::reference {

void ReferenceBackend::RmsNorm(const float* x, const float* weight, float epsilon, int rows,
                               int width, ElementType element, void* out) {
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double squares = 0;
    for (int i = 0; i < width; ++i) squares += double{x[r * width + i]} * x[r * width + i];
    const double inverse = 1 / std::sqrt(squares / width + epsilon);
    for (int i = 0; i < width; ++i) {
      StoreElement(element, out, r * width + i, x[r * width + i] * inverse * weight[i]);
    }
  }
}

void ReferenceBackend::SplitAndRotate(const AttentionShape& shape, ElementType element,
                                      const void* qkv, const float* cos, const float* sin, int rows,
                                      ElementType out_element, void* q, void* k, void* v) {
  const int dim = shape.head_dim, half = dim / 2;
  const int rotated = shape.num_q_heads + shape.num_kv_heads;
  const int heads = rotated + shape.num_kv_heads;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    for (int h = 0; h < heads; ++h) {
      const size_t from = (r * heads + h) * dim;
      void* to = h < shape.num_q_heads ? q : h < rotated ? k : v;
      const size_t to_heads = h < shape.num_q_heads ? shape.num_q_heads : shape.num_kv_heads;
      const int head = h < shape.num_q_heads ? h
                       : h < rotated         ? h - shape.num_q_heads
                                             : h - rotated;
      const size_t base = (r * to_heads + head) * dim;
      for (int c = 0; c < dim; ++c) {
        double value = LoadElement(element, qkv, from + c);
        if (h < rotated) {
          const size_t angle = r * half + c % half;
          const double other = LoadElement(element, qkv, from + (c + half) % dim);
          value = value * cos[angle] + (c < half ? -other : other) * sin[angle];
        }
        StoreElement(out_element, to, base + c, value);
      }
    }
  }
}

void ReferenceBackend::SwiGlu(ElementType element, const void* gate_up, int rows, int width,
                              void* out) {
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    for (int i = 0; i < width; ++i) {
      const double gate = LoadElement(element, gate_up, r * 2 * width + i);
      const double up = LoadElement(element, gate_up, r * 2 * width + width + i);
      StoreElement(element, out, r * width + i, gate / (1 + std::exp(-gate)) * up);
    }
  }
}

void ReferenceBackend::Convert(ElementType from, const void* x, size_t count, ElementType to,
                               void* out) {
  for (size_t i = 0; i < count; ++i) StoreElement(to, out, i, LoadElement(from, x, i));
}

}  // namespace ziggurat::reference
