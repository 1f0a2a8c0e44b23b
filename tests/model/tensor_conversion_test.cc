#include "model/checkpoint/tensor_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A tensor that begins at an odd address, as it may in a file.
template <typename T>
struct Unaligned {
  Unaligned(DType dtype, const std::vector<T>& values) : bytes(values.size() * sizeof(T) + 1) {
    std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
    view = {dtype, {static_cast<int64_t>(values.size())}, bytes.data() + 1, bytes.size() - 1};
  }
  std::vector<std::byte> bytes;
  TensorView view;
};

/// The value that IEEE 754 gives these bits of a half, from its definition.
float HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent == 31
                              ? (mantissa == 0 ? kInfinity : std::nanf(""))
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(FloatFromF16, IsExactForAllHalves) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float expected = HalfByDefinition(static_cast<uint16_t>(bits));
    const float value = FloatFromF16(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(Conversion, GivesTheSameValuesFromEveryDtype) {
  const std::vector<float> values = {0, -0.0f, 1, -2.5f, 0.15625f, 96, -0.0078125f};
  std::vector<uint16_t> half = {0, 0x8000, 0x3c00, 0xc100, 0x3100, 0x5600, 0xa000};
  std::vector<uint16_t> bf16;
  for (const float value : values) bf16.push_back(FloatToBf16(value));
  const Unaligned<float> as_f32(DType::kF32, values);
  const Unaligned<uint16_t> as_f16(DType::kF16, half);
  const Unaligned<uint16_t> as_bf16(DType::kBf16, bf16);
  for (const TensorView* tensor : {&as_f32.view, &as_f16.view, &as_bf16.view}) {
    std::vector<float> f32(values.size());
    ASSERT_TRUE(ConvertToF32("w", *tensor, absl::MakeSpan(f32)).ok());
    EXPECT_EQ(f32, values);
    std::vector<uint16_t> rounded(values.size());
    ASSERT_TRUE(ConvertToBf16("w", *tensor, absl::MakeSpan(rounded)).ok());
    EXPECT_EQ(rounded, bf16);
  }
}

TEST(Conversion, RoundsManyLikeOne) {
  std::vector<float> values;
  for (uint32_t i = 0; i < 5003; ++i) {
    values.push_back(std::bit_cast<float>((i * 2654435761u) & 0xbf7fffffu));
  }
  const Unaligned<float> tensor(DType::kF32, values);
  std::vector<uint16_t> rounded(values.size());
  ASSERT_TRUE(ConvertToBf16("w", tensor.view, absl::MakeSpan(rounded)).ok());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i], FloatToBf16(values[i])) << i;
}

TEST(Conversion, RefusesWhatIsNotFiniteAndNamesIt) {
  for (const float bad :
       {kInfinity, -kInfinity, std::nanf(""), std::bit_cast<float>(0xffffffffu)}) {
    std::vector<float> values(100, 1.0f);
    values[77] = bad;
    const Unaligned<float> tensor(DType::kF32, values);
    std::vector<float> f32(100);
    std::vector<uint16_t> bf16(100);
    for (const absl::Status& status :
         {ConvertToF32("layer.w", tensor.view, absl::MakeSpan(f32)),
          ConvertToBf16("layer.w", tensor.view, absl::MakeSpan(bf16))}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr("\"layer.w\": element 77 of [100]"));
    }
  }
  for (const auto& [dtype, bits] :
       {std::pair{DType::kF16, uint16_t{0x7c00}}, std::pair{DType::kF16, uint16_t{0xfe01}},
        std::pair{DType::kBf16, uint16_t{0xff80}}, std::pair{DType::kBf16, uint16_t{0x7fff}}}) {
    const Unaligned<uint16_t> tensor(dtype, {0, 0, bits});
    std::vector<float> f32(3);
    std::vector<uint16_t> bf16(3);
    EXPECT_FALSE(ConvertToF32("w", tensor.view, absl::MakeSpan(f32)).ok());
    EXPECT_FALSE(ConvertToBf16("w", tensor.view, absl::MakeSpan(bf16)).ok());
  }
}

TEST(Conversion, OfRowsNamesTheElementOfTheWholeTensor) {
  constexpr int kRows = 6, kWidth = 5;
  std::vector<float> values(kRows * kWidth, 1.0f);
  values[23] = kInfinity;
  Unaligned<float> tensor(DType::kF32, values);
  tensor.view.shape = {kRows, kWidth};
  for (int row = 0; row < kRows; row += 2) {
    const TensorView part = tensor.view.Rows(row, 2);
    std::vector<float> f32(2 * kWidth);
    std::vector<uint16_t> bf16(2 * kWidth);
    for (const absl::Status& status :
         {ConvertToF32("w", part, absl::MakeSpan(f32), &tensor.view),
          ConvertToBf16("w", part, absl::MakeSpan(bf16), &tensor.view)}) {
      EXPECT_EQ(status.ok(), row < 4);
      if (row < 4) continue;
      EXPECT_THAT(std::string(status.message()), HasSubstr("\"w\": element 23 of [6, 5] is inf"));
    }
  }
}

TEST(Conversion, RefusesWhatOnlyBf16CannotHold) {
  const Unaligned<float> tensor(DType::kF32, {1, std::numeric_limits<float>::max()});
  std::vector<float> f32(2);
  std::vector<uint16_t> bf16(2);
  EXPECT_TRUE(ConvertToF32("w", tensor.view, absl::MakeSpan(f32)).ok());
  EXPECT_EQ(ConvertToBf16("w", tensor.view, absl::MakeSpan(bf16)).code(),
            absl::StatusCode::kDataLoss);
}

TEST(Conversion, RefusesOtherDtypesAndSizes) {
  const Unaligned<uint16_t> tensor(DType::kI16, {1, 2});
  std::vector<float> f32(2);
  const absl::Status status = ConvertToF32("w", tensor.view, absl::MakeSpan(f32));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("I16"));
  EXPECT_EQ(ConvertToF32("w", tensor.view, absl::MakeSpan(f32.data(), 1)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ziggurat
