// Memory for weights, in huge pages: every step reads all of it, and with pages of 4 KiB looking up
// addresses costs a fifth of the read bandwidth.
#pragma once

#include <cstddef>
#include <vector>

namespace ziggurat {

/// Hands out memory that lives as long as the arena. What is not written takes none.
class WeightArena {
 public:
  WeightArena() = default;
  ~WeightArena();
  WeightArena(const WeightArena&) = delete;
  WeightArena& operator=(const WeightArena&) = delete;

  /// `bytes` bytes that begin with a cache line; null where the system grants none.
  std::byte* Allocate(size_t bytes);

 private:
  struct Region {
    std::byte* base;
    size_t bytes;
  };
  std::vector<Region> regions_;  // as mapped
  std::byte* next_ = nullptr;    // free part of the newest one
  size_t left_ = 0;
};

}  // namespace ziggurat
