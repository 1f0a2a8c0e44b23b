// Loops over OpenMP threads. libgomp's pool is shared with oneDNN, so the two never compete.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>

namespace ziggurat {

/// Fewer elements than this are not worth waking other threads.
constexpr size_t kElementsWorthThreads = 16384;

/// Calls body(i, thread) for every i in [0, count), each once, in any order.
template <typename Body>
void ParallelFor(int threads, size_t count, Body body) {
  if (threads == 1 || count <= 1) {
    for (size_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (size_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

/// Calls body(thread) on `threads` threads at once.
template <typename Body>
void ParallelThreads(size_t threads, Body body) {
  if (threads <= 1) {
    if (threads == 1) body(0);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(threads))
  body(omp_get_thread_num());
}

/// Calls body(begin, end) over disjoint ranges that cover [0, count), a range per thread, where one
/// step of the range is `elements` elements of work.
template <typename Body>
void ParallelRanges(int threads, size_t count, size_t elements, Body body) {
  if (threads == 1 || count * elements < kElementsWorthThreads) {
    if (count > 0) body(size_t{0}, count);
    return;
  }
  const size_t ranges = std::min<size_t>(threads, count);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (size_t i = 0; i < ranges; ++i) body(count * i / ranges, count * (i + 1) / ranges);
}

}  // namespace ziggurat
