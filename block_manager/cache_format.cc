#include "block_manager/cache_format.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "block_manager/check.h"

namespace ziggurat {
namespace {

constexpr size_t DivideUp(size_t numerator, size_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

PlaneList OnePlane(std::string_view name, size_t unit_bytes) {
  PlaneList list;
  list.count = 1;
  list.planes[0] = {name, 1, unit_bytes};
  return list;
}

}  // namespace

std::string_view ElementTypeName(ElementType type) {
  return type == ElementType::kF32 ? "f32" : "bf16";
}

std::string_view CacheFormatName(CacheFormat format) {
  switch (format) {
    case CacheFormat::kF32:
      return "f32";
    case CacheFormat::kBf16:
      return "bf16";
    case CacheFormat::kF32Values:
      return "f32-values";
    case CacheFormat::kBf16Values:
      return "bf16-values";
  }
  return "unknown";
}

PlaneList PlanesOf(CacheFormat format, int kv_heads, int head_dim) {
  const size_t channels = static_cast<size_t>(kv_heads) * head_dim;
  const size_t element_bytes = ElementBytes(ElementOf(format));
  switch (format) {
    case CacheFormat::kF32:
    case CacheFormat::kBf16:
      return OnePlane("kv", 2 * channels * element_bytes);
    case CacheFormat::kF32Values:
    case CacheFormat::kBf16Values:
      return OnePlane("values", channels * element_bytes);
  }
  CheckThat(false, "a cache format has no row in PlanesOf");
  return {};
}

size_t PlaneSpec::UnitsPerBlock(size_t block_bytes) const { return block_bytes / unit_bytes; }

size_t PlaneSpec::BlocksFor(size_t block_bytes, size_t tokens) const {
  return DivideUp(DivideUp(tokens, tokens_per_unit), UnitsPerBlock(block_bytes));
}

size_t PlaneSpec::LiveBytes(size_t tokens) const {
  return DivideUp(tokens, tokens_per_unit) * unit_bytes;
}

absl::Status CacheGeometry::Validate() const {
  if (num_layers < 1 || num_kv_heads < 1 || head_dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("cache geometry must be positive: ", num_layers,
                                                   " layers, ", num_kv_heads, " KV heads of size ",
                                                   head_dim));
  }
  if (head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the head size must be even for bf16 key pairs, not ", head_dim));
  }
  if (block_bytes == 0 || block_bytes % 64 != 0 ||
      block_bytes > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_bytes must be a multiple of 64 below 4 GiB, not ", block_bytes));
  }
  for (int f = 0; f < kNumCacheFormats; ++f) {
    const auto format = static_cast<CacheFormat>(f);
    const PlaneList list = PlanesOf(format, num_kv_heads, head_dim);
    for (int p = 0; p < list.count; ++p) {
      if (block_bytes % list.planes[p].unit_bytes != 0) {
        // Debian's absl::string_view is not std::string_view, hence the strings.
        return absl::InvalidArgumentError(absl::StrCat(
            "a block of ", block_bytes, " bytes holds no whole number of units of ",
            list.planes[p].unit_bytes, " bytes (", std::string(CacheFormatName(format)), ", plane ",
            std::string(list.planes[p].name), ")"));
      }
    }
  }
  return absl::OkStatus();
}

int CacheGeometry::SlotsPerBlock(CacheFormat format, int kv_heads) const {
  const PlaneSpec plane = PlanesOf(format, kv_heads, head_dim).planes[0];
  return static_cast<int>(plane.UnitsPerBlock(block_bytes)) * plane.tokens_per_unit;
}

size_t CacheGeometry::BlocksFor(CacheFormat format, int kv_heads, size_t tokens) const {
  const PlaneList list = PlanesOf(format, kv_heads, head_dim);
  size_t blocks = 0;
  for (int p = 0; p < list.count; ++p) {
    blocks += list.planes[p].BlocksFor(block_bytes, tokens);
  }
  return blocks;
}

}  // namespace ziggurat
