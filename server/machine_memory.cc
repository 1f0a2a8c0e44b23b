#include "server/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ziggurat {
namespace {

/// The number in a file; the largest one where there is no file, or it says "max".
size_t LimitIn(const std::filesystem::path& file) {
  std::ifstream stream(file);
  size_t bytes = 0;
  return stream >> bytes ? bytes : std::numeric_limits<size_t>::max();
}

}  // namespace

size_t MachineMemoryBytes(const std::filesystem::path& root) {
  size_t least = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  std::ifstream own(root / "proc/self/cgroup");
  // Lines are ID:CONTROLLERS:PATH; those of version 2 have no controllers.
  for (std::string line; std::getline(own, line);) {
    const size_t controllers = line.find(':'), path = line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string names = line.substr(controllers + 1, path - controllers - 1);
    const bool is_unified = names.empty();
    // Controllers may be mounted together, in a folder of all their names.
    if (!is_unified && ("," + names + ",").find(",memory,") == std::string::npos) continue;
    const std::filesystem::path top = groups / names;
    // A limit of any group above counts. Inside a container the path may be another one's: then the
    // top is its own.
    std::filesystem::path group = std::filesystem::path(line.substr(path + 1)).relative_path();
    for (;; group = group.parent_path()) {
      least = std::min(
          least, LimitIn(top / group / (is_unified ? "memory.max" : "memory.limit_in_bytes")));
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace ziggurat
