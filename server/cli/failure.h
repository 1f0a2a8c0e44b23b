// How every command says that it failed.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/cli/command.h"

namespace ziggurat {

/// The same failure, and what it is about: "--out: no such folder".
absl::Status Prefixed(std::string_view what, const absl::Status& status);

/// kExitUsage for INVALID_ARGUMENT, else kExitFailure.
int ExitCodeOf(const absl::Status& status);

/// Says on stderr, on one line (and two that show a policy), why `command` failed, whatever a file
/// or a server put into the message. Returns `exit_code`.
int SayFailure(std::string_view command, const absl::Status& status, int exit_code = kExitFailure);

/// The same for a text in lines of our own. What others put into it must be Printable already, so
/// that it adds none.
int SayFailure(std::string_view command, std::string_view lines, int exit_code = kExitFailure);

}  // namespace ziggurat
