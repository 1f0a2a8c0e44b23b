// The inside of a block as docs/block_layout.md tells it: every number that a plane stores, in the
// order in which they stand, packed one behind the other. No strides, no offsets: those are what is
// checked against it.
#pragma once

#include <cstddef>

#include "tests/block_manager/format_list.h"

namespace ziggurat {

/// A number that a segment stores.
enum class Part {
  kKey,
  kValue,
  kKeyScale,
  kKeyZero,
  kValueScale,
  kValueZero,
  kLowerKeyNorm,
  kLowerValueNorm,
  kUpperKeyNorm,
  kUpperValueNorm,
  kScore,
  kPosition,
};
inline constexpr const char* kPartNames[] = {
    "key",          "value",        "key scale",    "key zero",     "value scale", "value zero",
    "lower K norm", "lower V norm", "upper K norm", "upper V norm", "score",       "position"};

/// Which one. `head` counts from the segment's first, `slot` from the block's first (of a group of
/// keys its first slot); `channel` is the first one that it is for, 0 for what a whole token
/// shares.
struct Datum {
  Part part = Part::kKey;
  int head = 0;
  int slot = 0;
  int channel = 0;
};

/// Calls `place(datum, first_bit, bits)` for everything in a full block of the plane `role`.
template <typename Place>
class BlockPacker {
 public:
  BlockPacker(const CacheFormat& format, int heads, int head_dim, size_t block_bytes, Place place)
      : format_(format),
        heads_(heads),
        head_dim_(head_dim),
        block_bytes_(block_bytes),
        place_(place) {}

  void Pack(const ExpectedPlane& plane) {
    bit_ = 0;
    slots_ = static_cast<int>(plane.slots_per_block(block_bytes_));
    for (int head = 0; head < heads_; ++head) {
      switch (plane.role) {
        case PlaneRole::kCodes:
          PackCodes(head);
          break;
        case PlaneRole::kScales:
          HasGroups(format_.encoding) ? PackGroups(head) : PackTokenScales(head);
          break;
        case PlaneRole::kNorms:
          for (const Part part : {Part::kLowerKeyNorm, Part::kLowerValueNorm, Part::kUpperKeyNorm,
                                  Part::kUpperValueNorm}) {
            PackTokens(part, head);
          }
          break;
        case PlaneRole::kScores:
          PackTokens(Part::kScore, head);
          PackTokens(Part::kPosition, head);
          break;
      }
    }
  }

 private:
  void Put(const Datum& datum, size_t bits) {
    place_(datum, bit_, bits);
    bit_ += bits;
  }

  /// A number of 4 bytes for every token.
  void PackTokens(Part part, int head) {
    for (int slot = 0; slot < slots_; ++slot) {
      Put({part, head, slot, 0}, 32);
    }
  }

  void PackCodes(int head) {
    const auto bits = ChannelBits(format_.encoding);
    const int cell = static_cast<int>(32 / bits);  // channels
    for (int row = 0; row < head_dim_ / cell && !format_.values_only; ++row) {
      for (int slot = 0; slot < slots_; ++slot) {
        for (int i = 0; i < cell; ++i) {
          Put({Part::kKey, head, slot, row * cell + i}, bits);
        }
      }
    }
    for (int slot = 0; slot < slots_; ++slot) {
      for (int channel = 0; channel < head_dim_; ++channel) {
        Put({Part::kValue, head, slot, channel}, bits);
      }
    }
  }

  void PackTokenScales(int head) {
    if (!format_.values_only) {
      PackTokens(Part::kKeyScale, head);
    }
    PackTokens(Part::kValueScale, head);
  }

  void PackGroups(int head) {
    const int group = format_.group;
    for (int first = 0; first < slots_; first += group) {
      for (const Part part : {Part::kKeyScale, Part::kKeyZero}) {
        for (int channel = 0; channel < head_dim_ && !format_.values_only; ++channel) {
          Put({part, head, first, channel}, 16);
        }
      }
      for (const Part part : {Part::kValueScale, Part::kValueZero}) {
        for (int token = 0; token < group; ++token) {
          for (int channel = 0; channel < head_dim_; channel += group) {
            Put({part, head, first + token, channel}, 16);
          }
        }
      }
    }
  }

  CacheFormat format_;
  int heads_;
  int head_dim_;
  size_t block_bytes_;
  Place place_;
  int slots_ = 0;
  size_t bit_ = 0;
};

template <typename Place>
void PackBlock(const CacheFormat& format, const ExpectedPlane& plane, int heads, int head_dim,
               size_t block_bytes, Place place) {
  BlockPacker<Place>(format, heads, head_dim, block_bytes, place).Pack(plane);
}

}  // namespace ziggurat
