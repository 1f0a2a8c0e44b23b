// Who has which part of a line of units (words of a table, tokens of lists).
#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace ziggurat::cuda {

/// Extents are powers of two, each at a multiple of itself: one that is given back joins its other
/// half, so that the line serves large ones after many small ones. Not thread-safe.
class Extents {
 public:
  static constexpr uint32_t kFull = 0xffffffffu;
  static constexpr uint32_t kSmallest = 2;

  /// Of units [first, end); `first` is even.
  Extents(uint32_t first, uint32_t end);

  /// What one that is asked for with `units` takes.
  static uint32_t RoomFor(uint32_t units);
  /// Its first unit, an even one; kFull where there is none. In time logarithmic in the extents, as
  /// is Free.
  uint32_t Allocate(uint32_t units);
  /// `units` as it was asked for.
  void Free(uint32_t first, uint32_t units);
  uint32_t used() const { return used_; }

 private:
  using OfRoom = std::map<uint32_t, std::set<uint32_t>>;  ///< none is empty

  void RemoveFree(OfRoom::iterator of_room, std::set<uint32_t>::iterator extent);

  OfRoom free_;
  uint32_t used_ = 0;
};

}  // namespace ziggurat::cuda
