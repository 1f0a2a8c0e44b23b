// Where the tests find what they test, and how thorough they are to be.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/files.h"

namespace ziggurat::e2e {

/// The daemon: $ZIGGURAT_BINARY, or the one of this build.
std::filesystem::path Binary();

/// $ZIGGURAT_DEVICE: what daemons are to compute on; empty: their choice.
std::string Device();
/// Device() names a GPU. There a row's last bits depend on who else is in the batch, since products
/// of more rows are another algorithm's: selections and codes at a border fall differently more
/// often.
bool ComputesOnGpu();

/// $ZIGGURAT_SOAK is set and not "0": run the long versions.
bool IsSoak();

/// The bundled model; always there.
std::filesystem::path NeedleLlama();

}  // namespace ziggurat::e2e
