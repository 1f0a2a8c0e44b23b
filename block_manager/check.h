// Aborts for our own mistakes. Never for anything that a user, a file or a client can cause.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <source_location>

namespace ziggurat {

/// Aborts with `what` and the caller's place unless `holds`.
inline void CheckThat(bool holds, const char* what,
                      std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    std::fprintf(stderr, "%s:%u: check failed: %s\n", where.file_name(),
                 static_cast<unsigned>(where.line()), what);
    std::abort();
  }
}

}  // namespace ziggurat
