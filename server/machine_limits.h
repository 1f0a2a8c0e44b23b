// What this process may have of the machine: all, or what control groups leave of it, as those of a
// container do.
#pragma once

#include <cstddef>
#include <filesystem>

namespace ziggurat {

// `root` is where /proc and /sys are.

/// Bytes of memory.
size_t MachineMemoryBytes(const std::filesystem::path& root = "/");

/// Whole CPUs, at least one: those that the process may run on, or as many as it has the time of.
/// More threads than that would be stopped together whenever the time of a period is used up.
int MachineCpus(const std::filesystem::path& root = "/");

}  // namespace ziggurat
