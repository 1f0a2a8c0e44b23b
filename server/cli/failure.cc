#include "server/cli/failure.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/printable.h"

namespace ziggurat {

absl::Status Prefixed(std::string_view what, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(std::string(what), ": ", std::string(status.message())));
}

int ExitCodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
}

int SayFailure(std::string_view command, const absl::Status& status, int exit_code) {
  return SayFailure(command, PrintableMessage({status.message().data(), status.message().size()}),
                    exit_code);
}

int SayFailure(std::string_view command, std::string_view lines, int exit_code) {
  std::fprintf(stderr, "ziggurat %s: %s\n", std::string(command).c_str(),
               PrintableLines(lines).c_str());
  return exit_code;
}

}  // namespace ziggurat
