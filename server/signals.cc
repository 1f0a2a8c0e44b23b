#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace ziggurat {

TerminationSignals::TerminationSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

int TerminationSignals::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    int signal_number = 0;
    siginfo_t info = {};
    if (timeout == absl::InfiniteDuration()) {
      signal_number = sigwaitinfo(&signals_, &info);
    } else {
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      const timespec wait = absl::ToTimespec(left);
      signal_number = sigtimedwait(&signals_, &info, &wait);
    }
    if (signal_number > 0) {
      is_own_ = info.si_code == SI_USER && info.si_pid == getpid();
      return signal_number;
    }
    if (errno == EAGAIN) return 0;  // the time is over; EINTR: once more
  }
}

}  // namespace ziggurat
