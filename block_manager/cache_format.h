// What a segment of a layer's KV cache stores, and how that divides into blocks.
//
// The pool knows only blocks of equal bytes. A *format* says which planes a segment has; a plane's
// *unit* (one token's entry, or one group's) divides the block, so a block holds a whole number of
// units, and the only waste that can exist is the unfilled tail of the last block of each plane.
// docs/block_layout.md shows the layout inside a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace ziggurat {

/// Scalar type of stored keys and values.
enum class ElementType : uint8_t { kF32, kBf16 };

constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
std::string_view ElementTypeName(ElementType type);

/// What a segment stores. Formats of quantized and shared caches join this list; each is one row in
/// `PlanesOf`.
enum class CacheFormat : uint8_t {
  kF32,         ///< keys and values of every token, f32, one plane
  kBf16,        ///< keys and values of every token, bf16, one plane
  kF32Values,   ///< values only: the keys stand in another layer's segment
  kBf16Values,  ///< values only, bf16
};
constexpr int kNumCacheFormats = 4;

std::string_view CacheFormatName(CacheFormat format);
/// The format that stores keys and values of this element type.
constexpr CacheFormat KeyValueFormat(ElementType type) {
  return type == ElementType::kF32 ? CacheFormat::kF32 : CacheFormat::kBf16;
}

/// Whether the format stores values alone and attends with another layer's keys.
constexpr bool IsValuesOnly(CacheFormat format) {
  return format == CacheFormat::kF32Values || format == CacheFormat::kBf16Values;
}
/// Scalar type of the keys and values of a segment of this format, as kernels read it.
constexpr ElementType ElementOf(CacheFormat format) {
  return format == CacheFormat::kF32 || format == CacheFormat::kF32Values ? ElementType::kF32
                                                                          : ElementType::kBf16;
}

/// One plane of a format, for a segment that covers `kv_heads` heads of size `head_dim`.
struct PlaneSpec {
  std::string_view name;    ///< "kv", "values"
  int tokens_per_unit = 1;  ///< tokens that share one unit (1, or a quantization group)
  size_t unit_bytes = 0;    ///< bytes of one unit, all heads of the segment

  size_t UnitsPerBlock(size_t block_bytes) const;
  /// Blocks that hold `tokens` tokens; bytes of the units that hold them.
  size_t BlocksFor(size_t block_bytes, size_t tokens) const;
  size_t LiveBytes(size_t tokens) const;
};

/// The planes of `format`. The span points to static storage only in the names; specs are computed.
constexpr int kMaxPlanes = 4;
struct PlaneList {
  int count = 0;
  PlaneSpec planes[kMaxPlanes];
};
PlaneList PlanesOf(CacheFormat format, int kv_heads, int head_dim);

/// Shape of the cache of one model, the same for every sequence.
struct CacheGeometry {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  size_t block_bytes = 0;

  /// INVALID_ARGUMENT unless every size is positive, the head size even, and the unit of every
  /// format divides a block. Tables may only be made of a geometry that passed.
  absl::Status Validate() const;
  /// 64·G·D bytes: 16 tokens of bf16 K and V, 8 of f32.
  static size_t DefaultBlockBytes(int num_kv_heads, int head_dim) {
    return size_t{64} * num_kv_heads * head_dim;
  }
  /// Slots (tokens) that fit one block of plane 0 of a segment covering `kv_heads` heads.
  int SlotsPerBlock(CacheFormat format, int kv_heads) const;
  /// Blocks of all planes that hold `tokens` tokens in a segment covering `kv_heads` heads.
  size_t BlocksFor(CacheFormat format, int kv_heads, size_t tokens) const;
};

}  // namespace ziggurat
