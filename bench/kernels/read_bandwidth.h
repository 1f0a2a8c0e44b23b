// The yardstick for kernels that only read: how fast this machine reads memory.
#pragma once

#include <cstddef>

namespace ziggurat {

/// Bytes per second at which `threads` threads read `bytes` bytes at `data` once, the best of
/// several plain read loops (linear, four streams, with prefetching) and of `repeats` passes of
/// each. The buffer should be several times the size of the last level cache.
double MeasureReadBandwidth(const std::byte* data, size_t bytes, int threads, int repeats);

}  // namespace ziggurat
