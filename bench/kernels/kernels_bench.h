// Kernels against the limits of the machine, measured in the same run.
//
// Decode attention against the read bandwidth, and against itself over a bf16 cache of as many
// tokens: the caches of one measurement (sequences of 8,192 tokens each) would be a gigabyte and
// more in bf16, far more than any last level cache, as they are when a daemon decodes; every step
// reads them once. Or, if asked, so small that no memory is read. Prefill attention and column sums
// in FLOP/s. Matrix products against oneDNN's best (gemm_bench.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "attention/backend.h"

namespace ziggurat {

struct KernelsBenchOptions {
  int threads = 2;
  double gigabytes = 2;              ///< of caches
  CpuLevel level = CpuLevel::kAvx2;  ///< whose kernels; matrix products with the best one alone
  std::string filter = {};           ///< a regular expression over names; empty: all
  /// Decode attention alone, over a cache of 256 tokens for each thread: what its arithmetic takes
  /// where the second-level cache holds that. `gigabytes` does not count.
  bool in_cache = false;
};

/// Prints google-benchmark's table. INVALID_ARGUMENT names the option that is out of range.
absl::Status RunKernelsBench(const KernelsBenchOptions& options);

}  // namespace ziggurat
