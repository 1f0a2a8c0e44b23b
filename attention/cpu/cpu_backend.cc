#include "attention/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/parallel.h"

namespace ziggurat {

absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCpuBackend(CpuLevel level, int threads) {
  if (threads < 1) return absl::InvalidArgumentError("threads must be at least 1");
  if (const auto levels = SupportedCpuLevels();
      std::find(levels.begin(), levels.end(), level) == levels.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this CPU lacks the instructions of the level ", CpuLevelName(level)));
  }
  return std::make_unique<cpu::CpuBackend>(absl::StrCat("cpu-", CpuLevelName(level)),
                                           cpu::KernelsOf(level), threads);
}

namespace cpu {

static_assert(kF32Blocks == static_cast<int>(Encoding::kF32));
static_assert(kBf16Blocks == static_cast<int>(Encoding::kBf16));
static_assert(kInt8Blocks == static_cast<int>(Encoding::kInt8));
static_assert(kFp8Blocks == static_cast<int>(Encoding::kFp8));
static_assert(kInt4Blocks == static_cast<int>(Encoding::kInt4));
static_assert(kInt2Blocks == static_cast<int>(Encoding::kInt2));

void CpuBackend::RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                         ElementType element, void* out) {
  const size_t row_bytes = width * ElementBytes(element);
  ParallelRanges(threads_, rows, width, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      Kernels(element).rms_norm(x + r * width, weight, epsilon, width,
                                static_cast<std::byte*>(out) + r * row_bytes);
    }
  });
}

void CpuBackend::SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                                const float* cos, const float* sin, int rows,
                                ElementType out_element, void* q, void* k, void* v) {
  const int dim = shape.head_dim;
  const size_t q_heads = shape.num_q_heads, kv_heads = shape.num_kv_heads;
  const size_t from_bytes = dim * ElementBytes(element);
  const size_t to_bytes = dim * ElementBytes(out_element);
  const auto rotate = Kernels(element).rotate[static_cast<int>(out_element)];
  const size_t row_elements = (q_heads + 2 * kv_heads) * dim;
  ParallelRanges(threads_, rows, row_elements, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const auto* from =
          static_cast<const std::byte*>(qkv) + r * row_elements * ElementBytes(element);
      auto* q_row = static_cast<std::byte*>(q) + r * q_heads * to_bytes;
      auto* k_row = static_cast<std::byte*>(k) + r * kv_heads * to_bytes;
      auto* v_row = static_cast<std::byte*>(v) + r * kv_heads * to_bytes;
      const float* row_cos = cos + r * (dim / 2);
      const float* row_sin = sin + r * (dim / 2);
      for (size_t h = 0; h < q_heads; ++h, from += from_bytes) {
        rotate(from, row_cos, row_sin, dim, q_row + h * to_bytes);
      }
      for (size_t h = 0; h < kv_heads; ++h, from += from_bytes) {
        rotate(from, row_cos, row_sin, dim, k_row + h * to_bytes);
      }
      ConvertRange(element, from, kv_heads * dim, out_element, v_row);
    }
  });
}

void CpuBackend::SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) {
  const size_t row_bytes = width * ElementBytes(element);
  ParallelRanges(threads_, rows, width, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      Kernels(element).swiglu(static_cast<const std::byte*>(gate_up) + r * 2 * row_bytes, width,
                              static_cast<std::byte*>(out) + r * row_bytes);
    }
  });
}

void CpuBackend::ConvertRange(ElementType from, const void* x, size_t count, ElementType to,
                              void* out) const {
  if (from == to) {
    std::memcpy(out, x, count * ElementBytes(from));
  } else if (to == ElementType::kF32) {
    Kernels(from).to_f32(x, count, static_cast<float*>(out));
  } else {
    Kernels(to).from_f32(static_cast<const float*>(x), count, out);
  }
}

void CpuBackend::Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) {
  ParallelRanges(threads_, count, 1, [&](size_t begin, size_t end) {
    ConvertRange(from, static_cast<const std::byte*>(x) + begin * ElementBytes(from), end - begin,
                 to, static_cast<std::byte*>(out) + begin * ElementBytes(to));
  });
}

void CpuBackend::EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids,
                             int width, float* out) {
  const size_t row_bytes = width * ElementBytes(element);
  ParallelRanges(threads_, ids.size(), width, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ConvertRange(element, static_cast<const std::byte*>(table) + ids[i] * row_bytes, width,
                   ElementType::kF32, out + i * width);
    }
  });
}

void CpuBackend::FillAngles(absl::Span<const float> inverse_frequencies, int first, int count,
                            float* cos, float* sin) {
  constexpr size_t kElementsOfAnAngle = 16;  // whose conversion takes about as long
  const size_t width = inverse_frequencies.size();
  ParallelRanges(threads_, count, kElementsOfAnAngle * width, [&](size_t begin, size_t end) {
    AttentionBackend::FillAngles(inverse_frequencies, first + static_cast<int>(begin),
                                 static_cast<int>(end - begin), cos + begin * width,
                                 sin + begin * width);
  });
}

}  // namespace cpu
}  // namespace ziggurat
