#include "block_manager/cache_format.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace ziggurat {

std::string_view ElementTypeName(ElementType type) {
  return type == ElementType::kF32 ? "f32" : "bf16";
}

std::string_view EncodingName(Encoding encoding) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "int8", "fp8", "int4", "int2"};
  return kNames[static_cast<int>(encoding)];
}

std::string_view PlaneRoleName(PlaneRole role) {
  constexpr std::string_view kNames[] = {"codes", "scales", "norms", "scores"};
  return kNames[static_cast<int>(role)];
}

std::string CacheFormatName(const CacheFormat& format) {
  std::string name(EncodingName(format.encoding));
  if (format.values_only) name += "-values";
  if (format.merged) name += "-merged";
  if (format.scored) name += "-scored";
  return name;
}

int PlaneList::Find(PlaneRole role) const {
  for (int p = 0; p < count; ++p) {
    if (planes[p].role == role) return p;
  }
  return -1;
}

PlaneList PlanesOf(const CacheFormat& format, int kv_heads, int head_dim) {
  const size_t heads = kv_heads;
  const size_t channels = heads * head_dim;
  const size_t sides = format.values_only ? 1 : 2;  // keys and values
  PlaneList list;
  list.Add({PlaneRole::kCodes, 1, sides * channels * EncodingBits(format.encoding) / 8});
  if (IsPerToken(format.encoding)) {
    list.Add({PlaneRole::kScales, 1, sides * heads * sizeof(float)});
  }
  if (IsGrouped(format.encoding)) {
    // Keys: scale and zero of every channel, 4 bytes. Values: of every token and head_dim / group
    // groups of channels, group tokens: as many.
    list.Add({PlaneRole::kScales, format.group, sides * channels * 4});
  }
  if (format.merged) list.Add({PlaneRole::kNorms, 1, 4 * heads * sizeof(float)});
  if (format.scored) list.Add({PlaneRole::kScores, 1, heads * (sizeof(float) + sizeof(int32_t))});
  return list;
}

size_t PlaneSpec::UnitsPerBlock(size_t block_bytes) const { return block_bytes / unit_bytes; }

size_t PlaneSpec::SlotsPerBlock(size_t block_bytes) const {
  return UnitsPerBlock(block_bytes) * tokens_per_unit;
}

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
  for (const CacheFormat& format :
       {CacheFormat::kF32, CacheFormat::kBf16, CacheFormat::kF32Values, CacheFormat::kBf16Values}) {
    if (absl::Status status = CheckFormat(format); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CacheGeometry::CheckFormat(const CacheFormat& format) const {
  if (format.values_only + format.merged + format.scored > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("values alone, merged tokens and tokens with scores exclude each other, not ",
                     CacheFormatName(format)));
  }
  const int bits = EncodingBits(format.encoding);
  if (head_dim * bits % 32 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(CacheFormatName(format),
                                                   " needs a head size that is a multiple of ",
                                                   32 / bits, ", not ", head_dim));
  }
  if (!IsGrouped(format.encoding) && format.group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(CacheFormatName(format), " has no groups, and so none of ", format.group));
  }
  // A scale and a zero for every number would take more than the number.
  if (IsGrouped(format.encoding) && format.group == 1) {
    return absl::InvalidArgumentError("a quantization group has at least 2 numbers, not 1");
  }
  if (IsGrouped(format.encoding) && (format.group < 1 || head_dim % format.group != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a quantization group of ", format.group,
                                                   " does not divide the head size ", head_dim));
  }
  const PlaneList list = PlanesOf(format, num_kv_heads, head_dim);
  for (int p = 0; p < list.count; ++p) {
    if (block_bytes % list.planes[p].unit_bytes != 0) {
      // Debian's absl::string_view is not std::string_view, hence the strings.
      return absl::InvalidArgumentError(
          absl::StrCat("a block of ", block_bytes, " bytes holds no whole number of units of ",
                       list.planes[p].unit_bytes, " bytes (", CacheFormatName(format), ", plane ",
                       std::string(PlaneRoleName(list.planes[p].role)), ")"));
    }
  }
  return absl::OkStatus();
}

int CacheGeometry::SlotsPerBlock(const CacheFormat& format, int kv_heads) const {
  const PlaneSpec codes = PlanesOf(format, kv_heads, head_dim).planes[0];
  return static_cast<int>(codes.SlotsPerBlock(block_bytes));
}

size_t CacheGeometry::BlocksFor(const CacheFormat& format, int kv_heads, size_t tokens) const {
  const PlaneList list = PlanesOf(format, kv_heads, head_dim);
  size_t blocks = 0;
  for (int p = 0; p < list.count; ++p) {
    blocks += list.planes[p].BlocksFor(block_bytes, tokens);
  }
  return blocks;
}

}  // namespace ziggurat
