// MiniCache: the direction that stands for two layers' tokens, and their norms.

#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

using reference::kSides;
using reference::Side;
using reference::StoredSegment;

constexpr double kPi = 3.14159265358979323846;

/// K and V of both layers, [tokens, heads, head_dim].
struct Layers {
  Layers(ElementType element, size_t count)
      : k0(RandomTensor(element, count, 1)),
        v0(RandomTensor(element, count, 2)),
        k1(RandomTensor(element, count, 3)),
        v1(RandomTensor(element, count, 4)) {}
  const Tensor& of(Side side, int layer) const {
    return side == Side::kKeys ? (layer == 0 ? k0 : k1) : (layer == 0 ? v0 : v1);
  }
  KeyValues lower() const { return {k0.element, k0.data(), v0.data()}; }
  KeyValues upper() const { return {k1.element, k1.data(), v1.data()}; }
  Tensor k0, v0, k1, v1;
};

class Merge : public testing::TestWithParam<int> {
 protected:
  static constexpr int kHeads = 3, kTokens = 60;
  int head_dim() const { return GetParam(); }
  AttentionShape shape() const { return Shape(2 * kHeads, kHeads, head_dim()); }
  /// Element of token `token`, head `head`.
  size_t At(int token, int head) const {
    return (static_cast<size_t>(token) * kHeads + head) * head_dim();
  }
};

TEST_P(Merge, StandsForBothTokensByDirectionAndNorms) {
  constexpr int kCount = 45, kFirstSlot = 6;
  const double t = 0.6;
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const Layers x(element, At(kTokens, 0));
    std::vector<int32_t> rows(2 * kCount);
    std::mt19937 random(5);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % kTokens);
    for (const CacheFormat& format : EncodedFormats(head_dim())) {
      if (IsGrouped(format.encoding)) continue;
      for (auto& backend : AllBackends()) {
        TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim()), 40);
        const SegmentView lower =
            TakeSegment(pool, Merged(format), 1, 2, head_dim(), kCount + kFirstSlot);
        const SegmentView upper = UpperView(lower);
        backend->WriteMerged(shape(), x.lower(), x.upper(),
                             TokenChoice::Listed(rows.data(), kCount, kCount), t, pool.view(),
                             lower, upper, kFirstSlot);
        double worst_direction = 0, worst_norm = 0;
        for (int head = 0; head < 2; ++head) {
          for (int i = 0; i < kCount; ++i) {
            for (Side side : kSides) {
              const size_t from = At(rows[head * kCount + i], 1 + head);
              const Tensor &x0 = x.of(side, 0), &x1 = x.of(side, 1);
              // The point of the great circle from u0 to u1 at t times the angle between them:
              // cos(t a) u0 + sin(t a) w, w the unit vector orthogonal to u0 in their plane.
              double n0 = 0, n1 = 0, dot = 0;
              for (int c = 0; c < head_dim(); ++c) {
                n0 += std::pow(double{x0.at(from + c)}, 2);
                n1 += std::pow(double{x1.at(from + c)}, 2);
                dot += double{x0.at(from + c)} * x1.at(from + c);
              }
              n0 = std::sqrt(n0), n1 = std::sqrt(n1);
              const double cosine = dot / (n0 * n1), angle = std::acos(cosine);
              const int g = 1 + head, slot = kFirstSlot + i;
              const StoredSegment low(pool.view(), lower, head_dim());
              const StoredSegment high(pool.view(), upper, head_dim());
              double largest = 0;
              for (int c = 0; c < head_dim(); ++c) {
                const double u0 = x0.at(from + c) / n0, u1 = x1.at(from + c) / n1;
                const double w = (u1 - cosine * u0) / std::sin(angle);
                const double e = std::cos(t * angle) * u0 + std::sin(t * angle) * w;
                largest = std::max(largest, std::abs(e));
                worst_direction =
                    std::max(worst_direction, std::abs(low.Direction(side, g, slot, c) - e));
                EXPECT_EQ(low.Direction(side, g, slot, c), high.Direction(side, g, slot, c));
              }
              worst_norm = std::max(worst_norm, std::abs(low.Norm(side, g, slot) / n0 - 1));
              worst_norm = std::max(worst_norm, std::abs(high.Norm(side, g, slot) / n1 - 1));
            }
          }
        }
        const std::string what =
            Name(format) + " of " + Name(element) + " " + std::string(backend->name());
        EXPECT_LE(worst_norm, 1e-6) << what;
        // Half a step of numbers of at most 1.
        EXPECT_LE(worst_direction, format.encoding == Encoding::kF32    ? 1e-6
                                   : format.encoding == Encoding::kBf16 ? 0x1p-9 + 1e-6
                                   : format.encoding == Encoding::kInt8 ? 0.5 / 127 + 1e-6
                                                                        : 16.0 / 448 + 1e-6)
            << what;
      }
    }
  }
}

TEST_P(Merge, HandlesParallelAntiparallelAndZeroVectors) {
  // Token 0: identical; 1: parallel, 2.5 times as long; 2: antiparallel; 3: lower zero; 4: upper
  // zero; 5: both zero; 6: nearly identical, sin < 1e-6.
  constexpr int kCases = 7;
  Layers x(ElementType::kF32, At(kCases, 0));
  for (Tensor* upper : {&x.k1, &x.v1}) {
    Tensor& lower = upper == &x.k1 ? x.k0 : x.v0;
    for (int head = 0; head < kHeads; ++head) {
      for (int c = 0; c < head_dim(); ++c) {
        const auto at = [&](int token) { return At(token, head) + c; };
        upper->set(at(0), lower.at(at(0)));
        upper->set(at(1), 2.5f * lower.at(at(1)));
        upper->set(at(2), -lower.at(at(2)));
        lower.set(at(3), 0);
        upper->set(at(4), 0);
        lower.set(at(5), 0);
        upper->set(at(5), -0.0f);
        upper->set(at(6), lower.at(at(6)) * (c == 0 ? 1 + 1e-7f : 1));
      }
    }
  }
  for (auto& backend : AllBackends()) {
    std::vector<float> angles(kHeads * kCases, NAN);
    backend->MergeAngles(shape(), ElementType::kF32, x.k0.data(), x.k1.data(), kCases,
                         angles.data());
    const double expected[] = {0, 0, kPi, 0, 0, 0, 0};
    for (int head = 0; head < kHeads; ++head) {
      for (int token = 0; token < kCases; ++token) {
        EXPECT_NEAR(angles[head * kCases + token], expected[token], 1e-6)
            << backend->name() << " token " << token;
      }
    }
    TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim()), 40);
    const SegmentView lower =
        TakeSegment(pool, Merged(CacheFormat::kF32), 0, kHeads, head_dim(), kCases);
    backend->WriteMerged(shape(), x.lower(), x.upper(), TokenChoice::From(0, kCases), 0.6,
                         pool.view(), lower, UpperView(lower), 0);
    const StoredSegment low(pool.view(), lower, head_dim());
    // Where t is wholly the zero vector's layer, the other's direction still stands.
    for (const auto& [t, token, layer] : {std::tuple(0.0, 3, 1), std::tuple(1.0, 4, 0)}) {
      TestPool other(CacheGeometry::DefaultBlockBytes(kHeads, head_dim()), 40);
      const SegmentView s =
          TakeSegment(other, Merged(CacheFormat::kF32), 0, kHeads, head_dim(), kCases);
      backend->WriteMerged(shape(), x.lower(), x.upper(), TokenChoice::From(0, kCases), t,
                           other.view(), s, UpperView(s), 0);
      const SegmentView of_layer = layer == 0 ? s : UpperView(s);
      const StoredSegment stored(other.view(), of_layer, head_dim());
      EXPECT_NEAR(stored.Decoded(Side::kKeys, 1, token, 2),
                  x.of(Side::kKeys, layer).at(At(token, 1) + 2), 3e-6)
          << backend->name() << " t " << t;
    }
    const SegmentView upper = UpperView(lower);
    const StoredSegment high(pool.view(), upper, head_dim());
    // Which layer's token the direction restores exactly, and with it the other's where parallel.
    for (int head = 0; head < kHeads; ++head) {
      for (Side side : kSides) {
        for (int c = 0; c < head_dim(); ++c) {
          const auto x0 = [&](int token) { return x.of(side, 0).at(At(token, head) + c); };
          const auto x1 = [&](int token) { return x.of(side, 1).at(At(token, head) + c); };
          for (int token : {0, 1, 6}) {
            EXPECT_NEAR(low.Decoded(side, head, token, c), x0(token), 3e-6) << backend->name();
            EXPECT_NEAR(high.Decoded(side, head, token, c), x1(token), 6e-6) << backend->name();
          }
          // 0.4 u0 + 0.6 u1 = 0.2 u1: the upper layer's.
          EXPECT_NEAR(high.Decoded(side, head, 2, c), x1(2), 3e-6) << backend->name();
          EXPECT_EQ(low.Decoded(side, head, 3, c), 0);
          EXPECT_NEAR(high.Decoded(side, head, 3, c), x1(3), 3e-6);
          EXPECT_NEAR(low.Decoded(side, head, 4, c), x0(4), 3e-6);
          EXPECT_EQ(high.Decoded(side, head, 4, c), 0);
          EXPECT_EQ(low.Direction(side, head, 5, c), 0);
          EXPECT_EQ(high.Decoded(side, head, 5, c), 0);
        }
      }
    }
  }
}

TEST_P(Merge, AnglesAreTheSameInEveryBackend) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const Layers x(element, At(kTokens, 0));
    std::vector<float> expected;
    for (auto& backend : AllBackends()) {
      std::vector<float> angles(kHeads * kTokens, NAN);
      backend->MergeAngles(shape(), element, x.k0.data(), x.k1.data(), kTokens, angles.data());
      if (expected.empty()) {
        expected = angles;
        // An angle computed here: that of head 2, token 7.
        double n0 = 0, n1 = 0, dot = 0;
        for (int c = 0; c < head_dim(); ++c) {
          const double a = x.k0.at(At(7, 2) + c), b = x.k1.at(At(7, 2) + c);
          n0 += a * a, n1 += b * b, dot += a * b;
        }
        EXPECT_NEAR(angles[2 * kTokens + 7], std::acos(dot / std::sqrt(n0 * n1)), 1e-6);
      }
      EXPECT_LE(Deviation(angles, expected), 1e-6) << backend->name();
    }
  }
}

TEST_P(Merge, SurvivesWhatIsNoNumber) {
  Layers x(ElementType::kF32, At(kTokens, 0));
  x.k0.set(At(3, 1), NAN);
  x.v1.set(At(4, 1), INFINITY);
  for (auto& backend : AllBackends()) {
    TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, head_dim()), 40);
    const SegmentView lower =
        TakeSegment(pool, Merged({Encoding::kInt8}), 0, kHeads, head_dim(), kTokens);
    backend->WriteMerged(shape(), x.lower(), x.upper(), TokenChoice::From(0, kTokens), 0.6,
                         pool.view(), lower, UpperView(lower), 0);
    const StoredSegment s(pool.view(), lower, head_dim());
    for (int head = 0; head < kHeads; ++head) {
      for (int token = 0; token < kTokens; ++token) {
        const bool bad = head == 1 && (token == 3 || token == 4);
        for (int c = 0; !bad && c < head_dim(); ++c) {
          ASSERT_TRUE(std::isfinite(s.Decoded(Side::kKeys, head, token, c))) << backend->name();
          ASSERT_TRUE(std::isfinite(s.Decoded(Side::kValues, head, token, c))) << backend->name();
        }
      }
    }
  }
}

TEST_P(Merge, IntoCodesOfGroupsStandsForEveryTokenToo) {
  const Layers x(ElementType::kF32, At(kTokens, 0));
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    if (format.group != 8 && format.group != 32) continue;  // time
    const int unit = format.group, count = 2 * unit;
    std::vector<int32_t> rows(2 * count);
    std::mt19937 random(5);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % kTokens);
    const TokenChoice list = TokenChoice::Listed(rows.data(), count, count);
    // Half a step of numbers between -1 and 1, and what bf16 adds.
    const double tolerance = 1.05 / ((1 << EncodingBits(format.encoding)) - 1);
    for (auto& backend : AllBackends()) {
      const CacheFormat plain = Merged(CacheFormat::kF32);
      TestCache cache(shape(), {{Merged(format), count + unit, 1, 2}, {plain, count, 1, 2}});
      const PoolView pool = cache.pool.view();
      const SegmentView &codes = cache.segments[0], &numbers = cache.segments[1];
      backend->WriteMerged(shape(), x.lower(), x.upper(), list, 0.6, pool, codes, UpperView(codes),
                           unit);
      backend->WriteMerged(shape(), x.lower(), x.upper(), list, 0.6, pool, numbers,
                           UpperView(numbers), 0);
      const StoredSegment stored(pool, codes, head_dim()), expected(pool, numbers, head_dim());
      for (int head : {1, 2}) {
        for (int i = 0; i < count; ++i) {
          for (int n = 0; n < 4; ++n) {
            ASSERT_EQ(stored.AnyNorm(n, head, unit + i), expected.AnyNorm(n, head, i))
                << Name(format) << " " << backend->name() << " token " << i;
          }
          for (Side side : kSides) {
            for (int c = 0; c < head_dim(); ++c) {
              ASSERT_NEAR(stored.Direction(side, head, unit + i, c),
                          expected.Direction(side, head, i, c), tolerance)
                  << Name(format) << " " << backend->name() << " token " << i;
            }
          }
        }
      }
    }
  }
}

// Nearly opposite vectors, whose mean points elsewhere.
TEST_P(Merge, TurnsThroughNearlyHalfACircle) {
  constexpr double kAngle = kPi - 0.004, kT = 0.25;
  Layers x(ElementType::kF32, At(1, 0));
  for (int i = 0; i < kHeads * head_dim(); ++i) {
    const int c = i % head_dim();
    const double of_upper = c == 0 ? std::cos(kAngle) : c == 1 ? std::sin(kAngle) : 0;
    for (Tensor* lower : {&x.k0, &x.v0}) lower->set(i, c == 0 ? 1.0f : 0.0f);
    for (Tensor* upper : {&x.k1, &x.v1}) upper->set(i, static_cast<float>(of_upper));
  }
  for (auto& backend : AllBackends()) {
    TestCache cache(shape(), {{Merged(CacheFormat::kF32), 1}});
    const SegmentView& lower = cache.segments[0];
    backend->WriteMerged(shape(), x.lower(), x.upper(), TokenChoice::From(0, 1), kT,
                         cache.pool.view(), lower, UpperView(lower), 0);
    const StoredSegment stored(cache.pool.view(), lower, head_dim());
    EXPECT_NEAR(stored.Direction(Side::kKeys, 1, 0, 0), std::cos(kT * kAngle), 1e-4);
    EXPECT_NEAR(stored.Direction(Side::kKeys, 1, 0, 1), std::sin(kT * kAngle), 1e-4);
  }
}

// Of the tokens of two tails those of the largest angles stay as they are in either layer.
TEST_P(Merge, OfTailsKeepsTheTokensOfTheLargestAngles) {
  constexpr int kCount = 6, kRetained = 2;
  constexpr double kAngles[kCount] = {0.3, 1.2, 0.1, 0.9, 0.2, 0.4};
  const std::vector<int> kept = {1, 3}, others = {0, 2, 4, 5};
  Layers x(ElementType::kF32, At(kCount, 0));
  for (int row = 0; row < kCount * kHeads; ++row) {
    for (int c = 0; c < head_dim(); ++c) {
      const size_t at = size_t{1} * row * head_dim() + c;
      const double angle = kAngles[row / kHeads];
      x.k0.set(at, c == 0 ? 2.0f : 0.0f);
      x.k1.set(at, static_cast<float>(c == 0 ? std::cos(angle) : c == 1 ? std::sin(angle) : 0.0));
    }
  }
  const CacheFormat format = CacheFormat::kF32;
  for (auto& backend : AllBackends()) {
    TestCache cache(
        shape(),
        {{format, kCount}, {format, kCount}, {Merged(format), 5}, {format, 4}, {format, 4}});
    const std::vector<SegmentView>& s = cache.segments;
    const PoolView pool = cache.pool.view();
    const SegmentView upper = UpperView(s[2]);
    backend->WriteTokens(shape(), x.lower(), TokenChoice::From(0, kCount), pool, s[0], 0);
    backend->WriteTokens(shape(), x.upper(), TokenChoice::From(0, kCount), pool, s[1], 0);
    const TailMerge merge = {&s[0],  &s[1], kCount, kRetained, 0.5, &s[2],
                             &upper, 1,     &s[3],  &s[4],     2};
    backend->MergeTails(shape(), pool, {&merge, 1});
    for (int layer : {0, 1}) {
      const StoredSegment retained(pool, s[3 + layer], head_dim());
      const StoredSegment merged(pool, layer == 0 ? s[2] : upper, head_dim());
      for (int head = 0; head < kHeads; ++head) {
        for (Side side : kSides) {
          for (int i = 0; i < kRetained; ++i) {
            EXPECT_EQ(retained.Decoded(side, head, 2 + i, 1),
                      x.of(side, layer).at(At(kept[i], head) + 1))
                << backend->name();
          }
        }
        for (int i = 0; i < kCount - kRetained; ++i) {
          const double angle = kAngles[others[i]] / 2;
          EXPECT_NEAR(merged.Direction(Side::kKeys, head, 1 + i, 1), std::sin(angle), 1e-5);
          EXPECT_NEAR(merged.Norm(Side::kKeys, head, 1 + i), layer == 0 ? 2 : 1, 1e-6);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, Merge, testing::ValuesIn(HeadSizes()),
                         [](const auto& instance) { return std::to_string(instance.param); });

}  // namespace
}  // namespace ziggurat
