#include "bench/kernels/read_bandwidth.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ziggurat {
namespace {

constexpr size_t kLine = 64;

using Words32 = uint64_t __attribute__((vector_size(32), aligned(8), may_alias));
using Words64 = uint64_t __attribute__((vector_size(64), aligned(8), may_alias));

/// Sums of four lines at a time, in registers.
template <class Words>
struct Sums {
  static constexpr int kVectors = 4 * kLine / sizeof(Words);
  static constexpr int kOfLine = kVectors / 4;
  Words vector[kVectors] = {};

  __attribute__((always_inline)) void AddLine(int line, const std::byte* data) {
    for (int v = 0; v < kOfLine; ++v) {
      vector[line * kOfLine + v] += reinterpret_cast<const Words*>(data)[v];
    }
  }
  __attribute__((always_inline)) uint64_t Total() const {
    Words all = {};
    for (const Words& some : vector) all += some;
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof(Words) / 8; ++i) total += all[i];
    return total;
  }
};

template <class Words>
__attribute__((always_inline)) inline uint64_t ReadLinear(const std::byte* data, size_t bytes,
                                                          size_t prefetch_bytes) {
  Sums<Words> sums;
  for (size_t i = 0; i < bytes; i += 4 * kLine) {
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) {
      if (prefetch_bytes != 0) __builtin_prefetch(data + i + l * kLine + prefetch_bytes, 0, 3);
      sums.AddLine(l, data + i + l * kLine);
    }
  }
  return sums.Total();
}

template <class Words>
__attribute__((always_inline)) inline uint64_t ReadFourStreams(const std::byte* data,
                                                               size_t bytes) {
  Sums<Words> sums;
  const size_t quarter = bytes / 4;
  for (size_t i = 0; i < quarter; i += kLine) {
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) sums.AddLine(l, data + l * quarter + i);
  }
  return sums.Total();
}

/// The kinds of reading.
constexpr int kKinds = 4;
template <class Words>
__attribute__((always_inline)) inline uint64_t Read(int kind, const std::byte* data, size_t bytes) {
  constexpr size_t kAhead[] = {0, 2048, 8192};
  return kind < 3 ? ReadLinear<Words>(data, bytes, kAhead[kind])
                  : ReadFourStreams<Words>(data, bytes);
}

// As wide as the machine has registers: narrower loads would understate the bandwidth.
__attribute__((target("avx512f"))) uint64_t ReadWith64(int kind, const std::byte* data,
                                                       size_t bytes) {
  return Read<Words64>(kind, data, bytes);
}
__attribute__((target("avx2"))) uint64_t ReadWith32(int kind, const std::byte* data, size_t bytes) {
  return Read<Words32>(kind, data, bytes);
}

uint64_t ReadPlainly(int kind, const std::byte* data, size_t bytes) {
  return Read<Words32>(kind, data, bytes);
}

}  // namespace

double MeasureReadBandwidth(const std::byte* data, size_t bytes, int threads, int repeats) {
  const size_t part = bytes / threads / (4 * kLine) * (4 * kLine);
  const auto read = __builtin_cpu_supports("avx512f") ? ReadWith64
                    : __builtin_cpu_supports("avx2")  ? ReadWith32
                                                      : ReadPlainly;
  double best = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const double start = omp_get_wtime();
      int team = 0;  // a limit may leave fewer than were asked for
#pragma omp parallel num_threads(threads)
      {
#pragma omp single nowait
        team = omp_get_num_threads();
        const std::byte* own = data + part * omp_get_thread_num();
        const uint64_t total = read(kind, own, part);
        asm volatile("" : : "r"(total));  // the result counts as used
      }
      best = std::max(best, static_cast<double>(part) * team / (omp_get_wtime() - start));
    }
  }
  omp_pause_resource_all(omp_pause_soft);  // other threads' teams are not to wait for this one's
  return best;
}

}  // namespace ziggurat
