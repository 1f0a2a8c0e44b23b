// The backend that the tests of tests/attention run in this binary: where they ask for one of the
// CPU's, they get the GPU's kernels.

#include "absl/status/status.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat {

std::vector<CpuLevel> SupportedCpuLevels() { return {CpuLevel::kAvx2}; }

absl::StatusOr<CpuLevel> DetectCpuLevel() { return CpuLevel::kAvx2; }

absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCpuBackend(CpuLevel level, int threads) {
  if (level != CpuLevel::kAvx2 || threads < 1) return absl::InvalidArgumentError("one level alone");
  return std::make_unique<cuda::DeviceTwin>(ElementType::kF32);
}

}  // namespace ziggurat
