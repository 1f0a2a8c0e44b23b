#include "attention/cuda/extents.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace ziggurat::cuda {
namespace {

TEST(Extents, AreApartAndComeBackWhole) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const uint32_t first = 2 * (random() % 20), end = first + 2 + random() % 500;
    Extents extents(first, end);
    std::vector<bool> is_taken(end);
    std::vector<std::pair<uint32_t, uint32_t>> held;  // first unit, as asked for
    for (int step = 0; step < 300; ++step) {
      if (!held.empty() && random() % 2 == 0) {
        std::swap(held[random() % held.size()], held.back());
        const auto [at, units] = held.back();
        held.pop_back();
        extents.Free(at, units);
        for (uint32_t i = 0; i < Extents::RoomFor(units); ++i) is_taken[at + i] = false;
        continue;
      }
      const uint32_t units = 1 + random() % 60, at = extents.Allocate(units);
      if (at == Extents::kFull) continue;
      ASSERT_EQ(at % 2, 0u);
      ASSERT_GE(at, first);
      ASSERT_LE(at + Extents::RoomFor(units), end);
      for (uint32_t i = 0; i < Extents::RoomFor(units); ++i) {
        ASSERT_FALSE(is_taken[at + i]) << at + i << " of [" << first << ", " << end << ")";
        is_taken[at + i] = true;
      }
      held.emplace_back(at, units);
    }
    for (const auto& [at, units] : held) extents.Free(at, units);
    EXPECT_EQ(extents.used(), 0u);
    // As large ones as at first.
    Extents fresh(first, end);
    for (uint32_t units = 256; units >= 2; units /= 2) {
      while (fresh.Allocate(units) != Extents::kFull) {
        EXPECT_NE(extents.Allocate(units), Extents::kFull) << units;
      }
      EXPECT_EQ(extents.Allocate(units), Extents::kFull) << units;
    }
  }
}

TEST(Extents, MayEndAtTheHighestUnit) {
  Extents extents(2, Extents::kFull - 1);
  EXPECT_EQ(extents.Allocate(uint32_t{1} << 30), uint32_t{1} << 30);
  EXPECT_EQ(extents.Allocate(2), 2u);
  EXPECT_EQ(extents.Allocate(2), Extents::kFull - 3);
}

}  // namespace
}  // namespace ziggurat::cuda
