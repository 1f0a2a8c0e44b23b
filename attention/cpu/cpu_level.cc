#include "attention/cpu_level.h"

#include <cpuid.h>

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/tile_permission.h"

namespace ziggurat {
namespace {

constexpr unsigned kFamilyOfZen5 = 26;
/// Models of Intel's family 6.
constexpr unsigned kSapphireRapids = 0x8f, kEmeraldRapids = 0xcf;

struct CpuKind {
  unsigned family = 0;
  unsigned model = 0;
};

CpuKind ThisCpu() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return {};
  const unsigned family = eax >> 8 & 0xf, extended = eax >> 20 & 0xff;
  return {family == 0xf ? family + extended : family, (eax >> 4 & 0xf) | (eax >> 12 & 0xf0)};
}

bool HasLevel(CpuLevel level) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  // All that have the first but Cooper Lake have the others.
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  switch (level) {
    case CpuLevel::kAvx2:
      return avx2;
    case CpuLevel::kAvx512:
      return avx512;
    case CpuLevel::kAvx512Bf16:
    case CpuLevel::kZen4:
    case CpuLevel::kZen5:
      return bf16;
    case CpuLevel::kAmx:
    case CpuLevel::kGranite:
      return bf16 && cpu::HasTiles();
  }
  return false;
}

}  // namespace

const char* CpuLevelName(CpuLevel level) {
  constexpr const char* kNames[] = {"avx2", "avx512", "avx512bf16", "zen4",
                                    "zen5", "amx",    "granite"};
  static_assert(std::size(kNames) == std::size(kCpuLevels));
  return kNames[static_cast<int>(level)];
}

std::vector<CpuLevel> SupportedCpuLevels() {
  std::vector<CpuLevel> levels;
  std::copy_if(std::begin(kCpuLevels), std::end(kCpuLevels), std::back_inserter(levels), HasLevel);
  return levels;
}

absl::StatusOr<CpuLevel> DetectCpuLevel() {
  const std::vector<CpuLevel> levels = SupportedCpuLevels();
  if (levels.empty()) {
    return absl::UnimplementedError("this CPU lacks AVX2 and FMA, which the CPU backend needs");
  }
  // Any CPU with AVX512-BF16 can run the levels for Zen; others than AMD's gain nothing by it.
  if (levels.back() == CpuLevel::kZen5) {
    if (!__builtin_cpu_is("amd")) return CpuLevel::kAvx512Bf16;
    if (ThisCpu().family < kFamilyOfZen5) return CpuLevel::kZen4;
  }
  if (levels.back() == CpuLevel::kGranite) {
    const CpuKind cpu = ThisCpu();
    const bool is_older = cpu.model == kSapphireRapids || cpu.model == kEmeraldRapids;
    if (cpu.family == 6 && is_older) return CpuLevel::kAmx;
  }
  return levels.back();
}

namespace cpu {

const CpuKernels& KernelsOf(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2:
      return Avx2Kernels();
    case CpuLevel::kAvx512:
      return Avx512Kernels();
    case CpuLevel::kAvx512Bf16:
      return Avx512Bf16Kernels();
    case CpuLevel::kZen4:
      return Zen4Kernels();
    case CpuLevel::kZen5:
      return Zen5Kernels();
    case CpuLevel::kAmx:
      return AmxKernels();
    case CpuLevel::kGranite:
      break;
  }
  return GraniteKernels();
}

}  // namespace cpu
}  // namespace ziggurat
