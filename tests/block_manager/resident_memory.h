// Resident memory of this process, for tests that promise what it stays below.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace ziggurat {

/// Resident set size in bytes (second field of /proc/self/statm).
inline size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total_pages = 0;
  size_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/// Sanitizers keep shadow memory of their own, so figures say nothing there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kResidentMemoryIsOurs = false;
#else
constexpr bool kResidentMemoryIsOurs = true;
#endif

}  // namespace ziggurat
