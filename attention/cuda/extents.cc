#include "attention/cuda/extents.h"

#include <algorithm>
#include <bit>

namespace ziggurat::cuda {

Extents::Extents(uint32_t first, uint32_t end) {
  for (uint32_t at = first, room; end - at >= kSmallest; at += room) {
    room = std::bit_floor(end - at);
    if (at != 0) room = std::min(at & -at, room);
    free_[room].insert(at);
  }
}

uint32_t Extents::RoomFor(uint32_t units) { return std::bit_ceil(std::max(units, kSmallest)); }

uint32_t Extents::Allocate(uint32_t units) {
  const uint32_t room = RoomFor(units);
  const auto found = free_.lower_bound(room);
  if (found == free_.end()) return kFull;
  const uint32_t found_room = found->first, first = *found->second.begin();
  RemoveFree(found, found->second.begin());
  for (uint32_t half = found_room / 2; half >= room; half /= 2) free_[half].insert(first + half);
  used_ += room;
  return first;
}

void Extents::Free(uint32_t first, uint32_t units) {
  uint32_t room = RoomFor(units);
  used_ -= room;
  for (;; room *= 2, first &= -room) {
    const auto of_room = free_.find(room);
    if (of_room == free_.end()) break;
    const auto other_half = of_room->second.find(first ^ room);
    if (other_half == of_room->second.end()) break;
    RemoveFree(of_room, other_half);
  }
  free_[room].insert(first);
}

void Extents::RemoveFree(OfRoom::iterator of_room, std::set<uint32_t>::iterator extent) {
  of_room->second.erase(extent);
  if (of_room->second.empty()) free_.erase(of_room);
}

}  // namespace ziggurat::cuda
