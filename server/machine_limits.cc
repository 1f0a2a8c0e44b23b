#include "server/machine_limits.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace ziggurat {
namespace {

/// Calls `look` with the folder of each control group that has a say about `controller`: the
/// process's own, and all above it, any of which may limit it. Inside a container the path may be
/// another one's: then the top is its own.
void ForEachGroup(
    const std::filesystem::path& root, std::string_view controller,
    absl::FunctionRef<void(const std::filesystem::path& folder, bool is_unified)> look) {
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  const std::string word = "," + std::string(controller) + ",";
  std::ifstream own(root / "proc/self/cgroup");
  // Lines are ID:CONTROLLERS:PATH; those of version 2 have no controllers.
  for (std::string line; std::getline(own, line);) {
    const size_t controllers = line.find(':'), path = line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string names = line.substr(controllers + 1, path - controllers - 1);
    const bool is_unified = names.empty();
    // Controllers may be mounted together, in a folder of all their names.
    if (!is_unified && ("," + names + ",").find(word) == std::string::npos) continue;
    const std::filesystem::path top = groups / names;
    std::filesystem::path group = std::filesystem::path(line.substr(path + 1)).relative_path();
    for (;; group = group.parent_path()) {
      look(top / group, is_unified);
      if (group.empty()) break;
    }
  }
}

/// Reads the numbers of a file. False where there is no such file, or it says "max", or has fewer.
template <typename... Numbers>
bool ReadNumbers(const std::filesystem::path& file, Numbers&... numbers) {
  std::ifstream stream(file);
  return static_cast<bool>((stream >> ... >> numbers));
}

}  // namespace

size_t MachineMemoryBytes(const std::filesystem::path& root) {
  size_t least = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  ForEachGroup(root, "memory", [&](const std::filesystem::path& folder, bool is_unified) {
    size_t bytes = 0;
    if (ReadNumbers(folder / (is_unified ? "memory.max" : "memory.limit_in_bytes"), bytes)) {
      least = std::min(least, bytes);
    }
  });
  return least;
}

int MachineCpus(const std::filesystem::path& root) {
  // Those that it may run on (taskset, a container's set of CPUs); where OpenMP has bound this
  // thread to one of them (OMP_PROC_BIND), all the same.
  double least = omp_get_num_procs();
  ForEachGroup(root, "cpu", [&](const std::filesystem::path& folder, bool is_unified) {
    // Microseconds of CPU time in every period of so many; no quota: "max", or -1.
    double quota = 0, period = 0;
    const bool is_there = is_unified ? ReadNumbers(folder / "cpu.max", quota, period)
                                     : ReadNumbers(folder / "cpu.cfs_quota_us", quota) &&
                                           ReadNumbers(folder / "cpu.cfs_period_us", period);
    if (is_there && quota > 0 && period > 0) least = std::min(least, quota / period);
  });
  return std::max(1, static_cast<int>(least));
}

}  // namespace ziggurat
