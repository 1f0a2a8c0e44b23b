#include "server/signals.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace ziggurat {
namespace {

sigset_t Terminations() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

TerminationSignals::TerminationSignals() {
  const sigset_t set = Terminations();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int TerminationSignals::Wait(absl::Duration timeout) {
  const sigset_t set = Terminations();
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    int signal_number = 0;
    if (timeout == absl::InfiniteDuration()) {
      signal_number = sigwaitinfo(&set, nullptr);
    } else {
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      const timespec wait = absl::ToTimespec(left);
      signal_number = sigtimedwait(&set, nullptr, &wait);
    }
    if (signal_number > 0) return signal_number;
    if (errno == EAGAIN) return 0;  // the time is over; EINTR: once more
  }
}

}  // namespace ziggurat
