#include "server/cli/standard_input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ziggurat {

absl::StatusOr<std::string> ReadStandardInput() {
  std::string text;
  char piece[1 << 16];
  while (const size_t got = std::fread(piece, 1, sizeof(piece), stdin)) text.append(piece, got);
  if (std::ferror(stdin) == 0) return text;
  return absl::FailedPreconditionError(absl::StrCat("stdin: ", std::strerror(errno)));
}

}  // namespace ziggurat
