#include "tests/e2e/process_memory.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/environment.h"

namespace ziggurat::e2e {
namespace {

/// A field of /proc/PID/status, whose unit is KiB.
size_t StatusBytes(pid_t pid, const char* field) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  const size_t start = status.find(field);
  if (start == std::string::npos) {
    std::fprintf(stderr, "/proc/%d/status has no %s\n", static_cast<int>(pid), field);
    std::abort();
  }
  return std::strtoull(status.c_str() + start + std::string_view(field).size(), nullptr, 10) * 1024;
}

}  // namespace

size_t ResidentBytes(pid_t pid) { return StatusBytes(pid, "VmRSS:"); }
size_t PeakResidentBytes(pid_t pid) { return StatusBytes(pid, "VmHWM:"); }
void ResetPeakResident(pid_t pid) { WriteFile(absl::StrCat("/proc/", pid, "/clear_refs"), "5"); }

}  // namespace ziggurat::e2e
