// MiniCache: two layers' tokens become one direction and two norms. The vectors are f32, what is
// summed over them double, since an angle near 0 or pi needs more of the cosine than f32 has.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/head_tokens.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Lengths of the vectors of the lower (0) and the upper layer (1), and the angle between them.
struct Pair {
  double length0 = 0;
  double length1 = 0;
  double angle = 0;  ///< in [0, pi]; 0 where a length is 0
};

Pair Measure(const float* x0, const float* x1, int head_dim) {
  double dot = 0, squares0 = 0, squares1 = 0;
#pragma omp simd reduction(+ : dot, squares0, squares1)
  for (int c = 0; c < head_dim; ++c) {
    const double a = x0[c], b = x1[c];
    dot += a * b;
    squares0 += a * a;
    squares1 += b * b;
  }
  Pair pair{std::sqrt(squares0), std::sqrt(squares1), 0};
  if (pair.length0 != 0 && pair.length1 != 0) {
    pair.angle = std::acos(std::clamp(dot / (pair.length0 * pair.length1), -1.0, 1.0));
  }
  return pair;
}

/// SLERP from x0/|x0| to x1/|x1| at t, of unit length; a zero vector takes the other's direction.
void MergedDirection(const float* x0, const float* x1, int head_dim, const Pair& pair, double t,
                     float* direction) {
  double weight0 = 1 - t, weight1 = t;
  if (const double sine = std::sin(pair.angle); sine >= 1e-6) {
    weight0 = std::sin((1 - t) * pair.angle) / sine;
    weight1 = std::sin(t * pair.angle) / sine;
  }
  if (pair.length0 == 0 || pair.length1 == 0) weight0 = weight1 = 1;
  weight0 = pair.length0 == 0 ? 0 : weight0 / pair.length0;
  weight1 = pair.length1 == 0 ? 0 : weight1 / pair.length1;
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int c = 0; c < head_dim; ++c) {
    const double mixed = weight0 * x0[c] + weight1 * x1[c];
    squares += mixed * mixed;
  }
  const double inverse = squares == 0 ? 0 : 1 / std::sqrt(squares);
#pragma omp simd
  for (int c = 0; c < head_dim; ++c) {
    direction[c] = static_cast<float>((weight0 * x0[c] + weight1 * x1[c]) * inverse);
  }
}

}  // namespace

void CpuBackend::MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                             const void* k1, int m, float* angles) {
  const size_t dim = shape.head_dim, heads = shape.num_kv_heads;
  const size_t head_bytes = dim * ElementBytes(element);
  ParallelRanges(threads_, m, heads * dim, [&](size_t begin, size_t end) {
    float x[2][kMaxHeadDim];
    for (size_t token = begin; token < end; ++token) {
      for (size_t g = 0; g < heads; ++g) {
        const size_t offset = (token * heads + g) * head_bytes;
        ConvertRange(element, static_cast<const std::byte*>(k0) + offset, dim, ElementType::kF32,
                     x[0]);
        ConvertRange(element, static_cast<const std::byte*>(k1) + offset, dim, ElementType::kF32,
                     x[1]);
        angles[g * m + token] = static_cast<float>(Measure(x[0], x[1], shape.head_dim).angle);
      }
    }
  });
}

void CpuBackend::WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                             const KeyValues& upper_tokens, const TokenChoice& rows, double t,
                             PoolView pool, const SegmentView& lower, const SegmentView& upper,
                             int first_slot) {
  const size_t dim = shape.head_dim, heads = lower.num_kv_heads;
  const int unit = lower.UnitTokens();
  // One token's direction; its norms are stored at once.
  const auto merge = [&](size_t token, int head, int slot, HeadTokens::Side side,
                         float* direction) {
    const bool keys = side == HeadTokens::kKeys;
    const size_t row = token * shape.num_kv_heads + lower.first_kv_head + head;
    const auto load = [&](const KeyValues& tokens, float* x) {
      const auto* all = static_cast<const std::byte*>(keys ? tokens.k : tokens.v);
      ConvertRange(tokens.element, all + row * dim * ElementBytes(tokens.element), dim,
                   ElementType::kF32, x);
    };
    float x[2][kMaxHeadDim];
    load(lower_tokens, x[0]);
    load(upper_tokens, x[1]);
    const Pair pair = Measure(x[0], x[1], shape.head_dim);
    MergedDirection(x[0], x[1], shape.head_dim, pair, t, direction);
    *EntryOf<float>(pool, keys ? lower.key_norms : lower.value_norms, head, slot) =
        static_cast<float>(pair.length0);
    *EntryOf<float>(pool, keys ? upper.key_norms : upper.value_norms, head, slot) =
        static_cast<float>(pair.length1);
  };
  const int units = rows.count / unit;
  ParallelRanges(threads_, units, 2 * heads * dim * unit, [&](size_t begin, size_t end) {
    std::vector<float> directions(static_cast<size_t>(unit) * dim);
    std::vector<uint32_t> room;
    for (int head = 0; head < lower.num_kv_heads; ++head) {
      for (const HeadTokens::Side side : {HeadTokens::kKeys, HeadTokens::kValues}) {
        const HeadTokens to(pool, lower, side, head, shape.head_dim);
        for (size_t i = begin * unit; i < end * unit; i += unit) {
          const int slot = first_slot + static_cast<int>(i);
          for (int j = 0; j < unit; ++j) {
            merge(rows.At(head, static_cast<int>(i) + j), head, slot + j, side,
                  directions.data() + j * dim);
          }
          if (IsGrouped(lower.encoding)) {
            to.WriteGroup(slot, directions.data(), &room);
          } else {
            to.Write(slot, directions.data());
          }
        }
      }
    }
  });
}

}  // namespace ziggurat::cpu
