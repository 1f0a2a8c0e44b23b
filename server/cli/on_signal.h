// Ctrl-C while there is nothing to finish and nothing to keep.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "server/signals.h"

namespace ziggurat {

/// For as long as it exists, a signal ends the process at once, whatever is loaded or waited for,
/// with a last line on stderr unless that is empty. It is the one waiter for the signals meanwhile.
class ExitOnSignal {
 public:
  ExitOnSignal(TerminationSignals& signals, int exit_code, std::string last_line = {})
      : thread_([this, &signals, exit_code, line = std::move(last_line)] {
          while (!is_over_) {
            if (signals.Wait(absl::Milliseconds(50)) == 0) continue;
            if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
            std::_Exit(exit_code);
          }
        }) {}
  ~ExitOnSignal() {
    is_over_ = true;
    thread_.join();
  }
  ExitOnSignal(const ExitOnSignal&) = delete;
  ExitOnSignal& operator=(const ExitOnSignal&) = delete;

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

}  // namespace ziggurat
