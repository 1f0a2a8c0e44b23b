// What a segment of a layer's KV cache stores, and how that divides into blocks.
//
// The pool knows only blocks of equal bytes. A *format* says which planes a segment has; a plane's
// *unit* (one token's entry of all KV heads, or one group's) divides the block, so a block holds a
// whole number of units, and the only waste is the unfilled tail of the last block of each plane;
// besides, a segment of some of the heads may leave less than a unit at the end of every block.
// docs/block_layout.md shows the layout inside a block.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "block_manager/check.h"

namespace ziggurat {

constexpr size_t DivideUp(size_t numerator, size_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

/// Scalar type of computed keys and values, and of activations.
enum class ElementType : uint8_t { kF32, kBf16 };

constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
std::string_view ElementTypeName(ElementType type);

/// How one channel of a key or value is stored. The codes are integers or e4m3 floats that only a
/// scale (and a zero) turns into a number.
enum class Encoding : uint8_t { kF32, kBf16, kInt8, kFp8, kInt4, kInt2 };

constexpr int EncodingBits(Encoding encoding) {
  constexpr int kBits[] = {32, 16, 8, 8, 4, 2};
  return kBits[static_cast<int>(encoding)];
}
/// Numbers as they are, without a scale.
constexpr bool IsPlain(Encoding encoding) {
  return encoding == Encoding::kF32 || encoding == Encoding::kBf16;
}
/// One scale per token and head: any slot can be written alone.
constexpr bool IsPerToken(Encoding encoding) {
  return encoding == Encoding::kInt8 || encoding == Encoding::kFp8;
}
/// Scales and zeros shared by a group of tokens (keys) or channels (values): written in whole
/// groups.
constexpr bool IsGrouped(Encoding encoding) {
  return encoding == Encoding::kInt4 || encoding == Encoding::kInt2;
}
/// Tokens that are encoded together, since they share scales.
constexpr int UnitTokensOf(Encoding encoding, int group) { return IsGrouped(encoding) ? group : 1; }
/// "f32", "bf16", "int8", "fp8", "int4", "int2".
std::string_view EncodingName(Encoding encoding);
constexpr Encoding EncodingOf(ElementType type) {
  return type == ElementType::kF32 ? Encoding::kF32 : Encoding::kBf16;
}

/// What a segment stores. A value; order and equality are those of its parts.
struct CacheFormat {
  Encoding encoding = Encoding::kBf16;
  /// Grouped encodings only: tokens of a group of keys, and channels of a group of values; divides
  /// the head size. 0 for all others.
  uint16_t group = 0;
  /// Values alone: the keys stand in another layer's segment (PoD).
  bool values_only = false;
  /// Directions shared by two layers, and the norms of both (MiniCache).
  bool merged = false;
  /// Beside every token the attention it has received so far, and its position (H2O).
  bool scored = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads defaulted comparisons
  auto operator<=>(const CacheFormat&) const = default;

  constexpr int UnitTokens() const { return UnitTokensOf(encoding, group); }

  static const CacheFormat kF32;
  static const CacheFormat kBf16;
  static const CacheFormat kF32Values;
  static const CacheFormat kBf16Values;
};
inline constexpr CacheFormat CacheFormat::kF32 = {Encoding::kF32};
inline constexpr CacheFormat CacheFormat::kBf16 = {Encoding::kBf16};
inline constexpr CacheFormat CacheFormat::kF32Values = {Encoding::kF32, 0, true};
inline constexpr CacheFormat CacheFormat::kBf16Values = {Encoding::kBf16, 0, true};

/// "bf16", "int4", "bf16-values", "int8-merged", "bf16-scored", ...
std::string CacheFormatName(const CacheFormat& format);
/// The format that stores keys and values of this element type.
constexpr CacheFormat KeyValueFormat(ElementType type) { return {EncodingOf(type)}; }

/// What a plane of a format is for.
enum class PlaneRole : uint8_t {
  kCodes,   ///< keys and values, or values alone
  kScales,  ///< per-token encodings: an f32 for K and one for V; grouped: scales and zeros in bf16
  kNorms,   ///< merged: f32 norms of K and V in the lower and in the upper layer
  kScores,  ///< scored: f32 score and i32 position
};
std::string_view PlaneRoleName(PlaneRole role);  ///< "codes", "scales", "norms", "scores"

/// One plane of a format, for a segment that covers `kv_heads` heads of size `head_dim`.
struct PlaneSpec {
  PlaneRole role = PlaneRole::kCodes;
  int tokens_per_unit = 1;  ///< tokens that share one unit (1, or a quantization group)
  size_t unit_bytes = 0;    ///< bytes of one unit, all heads of the segment

  size_t UnitsPerBlock(size_t block_bytes) const;
  size_t SlotsPerBlock(size_t block_bytes) const;
  /// Blocks that hold `tokens` tokens; bytes of the units that hold them.
  size_t BlocksFor(size_t block_bytes, size_t tokens) const;
  size_t LiveBytes(size_t tokens) const;
};

/// The planes of a format; the first holds the codes.
constexpr int kMaxPlanes = 3;  // codes, scales, and norms or scores (CheckFormat)
struct PlaneList {
  int count = 0;
  PlaneSpec planes[kMaxPlanes];

  void Add(const PlaneSpec& plane) {
    CheckThat(count < kMaxPlanes, "a format of too many planes");
    planes[count++] = plane;
  }
  /// Index of the plane of that role, or -1.
  int Find(PlaneRole role) const;
};
PlaneList PlanesOf(const CacheFormat& format, int kv_heads, int head_dim);

/// Shape of the cache of one model, the same for every sequence.
struct CacheGeometry {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  size_t block_bytes = 0;

  /// INVALID_ARGUMENT unless every size is positive, the head size even, and the unit of every
  /// plain format divides a block. Tables may only be made of a geometry that passed.
  absl::Status Validate() const;
  /// INVALID_ARGUMENT where segments of `format` cannot be made: more than one of values_only,
  /// merged and scored, a group that does not divide the head size or is not asked for, a head size
  /// that leaves a cell of 4 bytes half full, a unit that does not divide a block.
  absl::Status CheckFormat(const CacheFormat& format) const;
  /// 64·G·D bytes: 16 tokens of bf16 K and V, 8 of f32.
  static size_t DefaultBlockBytes(int num_kv_heads, int head_dim) {
    return size_t{64} * num_kv_heads * head_dim;
  }
  /// Slots (tokens) that fit one block of plane 0 of a segment covering `kv_heads` heads.
  int SlotsPerBlock(const CacheFormat& format, int kv_heads) const;
  /// Blocks of all planes that hold `tokens` tokens in a segment covering `kv_heads` heads.
  size_t BlocksFor(const CacheFormat& format, int kv_heads, size_t tokens) const;
};

}  // namespace ziggurat
