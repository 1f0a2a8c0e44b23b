// What instructions the CPU kernels may use. One level is one set of kernels (attention/cpu); a
// program picks one at run time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat {

enum class CpuLevel : uint8_t {
  kAvx2,
  kAvx512,
  kAvx512Bf16,  ///< and VNNI and VBMI
  /// The same instructions, used more: for CPUs whose VDPBF16PS does twice the multiply-adds per
  /// cycle of FMAs. Zen 4 and 5 differ in the order in which they read memory best.
  kZen4,
  kZen5,
  /// Tile registers (Intel since Sapphire Rapids), where the operating system lends them. Since
  /// Granite Rapids they pay for fewer queries.
  kAmx,
  kGranite,
};

/// All of them, whatever this machine is; each wants what those before it want.
inline constexpr CpuLevel kCpuLevels[] = {
    CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16, CpuLevel::kZen4,
    CpuLevel::kZen5, CpuLevel::kAmx,    CpuLevel::kGranite};

/// "avx2", "avx512", "avx512bf16", "zen4", "zen5", "amx", "granite"; what users write and read.
const char* CpuLevelName(CpuLevel level);

/// Those that this machine can run, in the order of kCpuLevels. Asks Linux for tile registers where
/// the CPU has them, once for the whole process; without them no level is one that needs them.
std::vector<CpuLevel> SupportedCpuLevels();

/// The one to choose among them; UNIMPLEMENTED where the CPU lacks AVX2 and FMA.
absl::StatusOr<CpuLevel> DetectCpuLevel();

}  // namespace ziggurat
