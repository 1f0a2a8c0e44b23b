// Every format that blocks may hold, and what it holds counted number by number: the yardstick for
// `PlanesOf`, `CheckFormat` and the views, written from docs/block_layout.md rather than from them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/support/cache_formats.h"

namespace ziggurat {

inline constexpr Encoding kEncodings[] = {Encoding::kF32, Encoding::kBf16, Encoding::kInt8,
                                          Encoding::kFp8, Encoding::kInt4, Encoding::kInt2};

/// Bits of one stored channel.
inline size_t ChannelBits(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return 32;
    case Encoding::kBf16:
      return 16;
    case Encoding::kInt8:
    case Encoding::kFp8:
      return 8;
    case Encoding::kInt4:
      return 4;
    case Encoding::kInt2:
      return 2;
  }
  return 0;
}
inline bool HasGroups(Encoding encoding) {
  return encoding == Encoding::kInt4 || encoding == Encoding::kInt2;
}
inline bool HasTokenScales(Encoding encoding) {
  return encoding == Encoding::kInt8 || encoding == Encoding::kFp8;
}

/// Every encoding that `head_dim` allows, grouped ones with some groups, and each of them plain,
/// values alone, merged and scored.
inline std::vector<CacheFormat> AllFormats(int head_dim) {
  std::vector<CacheFormat> formats;
  for (const Encoding encoding : kEncodings) {
    if (head_dim * ChannelBits(encoding) % 32 != 0) {
      continue;
    }
    std::vector<CacheFormat> bases;
    if (!HasGroups(encoding)) {
      bases.push_back({encoding});
    }
    for (const uint16_t group : {2, 8, 16, 20, 32, 128}) {
      if (HasGroups(encoding) && head_dim % group == 0) {
        bases.push_back({encoding, group});
      }
    }
    for (const CacheFormat& base : bases) {
      formats.insert(formats.end(), {base, ValuesOnly(base), Merged(base), Scored(base)});
    }
  }
  return formats;
}

inline std::string FormatText(const CacheFormat& format) {
  return CacheFormatName(format) + " in groups of " + std::to_string(format.group);
}

/// What one plane holds for each of its units.
struct ExpectedPlane {
  PlaneRole role = PlaneRole::kCodes;
  size_t tokens = 1;  ///< that share the unit
  size_t bits = 0;

  size_t units_per_block(size_t block_bytes) const { return block_bytes * 8 / bits; }
  size_t slots_per_block(size_t block_bytes) const { return units_per_block(block_bytes) * tokens; }
  /// By filling one after the other.
  size_t BlocksFor(size_t block_bytes, size_t slots) const {
    size_t blocks = 0;
    for (size_t filled = 0; filled < slots; filled += slots_per_block(block_bytes)) {
      ++blocks;
    }
    return blocks;
  }
  size_t LiveBytes(size_t slots) const {
    size_t live_bits = 0;
    for (size_t filled = 0; filled < slots; filled += tokens) {
      live_bits += bits;
    }
    return live_bits / 8;
  }
};

/// The planes of a segment of `heads` heads, in order, counted head by head and side by side.
inline std::vector<ExpectedPlane> ExpectedPlanes(const CacheFormat& format, int heads,
                                                 int head_dim) {
  const size_t bf16_bits = 16, number_bits = 32;
  ExpectedPlane codes{PlaneRole::kCodes};
  ExpectedPlane scales{PlaneRole::kScales};
  ExpectedPlane norms{PlaneRole::kNorms};
  ExpectedPlane scores{PlaneRole::kScores};
  for (int head = 0; head < heads; ++head) {
    for (const bool keys : {true, false}) {
      if (keys && format.values_only) {
        continue;
      }
      codes.bits += head_dim * ChannelBits(format.encoding);
      if (HasTokenScales(format.encoding)) {
        scales.bits += number_bits;
      } else if (HasGroups(format.encoding) && keys) {
        scales.bits += head_dim * 2 * bf16_bits;  // of a channel of all tokens: scale, zero
      } else if (HasGroups(format.encoding)) {
        for (int token = 0; token < format.group; ++token) {
          scales.bits += head_dim / format.group * 2 * bf16_bits;
        }
      }
      norms.bits += 2 * number_bits;  // of the lower layer and of the upper one
    }
    scores.bits += number_bits + number_bits;  // f32 score, i32 position
  }
  if (HasGroups(format.encoding)) {
    scales.tokens = format.group;
  }
  std::vector<ExpectedPlane> planes = {codes};
  if (scales.bits > 0) {
    planes.push_back(scales);
  }
  if (format.merged) {
    planes.push_back(norms);
  }
  if (format.scored) {
    planes.push_back(scores);
  }
  return planes;
}

/// Blocks of all planes.
inline size_t ExpectedBlocks(const CacheFormat& format, int heads, int head_dim, size_t block_bytes,
                             size_t slots) {
  size_t blocks = 0;
  for (const ExpectedPlane& plane : ExpectedPlanes(format, heads, head_dim)) {
    blocks += plane.BlocksFor(block_bytes, slots);
  }
  return blocks;
}

}  // namespace ziggurat
