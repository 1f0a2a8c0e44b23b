#include "server/version.h"

#include "server/version_config.h"  // made by CMake

namespace ziggurat {

std::string VersionText() { return ZIGGURAT_VERSION " (" ZIGGURAT_COMMIT ")"; }

}  // namespace ziggurat
