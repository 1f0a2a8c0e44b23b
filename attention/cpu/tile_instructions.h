// The instructions of tile registers (amx_tiles.h), and nothing else: a test puts others in their
// place (tests/attention/emulated_tiles).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {
namespace {

/// What ldtilecfg reads.
struct alignas(64) TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);

// The assembler's instructions rather than the compiler's functions, which say nothing of memory.

inline void ConfigureTiles(const TileConfiguration& configuration) {
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}
inline void ReleaseTiles() { asm volatile("tilerelease"); }
template <int kTile>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
/// Rows `stride` bytes apart.
template <int kTile>
inline void LoadTile(const void* rows, size_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
}
template <int kTile>
inline void StoreTile(void* rows, size_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
}
/// C += A B, of bf16.
template <int kC, int kA, int kB>
inline void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
/// C += A B, of signed bytes and unsigned ones; C is int32.
template <int kC, int kA, int kB>
inline void MultiplyByteTiles() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace ziggurat::cpu
