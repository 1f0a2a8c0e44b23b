// The backends of the CPU that a test runs.
#pragma once

#include <memory>
#include <vector>

#include "attention/backend.h"

namespace ziggurat {

/// Every level that this machine has.
inline std::vector<std::unique_ptr<AttentionBackend>> CpuBackends(int threads) {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  for (CpuLevel level : SupportedCpuLevels()) backends.push_back(*MakeCpuBackend(level, threads));
  return backends;
}

/// The reference, and every level.
inline std::vector<std::unique_ptr<AttentionBackend>> BackendsWith(int threads) {
  std::vector<std::unique_ptr<AttentionBackend>> backends = CpuBackends(threads);
  backends.insert(backends.begin(), MakeReferenceBackend());
  return backends;
}

}  // namespace ziggurat
