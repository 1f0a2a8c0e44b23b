// What this build is.
#pragma once

#include <string>

namespace ziggurat {

/// "0.1.0 (a1b2c3d)"; "unknown" where the commit was not known when it was built.
std::string VersionText();

}  // namespace ziggurat
