#include "attention/cpu/tile_permission.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ziggurat::cpu {

bool HasTiles() {
  static const bool has_tiles = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, -TILE, -INT8
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    if ((edx & kNeeded) != kNeeded) return false;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has_tiles;
}

}  // namespace ziggurat::cpu
