// Memory of another process, as Linux counts it.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace ziggurat::e2e {

/// VmRSS: resident now.
size_t ResidentBytes(pid_t pid);
/// VmHWM: most that was resident since the start or the last reset.
size_t PeakResidentBytes(pid_t pid);
/// Sets the peak to what is resident now.
void ResetPeakResident(pid_t pid);

}  // namespace ziggurat::e2e
