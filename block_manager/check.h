// Aborts for our own mistakes. Never for anything that a user, a file or a client can cause.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ziggurat {

/// Aborts with `what` and the caller's place unless `holds`.
/// (The builtins rather than std::source_location, which clang-tidy of Debian 12 does not know.)
inline void CheckThat(bool holds, const char* what, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  if (!holds) [[unlikely]] {
    std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
    std::abort();
  }
}

}  // namespace ziggurat
