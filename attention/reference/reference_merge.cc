#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/reference/elements.h"
#include "attention/reference/reference_backend.h"
#include "attention/reference/stored_segment.h"

namespace ziggurat::reference {
namespace {

using Vector = std::vector<double>;

Vector Load(const AttentionShape& shape, ElementType element, const void* x, size_t row,
            int kv_head) {
  const size_t first = (row * shape.num_kv_heads + kv_head) * shape.head_dim;
  Vector vector;
  for (int c = 0; c < shape.head_dim; ++c) vector.push_back(LoadElement(element, x, first + c));
  return vector;
}

double Dot(const Vector& a, const Vector& b) {
  double dot = 0;
  for (size_t c = 0; c < a.size(); ++c) dot += a[c] * b[c];
  return dot;
}

double Length(const Vector& a) { return std::sqrt(Dot(a, a)); }

/// a / |a|; a zero vector stays one.
Vector Unit(Vector a) {
  const double length = Length(a);
  for (double& x : a) x = length == 0 ? 0 : x / length;
  return a;
}

/// Between two vectors, in [0, pi]; 0 where one is zero.
double Angle(const Vector& a, const Vector& b) {
  if (Length(a) == 0 || Length(b) == 0) return 0;
  return std::acos(std::clamp(Dot(Unit(a), Unit(b)), -1.0, 1.0));
}

/// The direction that stands for both: SLERP from x0 to x1 at t, of unit length.
Vector MergedDirection(const Vector& x0, const Vector& x1, double t) {
  if (Length(x0) == 0) return Unit(x1);
  if (Length(x1) == 0) return Unit(x0);
  const double angle = Angle(x0, x1), sine = std::sin(angle);
  double weight0 = 1 - t, weight1 = t;
  if (sine >= 1e-6) {
    weight0 = std::sin((1 - t) * angle) / sine;
    weight1 = std::sin(t * angle) / sine;
  }
  const Vector u0 = Unit(x0), u1 = Unit(x1);
  Vector direction;
  for (size_t c = 0; c < x0.size(); ++c) direction.push_back(weight0 * u0[c] + weight1 * u1[c]);
  return Unit(direction);
}

}  // namespace

void ReferenceBackend::MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                                   const void* k1, int m, float* angles) {
  for (int g = 0; g < shape.num_kv_heads; ++g) {
    for (int t = 0; t < m; ++t) {
      angles[static_cast<size_t>(g) * m + t] =
          static_cast<float>(Angle(Load(shape, element, k0, t, g), Load(shape, element, k1, t, g)));
    }
  }
}

void ReferenceBackend::WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                                   const KeyValues& upper_tokens, const TokenChoice& rows, double t,
                                   PoolView pool, const SegmentView& lower_view,
                                   const SegmentView& upper_view, int first_slot) {
  const StoredSegment lower(pool, lower_view, shape.head_dim);
  const StoredSegment upper(pool, upper_view, shape.head_dim);
  const int unit = lower_view.UnitTokens();
  const auto load = [&](const KeyValues& tokens, Side side, int row, int kv_head) {
    return Load(shape, tokens.element, side == Side::kKeys ? tokens.k : tokens.v, row, kv_head);
  };
  for (int head = 0; head < lower_view.num_kv_heads; ++head) {
    const int g = lower_view.first_kv_head + head;
    for (Side side : kSides) {
      std::vector<float> directions;
      for (int i = 0; i < rows.count; ++i) {
        const int row = rows.At(head, i);
        const Vector x0 = load(lower_tokens, side, row, g), x1 = load(upper_tokens, side, row, g);
        const Vector direction = MergedDirection(x0, x1, t);
        directions.insert(directions.end(), direction.begin(), direction.end());
        lower.SetNorm(side, g, first_slot + i, static_cast<float>(Length(x0)));
        upper.SetNorm(side, g, first_slot + i, static_cast<float>(Length(x1)));
        if ((i + 1) % unit != 0) continue;
        const int slot = first_slot + i + 1 - unit;
        if (IsGrouped(lower_view.encoding)) {
          lower.WriteGroup(side, g, slot, directions.data());
        } else {
          lower.WriteToken(side, g, slot, directions.data());
        }
        directions.clear();
      }
    }
  }
}

}  // namespace ziggurat::reference
