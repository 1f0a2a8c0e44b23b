#include "model/checkpoint/tensor_conversion.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "attention/bfloat16.h"
#include "model/absl_view.h"

namespace ziggurat {

namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint16_t kBf16InfinityBits = 0x7f80u;

// The loops below read element by element through memcpy (tensors may be unaligned), have no
// branches and no early end: the compiler turns them into vector code. Only when a whole tensor
// has been found to hold something that is not finite is it searched for the element.

template <typename T>
T Load(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

/// All ones where `condition` holds: a selection that no compiler turns into a branch.
inline uint32_t Mask(bool condition) { return 0u - static_cast<uint32_t>(condition); }

/// The bits of the f32 of the same value. The exponent moves from bias 15 to bias 127, and that of
/// infinity and NaN from 31 to 255: twice 112. A subnormal half becomes a normal number: its bits
/// are put behind 2^-14's, which then is subtracted.
inline uint32_t F32BitsFromF16(uint16_t half) {
  constexpr uint32_t kRebias = 112u << 23;
  constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t normal = magnitude + kRebias + (kRebias & Mask(magnitude >= (31u << 23)));
  const uint32_t subnormal = std::bit_cast<uint32_t>(
      std::bit_cast<float>(magnitude + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
  const uint32_t is_subnormal = Mask(magnitude < (1u << 23));
  return sign | (subnormal & is_subnormal) | (normal & ~is_subnormal);
}

inline uint32_t RoundedToBf16(uint32_t bits) {
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

/// Each of these returns the largest magnitude, as bits; infinity or above: something is not
/// finite.
uint32_t F32FromF32(const std::byte* data, size_t count, float* out) {
  std::memcpy(out, data, count * sizeof(float));
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(out[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

uint32_t F32FromF16(const std::byte* data, size_t count, float* out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = F32BitsFromF16(Load<uint16_t>(data, i));
    out[i] = std::bit_cast<float>(bits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

uint32_t F32FromBf16Tensor(const std::byte* data, size_t count, float* out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(data, i)) << 16;
    out[i] = std::bit_cast<float>(bits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

uint16_t Bf16FromBf16(const std::byte* data, size_t count, uint16_t* out) {
  std::memcpy(out, data, count * sizeof(uint16_t));
  uint16_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint16_t magnitude = out[i] & 0x7fffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Rounding carries a NaN's bits at most into the sign, so the check is made before it, too.
template <typename Bits32>
uint16_t RoundAll(size_t count, uint16_t* out, Bits32 bits_of) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(i);
    const uint32_t magnitude = bits & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
    out[i] = static_cast<uint16_t>(RoundedToBf16(bits));
  }
  if (largest >= kInfinityBits) return kBf16InfinityBits;
  return static_cast<uint16_t>(RoundedToBf16(largest));
}

float ElementAt(const TensorView& tensor, size_t index) {
  switch (tensor.dtype) {
    case DType::kF16:
      return FloatFromF16(Load<uint16_t>(tensor.data, index));
    case DType::kBf16:
      return Bf16ToFloat(Load<uint16_t>(tensor.data, index));
    default:
      return Load<float>(tensor.data, index);
  }
}

absl::Status NotFinite(std::string_view name, const TensorView& tensor, const TensorView& whole,
                       bool as_bf16) {
  const auto count = static_cast<size_t>(tensor.num_elements());
  for (size_t i = 0; i < count; ++i) {
    const float value = ElementAt(tensor, i);
    const float stored = as_bf16 ? Bf16ToFloat(FloatToBf16(value)) : value;
    if ((std::bit_cast<uint32_t>(stored) & 0x7fffffffu) < kInfinityBits) continue;
    const size_t before = (tensor.data - whole.data) / DTypeBytes(tensor.dtype);
    return absl::DataLossError(absl::StrCat("tensor \"", AbslView(name), "\": element ", before + i,
                                            " of ", whole.ShapeString(), " is ", value,
                                            as_bf16 ? ", not a finite bf16" : ", not finite"));
  }
  return absl::DataLossError(
      absl::StrCat("tensor \"", AbslView(name), "\" changed while it was read"));
}

absl::Status WrongDType(std::string_view name, const TensorView& tensor) {
  return absl::UnimplementedError(absl::StrCat("tensor \"", AbslView(name), "\" has dtype ",
                                               AbslView(DTypeName(tensor.dtype)),
                                               "; supported are F32, F16 and BF16"));
}

absl::Status CheckSize(std::string_view name, const TensorView& tensor, size_t out_size) {
  if (static_cast<size_t>(tensor.num_elements()) == out_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", AbslView(name), "\" has the shape ",
                                                 tensor.ShapeString(), ", room is for ", out_size,
                                                 " elements"));
}

}  // namespace

float FloatFromF16(uint16_t bits) { return std::bit_cast<float>(F32BitsFromF16(bits)); }

absl::Status ConvertToF32(std::string_view name, const TensorView& tensor, absl::Span<float> out,
                          const TensorView* whole) {
  if (absl::Status status = CheckSize(name, tensor, out.size()); !status.ok()) return status;
  if (out.empty()) return absl::OkStatus();
  uint32_t largest = 0;
  switch (tensor.dtype) {
    case DType::kF32:
      largest = F32FromF32(tensor.data, out.size(), out.data());
      break;
    case DType::kF16:
      largest = F32FromF16(tensor.data, out.size(), out.data());
      break;
    case DType::kBf16:
      largest = F32FromBf16Tensor(tensor.data, out.size(), out.data());
      break;
    default:
      return WrongDType(name, tensor);
  }
  if (largest >= kInfinityBits) {
    return NotFinite(name, tensor, whole == nullptr ? tensor : *whole, /*as_bf16=*/false);
  }
  return absl::OkStatus();
}

absl::Status ConvertToBf16(std::string_view name, const TensorView& tensor,
                           absl::Span<uint16_t> out, const TensorView* whole) {
  if (absl::Status status = CheckSize(name, tensor, out.size()); !status.ok()) return status;
  if (out.empty()) return absl::OkStatus();
  const std::byte* data = tensor.data;
  uint16_t largest = 0;
  switch (tensor.dtype) {
    case DType::kF32:
      largest = RoundAll(out.size(), out.data(), [=](size_t i) { return Load<uint32_t>(data, i); });
      break;
    case DType::kF16:
      largest = RoundAll(out.size(), out.data(),
                         [=](size_t i) { return F32BitsFromF16(Load<uint16_t>(data, i)); });
      break;
    case DType::kBf16:
      largest = Bf16FromBf16(data, out.size(), out.data());
      break;
    default:
      return WrongDType(name, tensor);
  }
  if (largest >= kBf16InfinityBits) {
    return NotFinite(name, tensor, whole == nullptr ? tensor : *whole, /*as_bf16=*/true);
  }
  return absl::OkStatus();
}

}  // namespace ziggurat
