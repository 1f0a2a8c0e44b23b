#include "model/decoder/weight_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace ziggurat {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRegionBytes = size_t{256} << 20;
constexpr size_t kLine = 64;

constexpr size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

WeightArena::~WeightArena() {
  for (const Region& region : regions_) munmap(region.base, region.bytes);
}

std::byte* WeightArena::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kLine);
  if (bytes > left_) {
    const size_t wanted = std::max(kRegionBytes, RoundUp(bytes, kHugePage)) + kHugePage;
    void* mapped =
        mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    regions_.push_back({static_cast<std::byte*>(mapped), wanted});
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    const size_t skipped = RoundUp(address, kHugePage) - address;
    next_ = regions_.back().base + skipped;
    left_ = wanted - skipped;
    madvise(next_, left_, MADV_HUGEPAGE);  // a wish
  }
  std::byte* const memory = next_;
  next_ += bytes;
  left_ -= bytes;
  return memory;
}

}  // namespace ziggurat
