// The memory that this process may have.
#pragma once

#include <cstddef>
#include <filesystem>

namespace ziggurat {

/// Bytes of the machine's memory, or what the control groups leave of it where they leave less.
///   root  where /proc and /sys are
size_t MachineMemoryBytes(const std::filesystem::path& root = "/");

}  // namespace ziggurat
