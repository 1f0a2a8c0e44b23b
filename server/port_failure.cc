#include "server/port_failure.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

std::atomic<bool> has_failed = false;

}  // namespace

void ReportPortFailure(std::string_view why) {
  spdlog::error("a port takes no more connections: {}", why);
  if (!has_failed.exchange(true)) kill(getpid(), SIGTERM);
}

}  // namespace ziggurat
