// Ports that take no more connections.
#pragma once

#include <string_view>

namespace ziggurat {

/// To be called once a port has stopped taking connections, as gRPC and httplib do for good when
/// they cannot take one: gRPC for want of file descriptors, httplib for want of memory or where the
/// whole system has no more files. Logs `why`, and sends the process a SIGTERM the first time, so
/// that it ends in order: see TerminationSignals. Any thread.
void ReportPortFailure(std::string_view why);

}  // namespace ziggurat
