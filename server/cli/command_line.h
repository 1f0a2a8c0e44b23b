// What a command is called, and how it was asked for.
#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace ziggurat {

/// "ziggurat bench serve".
std::string FullName(const CLI::App& command);

/// The command that was asked for, as far as it was told: `app` itself, or one below it.
const CLI::App& DeepestParsed(const CLI::App& app);

/// A line for a shell that asks for the same again: what was given of the flags of `command`, which
/// has been parsed, and the defaults that --help shows.
std::string CommandLineOf(const CLI::App& command);

}  // namespace ziggurat
