// The flags of `ziggurat serve` that protect its ports.
#pragma once

#include "CLI/CLI.hpp"
#include "server/security/security_config.h"

namespace ziggurat {

/// `config` must live until the flags have been parsed.
void AddSecurityFlags(CLI::App& serve, SecurityConfig& config);

}  // namespace ziggurat
