// The codes themselves, number by number, against definitions written here a second time.

#include "attention/quantization.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/cpu/write_kernels.h"
#include "gtest/gtest.h"

namespace ziggurat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- e4m3 --------------------------------------------------------------------------------------

/// The standard's words: exponent 0 is subnormal, exponent 15 with mantissa 7 no number.
double E4m3Value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest of all codes, the even one of two that are as near.
uint8_t NearestE4m3(double x) {
  const int sign = std::signbit(x) ? 0x80 : 0;
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double nearer =
        std::abs(E4m3Value(best) - std::abs(x)) - std::abs(E4m3Value(code) - std::abs(x));
    if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(sign | best);
}

TEST(FloatToBf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3f80) << "halfway to 1.0078125: even is below";
  EXPECT_EQ(FloatToBf16(1.01171875f), 0x3f82) << "halfway: even is above";
  EXPECT_EQ(FloatToBf16(std::nextafter(1.00390625f, 2.0f)), 0x3f81);
  EXPECT_EQ(FloatToBf16(-1.00390625f), 0xbf80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80) << "becomes infinite";
  EXPECT_EQ(FloatToBf16(kInfinity), 0x7f80);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(kNaN))));
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7fffffffu)))));
}

TEST(E4m3, DecodesEveryCodeAsTheStandardSays) {
  for (int code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, E4m3Value(code)) << code;
      EXPECT_EQ(FloatToE4m3(value), code);
    }
  }
}

TEST(E4m3, RoundsToTheNearestAndHalvesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(E4m3Value(code));
    const auto high = static_cast<float>(E4m3Value(code + 1));
    const float half = (low + high) / 2;
    EXPECT_EQ(FloatToE4m3(half), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(FloatToE4m3(std::nextafter(half, low)), code);
    EXPECT_EQ(FloatToE4m3(std::nextafter(half, high)), code + 1);
    EXPECT_EQ(FloatToE4m3(-std::nextafter(half, high)), 0x80 + code + 1);
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> mantissa(1, 2);
  for (int exponent = -30; exponent < 9; ++exponent) {
    for (int i = 0; i < 100; ++i) {
      const float x = std::ldexp(mantissa(random), exponent) * (i % 2 == 0 ? 1.0f : -1.0f);
      EXPECT_EQ(FloatToE4m3(x), NearestE4m3(x)) << x;
    }
  }
}

TEST(E4m3, SaturatesAndKeepsNaN) {
  for (float x : {448.0f, 448.5f, 463.0f, 464.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(FloatToE4m3(x), 0x7e) << x;
    EXPECT_EQ(FloatToE4m3(-x), 0xfe) << -x;
  }
  EXPECT_EQ(FloatToE4m3(kNaN) & 0x7f, 0x7f);
  EXPECT_EQ(FloatToE4m3(-0.0f), 0x80);
}

// ---- Codes of a token --------------------------------------------------------------------------

TEST(TokenCodes, AreRoundedHalfToEvenAndSymmetric) {
  EXPECT_EQ(TokenScale(Encoding::kInt8, 254), 2);
  EXPECT_EQ(TokenScale(Encoding::kFp8, 896), 2);
  const std::vector<std::pair<float, int>> cases = {{254, 127}, {-254, -127}, {5, 2}, {7, 4},
                                                    {-5, -2},   {0.9f, 0},    {1, 0}, {3, 2}};
  for (const auto& [x, code] : cases) EXPECT_EQ(Int8Code(x, 2), code) << x;
  EXPECT_EQ(Fp8Code(896, 2), 0x7e);
  EXPECT_EQ(Fp8Code(-3, 2), FloatToE4m3(-1.5f));
}

TEST(TokenCodes, OfZerosAndOfWhatIsNoNumberAreZero) {
  EXPECT_EQ(Int8Code(0, 0), 0);
  EXPECT_EQ(Fp8Code(0, 0), 0);
  EXPECT_EQ(Int8Code(kNaN, 1), 0);
  EXPECT_EQ(Fp8Code(kNaN, 1), 0);
  EXPECT_EQ(Int8Code(kInfinity, kInfinity), 0);
  EXPECT_EQ(Int8Code(1, kInfinity), 0);
  const float mixed[] = {kNaN, -3, kNaN, 2};
  EXPECT_EQ(LargestMagnitude(mixed, 4), 3);  // a NaN does not spread
}

// ---- Codes of a group --------------------------------------------------------------------------

TEST(GroupCodes, SpreadEvenlyFromTheLowestToTheHighest) {
  const float x[] = {-1, 2, 0.5f, 0.25f, 0.75f};
  const auto keep = [](float number) { return number; };
  const GroupScale two_bits = GroupScaleOf(x, 5, 1, 2, keep);
  EXPECT_EQ(two_bits.zero, -1);
  EXPECT_EQ(two_bits.scale, 1);
  // (x - zero) / scale = 0, 3, 1.5, 1.25, 1.75: one and a half is rounded to the even two.
  const int expected[] = {0, 3, 2, 1, 2};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(GroupCode(x[i], two_bits, 2), expected[i]);
  const GroupScale four_bits = GroupScaleOf(x, 5, 1, 4, keep);
  EXPECT_EQ(four_bits.scale, 0.2f);
}

TEST(GroupCodes, AreMadeFromTheRoundedScaleAndZero) {
  // In bf16 0.1 is 0.10009765625 and 1/3 is 0.333984375.
  const float x[] = {0.1f, 1.1f, 0.6f};
  const GroupScale group = GroupScaleOf(x, 3, 1, 2);
  EXPECT_EQ(group.zero, 0.10009765625f);
  EXPECT_EQ(group.scale, 0.333984375f);
  EXPECT_EQ(GroupCode(0.1f, group, 2), 0);  // below zero by rounding: clamped
  EXPECT_EQ(GroupCode(1.1f, group, 2), 3);
  // Clamped where the rounded scale is too small for the highest: 3.01 of 3.
  EXPECT_EQ(GroupCode(100, group, 2), 3);
}

TEST(GroupCodes, OfAConstantGroupAreZero) {
  const float x[] = {0.3f, 0.3f, 0.3f};
  const GroupScale group = GroupScaleOf(x, 3, 1, 4);
  EXPECT_EQ(group.scale, 0);
  EXPECT_EQ(group.zero, Bf16ToFloat(FloatToBf16(0.3f)));
  for (float value : x) EXPECT_EQ(GroupCode(value, group, 4), 0);
  const float zeros[] = {-0.0f, -0.0f};
  EXPECT_FALSE(std::signbit(GroupScaleOf(zeros, 2, 1, 4).zero));
}

TEST(GroupCodes, LeaveOutWhatIsNoNumber) {
  const float x[] = {kNaN, 0, 3, kNaN};
  const GroupScale group = GroupScaleOf(x, 4, 1, 2);
  EXPECT_EQ(group.zero, 0);
  EXPECT_EQ(group.scale, 1);
  EXPECT_EQ(GroupCode(kNaN, group, 2), 0);
  const float infinite[] = {0, kInfinity};
  const GroupScale lost = GroupScaleOf(infinite, 2, 1, 2);
  EXPECT_FALSE(std::isfinite(lost.scale));
  EXPECT_EQ(GroupCode(kInfinity, lost, 2), 0);
  EXPECT_EQ(GroupCode(0, lost, 2), 0);
}

// ---- The vectorised codes are the same, bit for bit --------------------------------------------

/// Numbers of many sizes, with halves, zeros of both signs, and (if asked) what is no number.
std::vector<float> AwkwardNumbers(size_t count, uint32_t seed, bool finite) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  const float odd[] = {0.0f, -0.0f, 1e-42f, -3e-39f, 1.5f, -2.5f, 3e38f, -3e38f};
  const float wrong[] = {kNaN, kInfinity, -kInfinity, -kNaN};
  for (float& value : x) {
    value = std::ldexp(normal(random), static_cast<int>(random() % 4));
    if (random() % 8 == 0) value = std::round(value * 4) / 4;
    if (random() % 64 == 0) value = odd[random() % 6];
    if (!finite && random() % 512 == 0) value = odd[6 + random() % 2];
    if (!finite && random() % 128 == 0) value = wrong[random() % 4];
  }
  return x;
}

TEST(WriteKernels, GiveTheDefinedCodesOfATokenBitForBit) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2";
  const cpu::WriteKernels& kernels = cpu::Avx2WriteKernels();
  for (int head_dim : {4, 8, 12, 16, 64, 80, 96, 128, 256}) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
      std::vector<float> x = AwkwardNumbers(head_dim, seed, seed % 2 == 0);
      if (seed % 50 == 2) std::fill(x.begin(), x.end(), seed % 4 == 0 ? 0.0f : -0.0f);
      for (Encoding encoding : {Encoding::kInt8, Encoding::kFp8}) {
        const bool int8 = encoding == Encoding::kInt8;
        std::vector<uint8_t> codes(head_dim + 1, 0xaa);
        const float scale =
            (int8 ? kernels.encode_int8 : kernels.encode_fp8)(x.data(), head_dim, codes.data());
        const float expected = TokenScale(encoding, LargestMagnitude(x.data(), head_dim));
        ASSERT_EQ(std::memcmp(&scale, &expected, 4), 0) << scale << " instead of " << expected;
        for (int c = 0; c < head_dim; ++c) {
          const uint8_t code =
              int8 ? static_cast<uint8_t>(Int8Code(x[c], scale)) : Fp8Code(x[c], scale);
          ASSERT_EQ(codes[c], code) << EncodingName(encoding) << " of " << x[c] << " by " << scale;
        }
        ASSERT_EQ(codes[head_dim], 0xaa) << "written past the token";
      }
    }
  }
}

TEST(WriteKernels, GiveTheDefinedCodesOfAGroupBitForBit) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2";
  const cpu::WriteKernels& kernels = cpu::Avx2WriteKernels();
  for (int bits : {4, 2}) {
    for (int head_dim : {16, 64, 80, 96, 128, 256}) {
      for (int group : {8, 16, 32, 64, 128}) {
        if (head_dim % group != 0) continue;
        for (uint32_t seed = 0; seed < 20; ++seed) {
          std::vector<float> x =
              AwkwardNumbers(static_cast<size_t>(group) * head_dim, seed, seed % 2 == 0);
          if (seed == 6) std::fill(x.begin(), x.end(), -0.0f);
          if (seed == 7) std::fill(x.begin(), x.end(), 0.7f);  // in bf16 less
          std::vector<uint16_t> scales(head_dim), zeros(head_dim);
          std::vector<uint32_t> cells(static_cast<size_t>(head_dim) * bits / 32 * group);
          kernels.encode_keys(x.data(), group, head_dim, bits, scales.data(), zeros.data(),
                              cells.data());
          const int per_cell = 32 / bits;
          for (int c = 0; c < head_dim; ++c) {
            const GroupScale expected = GroupScaleOf(x.data() + c, group, head_dim, bits);
            ASSERT_EQ(scales[c], FloatToBf16(expected.scale)) << "channel " << c;
            ASSERT_EQ(zeros[c], FloatToBf16(expected.zero)) << "channel " << c;
            for (int t = 0; t < group; ++t) {
              const uint32_t cell = cells[c / per_cell * group + t];
              ASSERT_EQ(cell >> (c % per_cell * bits) & LargestCode(bits),
                        GroupCode(x[t * head_dim + c], expected, bits));
            }
          }
          std::vector<std::byte> codes(static_cast<size_t>(head_dim) * bits / 8);
          kernels.encode_value(x.data(), group, head_dim, bits, scales.data(), zeros.data(),
                               codes.data());
          for (int c = 0; c < head_dim; ++c) {
            const GroupScale expected = GroupScaleOf(x.data() + c / group * group, group, 1, bits);
            ASSERT_EQ(scales[c / group], FloatToBf16(expected.scale)) << "channel " << c;
            ASSERT_EQ(zeros[c / group], FloatToBf16(expected.zero)) << "channel " << c;
            const int code = std::to_integer<int>(codes[c * bits / 8]) >> (c * bits % 8);
            ASSERT_EQ(code & LargestCode(bits), GroupCode(x[c], expected, bits));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat
