// The operations between the GEMMs.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

class ElementwiseTwins : public testing::TestWithParam<ElementType> {
 protected:
  /// Runs `call(backend, out)` on the reference and on every level.
  template <typename Call>
  void ExpectTwins(const char* what, ElementType out_element, size_t out_size, Call call) {
    LargestDeviation seen(std::string(what) + " " + Name(GetParam()) + " to " + Name(out_element));
    Tensor expected(out_element, out_size);
    call(*MakeReferenceBackend(), expected.data());
    for (CpuLevel level : SupportedCpuLevels()) {
      for (int threads : {1, 3}) {
        auto backend = *MakeCpuBackend(level, threads);
        Tensor actual(out_element, out_size);
        call(*backend, actual.data());
        const double deviation = Deviation(actual.floats(), expected.floats());
        seen.See(deviation);
        EXPECT_LE(deviation, Tolerance(out_element)) << backend->name();
      }
    }
  }
};

TEST_P(ElementwiseTwins, RmsNormAgrees) {
  for (int width : {8, 100, 128, 264, 2049, 4096, 16388}) {
    const Tensor x = RandomTensor(ElementType::kF32, 33 * width, 1, 3);
    const Tensor weight = RandomTensor(ElementType::kF32, width, 2);
    ExpectTwins("rms norm", GetParam(), x.size(), [&](AttentionBackend& backend, void* out) {
      backend.RmsNorm(static_cast<const float*>(x.data()), static_cast<const float*>(weight.data()),
                      1e-5f, 33, width, GetParam(), out);
    });
  }
}

TEST_P(ElementwiseTwins, SwiGluAgrees) {
  for (int width : {1, 17, 384, 1365}) {
    const Tensor gate_up = RandomTensor(GetParam(), 2 * 20 * width, 1, 8);
    ExpectTwins("swiglu", GetParam(), 20 * width, [&](AttentionBackend& backend, void* out) {
      backend.SwiGlu(GetParam(), gate_up.data(), 20, width, out);
    });
  }
}

TEST_P(ElementwiseTwins, SplitAndRotateAgrees) {
  for (int head_dim : {8, 24, 64, 80, 256}) {
    const AttentionShape shape = Shape(6, 2, head_dim);
    constexpr int kRows = 37;
    const Tensor qkv = RandomTensor(GetParam(), kRows * 10 * head_dim, 1);
    const Tensor angles = RandomTensor(ElementType::kF32, kRows * head_dim / 2, 2, 3);
    std::vector<float> cos = angles.floats(), sin = angles.floats();
    for (float& x : cos) x = std::cos(x);
    for (float& x : sin) x = std::sin(x);
    for (ElementType to : {ElementType::kF32, ElementType::kBf16}) {
      const size_t q_bytes = kRows * 6 * head_dim * ElementBytes(to), kv_bytes = q_bytes / 3;
      ExpectTwins("rope", to, kRows * 10 * head_dim, [&](AttentionBackend& backend, void* out) {
        auto* bytes = static_cast<std::byte*>(out);
        backend.SplitAndRotate(shape, GetParam(), qkv.data(), cos.data(), sin.data(), kRows, to,
                               bytes, bytes + q_bytes, bytes + q_bytes + kv_bytes);
      });
    }
  }
}

TEST_P(ElementwiseTwins, EmbedTokensIsExact) {
  constexpr int kVocabulary = 50;
  for (const auto& [width, tokens] : {std::pair{1, 3}, {40, 1}, {136, 700}, {1100, 37}}) {
    const Tensor table = RandomTensor(GetParam(), size_t{1} * kVocabulary * width, 1);
    std::mt19937 random(2);
    std::vector<int32_t> ids(tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
    ids.back() = kVocabulary - 1;
    for (auto& backend : AllBackends()) {
      std::vector<float> out(size_t{1} * tokens * width, NAN);
      backend->EmbedTokens(GetParam(), table.data(), ids, width, out.data());
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], table.at(size_t{1} * ids[i / width] * width + i % width))
            << backend->name() << " token " << i / width << " of width " << width;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, ElementwiseTwins,
                         testing::Values(ElementType::kF32, ElementType::kBf16),
                         [](const auto& instance) { return Name(instance.param); });

// RoPE by its definition: channel i and i + D/2 are the two coordinates of a plane.
TEST(SplitAndRotate, TurnsTheHalvesAsOnePlane) {
  const AttentionShape shape = Shape(1, 1, 8);
  std::vector<float> qkv(24), q(8), k(8), v(8);
  std::iota(qkv.begin(), qkv.end(), 1.0f);
  const std::vector<float> angle = {0.0f, 0.5f, 1.0f, 2.0f};
  std::vector<float> cos(4), sin(4);
  for (int i = 0; i < 4; ++i) {
    cos[i] = std::cos(angle[i]);
    sin[i] = std::sin(angle[i]);
  }
  for (auto& backend : BackendsWith(1)) {
    backend->SplitAndRotate(shape, ElementType::kF32, qkv.data(), cos.data(), sin.data(), 1,
                            ElementType::kF32, q.data(), k.data(), v.data());
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(q[i], qkv[i] * cos[i] - qkv[i + 4] * sin[i], 1e-5) << backend->name();
      EXPECT_NEAR(q[i + 4], qkv[i + 4] * cos[i] + qkv[i] * sin[i], 1e-5);
      EXPECT_NEAR(k[i], qkv[8 + i] * cos[i] - qkv[12 + i] * sin[i], 1e-5);
      EXPECT_EQ(v[i], qkv[16 + i]);
    }
  }
}

// Of rows so small that the epsilon is most of what the root is taken of.
TEST(RmsNorm, AddsTheEpsilonToTheMeanOfTheSquares) {
  constexpr int kWidth = 20;
  const std::vector<float> x(2 * kWidth, 1e-3f), weight(kWidth, 4.0f);
  for (auto& backend : AllBackends()) {
    std::vector<float> out(x.size());
    backend->RmsNorm(x.data(), weight.data(), 3e-6f, 2, kWidth, ElementType::kF32, out.data());
    for (const float y : out) EXPECT_NEAR(y, 2, 1e-5) << backend->name();  // 4e-3 / sqrt(4e-6)
  }
}

// Whose exponentials are more, or less, than f32 has.
TEST(SwiGlu, SurvivesGatesOfAnySize) {
  const std::vector<float> gates = {-1e30f, -1000, -200, -100, 100, 200, 1000, 1e30f};
  const int width = static_cast<int>(gates.size());
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    Tensor gate_up(element, 2 * gates.size());
    for (int i = 0; i < width; ++i) {
      gate_up.set(i, gates[i]);
      gate_up.set(width + i, 2);
    }
    for (auto& backend : AllBackends()) {
      Tensor out(element, gates.size());
      backend->SwiGlu(element, gate_up.data(), 1, width, out.data());
      for (int i = 0; i < width; ++i) {
        EXPECT_NEAR(out.at(i), gates[i] < 0 ? 0 : 2 * gate_up.at(i), 1e-30) << backend->name();
      }
    }
  }
}

// Angles of many turns: in float they would be wrong in the third digit.
TEST(FillAngles, GivesTheCosinesAndSinesOfEveryPosition) {
  for (const int width : {1, 4, 64}) {
    std::vector<float> frequencies(width);  // of rope_theta = 500,000
    for (int i = 0; i < width; ++i) {
      frequencies[i] = static_cast<float>(std::pow(500000.0, -static_cast<double>(i) / width));
    }
    for (const auto& [first, count] : {std::pair{0, 300}, {7, 1}, {100000, 301}, {1048575, 2}}) {
      std::vector<float> expected_cos, expected_sin;
      for (int position = first; position < first + count; ++position) {
        for (const float frequency : frequencies) {
          expected_cos.push_back(static_cast<float>(std::cos(double{frequency} * position)));
          expected_sin.push_back(static_cast<float>(std::sin(double{frequency} * position)));
        }
      }
      for (auto& backend : AllBackends()) {
        std::vector<float> cos(expected_cos.size(), NAN), sin(cos);
        backend->FillAngles(frequencies, first, count, cos.data(), sin.data());
        for (size_t i = 0; i < cos.size(); ++i) {
          ASSERT_NEAR(cos[i], expected_cos[i], 1e-7) << backend->name() << " from " << first;
          ASSERT_NEAR(sin[i], expected_sin[i], 1e-7) << backend->name() << " from " << first;
        }
      }
    }
  }
}

TEST(Convert, RoundsToNearestEvenAndKeepsNan) {
  // 1 + 2^-8 lies half way between two bf16 and goes to the even one, 1 + 3 * 2^-8 likewise.
  const std::vector<float> x = {1.0f,       1.00390625f, 1.01171875f, -1.00390625f,
                                1.0039065f, INFINITY,    -INFINITY,   NAN,
                                3.4e38f,    1e-40f,      -0.0f};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0xbf80, 0x3f81, 0x7f80,
                                          0xff80, 0x7fc0, 0x7f80, 0x0001, 0x8000};
  for (auto& backend : BackendsWith(1)) {
    std::vector<uint16_t> out(x.size());
    backend->Convert(ElementType::kF32, x.data(), x.size(), ElementType::kBf16, out.data());
    EXPECT_EQ(out, expected) << backend->name();
  }
}

TEST(Convert, IsBitExactOnEveryLevelInBothDirections) {
  std::mt19937 random(1);
  std::vector<uint32_t> bits(100003);
  for (uint32_t& b : bits) b = random();  // every kind of float
  std::vector<uint16_t> expected(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) expected[i] = FloatToBf16(std::bit_cast<float>(bits[i]));
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int threads : {1, 3}) {
      auto backend = *MakeCpuBackend(level, threads);
      std::vector<uint16_t> halves(bits.size());
      std::vector<uint32_t> back(bits.size());
      backend->Convert(ElementType::kF32, bits.data(), bits.size(), ElementType::kBf16,
                       halves.data());
      EXPECT_TRUE(halves == expected) << backend->name();
      backend->Convert(ElementType::kBf16, halves.data(), halves.size(), ElementType::kF32,
                       back.data());
      for (size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], uint32_t{halves[i]} << 16) << i;
    }
  }
}

TEST(MakeCpuBackend, RefusesNoThreads) {
  ASSERT_TRUE(DetectCpuLevel().ok());
  EXPECT_EQ(MakeCpuBackend(*DetectCpuLevel(), 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MakeCpuBackend(*DetectCpuLevel(), 1).ok());
}

}  // namespace
}  // namespace ziggurat
