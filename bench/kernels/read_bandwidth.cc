#include "bench/kernels/read_bandwidth.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ziggurat {
namespace {

constexpr size_t kLine = 64;

/// Four cache lines as vectors of 64-bit integers; the compiler picks the instructions.
using Words = uint64_t __attribute__((vector_size(64)));

struct Sums {
  Words lane[4] = {};
  uint64_t Total() const {
    const Words all = lane[0] + lane[1] + lane[2] + lane[3];
    uint64_t total = 0;
    for (int i = 0; i < 8; ++i) total += all[i];
    return total;
  }
};

/// AVX-512 where the machine has it: narrower loads would understate the bandwidth.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t ReadLinear(
    const std::byte* data, size_t bytes, size_t prefetch_bytes) {
  Sums sums;
  for (size_t i = 0; i < bytes; i += 4 * kLine) {
    for (int l = 0; l < 4; ++l) {
      if (prefetch_bytes != 0) __builtin_prefetch(data + i + l * kLine + prefetch_bytes, 0, 3);
      sums.lane[l] += *reinterpret_cast<const Words*>(data + i + l * kLine);
    }
  }
  return sums.Total();
}

__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t ReadFourStreams(
    const std::byte* data, size_t bytes) {
  Sums sums;
  const size_t quarter = bytes / 4;
  for (size_t i = 0; i < quarter; i += kLine) {
    for (int l = 0; l < 4; ++l) {
      sums.lane[l] += *reinterpret_cast<const Words*>(data + l * quarter + i);
    }
  }
  return sums.Total();
}

}  // namespace

double MeasureReadBandwidth(const std::byte* data, size_t bytes, int threads, int repeats) {
  const size_t part = bytes / threads / (4 * kLine) * (4 * kLine);
  double best = 0;
  for (int kind = 0; kind < 4; ++kind) {
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
      {
        const std::byte* own = data + part * omp_get_thread_num();
        const size_t ahead[] = {0, 2048, 8192};
        const uint64_t total =
            kind < 3 ? ReadLinear(own, part, ahead[kind]) : ReadFourStreams(own, part);
        asm volatile("" : : "r"(total));  // the result counts as used
      }
      best = std::max(best, static_cast<double>(part) * threads / (omp_get_wtime() - start));
    }
  }
  return best;
}

}  // namespace ziggurat
