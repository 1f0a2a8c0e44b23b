// Resident memory of this process.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace ziggurat {

/// Bytes (second field of /proc/self/statm); 0 where the system does not say.
inline size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all_pages = 0;
  size_t resident_pages = 0;
  if (!(statm >> all_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace ziggurat
