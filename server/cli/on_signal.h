// What Ctrl-C does while a call, or loading, cannot be asked to look for it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "server/signals.h"

namespace ziggurat {

/// For as long as it exists, the first signal has `action` called, in a thread of its own, once. It
/// is the one waiter for the signals meanwhile.
class OnSignal {
 public:
  OnSignal(TerminationSignals& signals, std::function<void()> action)
      : thread_([this, &signals, act = std::move(action)] {
          while (!is_over_) {
            if (signals.Wait(absl::Milliseconds(50)) == 0) continue;
            act();
            return;
          }
        }) {}
  ~OnSignal() {
    is_over_ = true;
    thread_.join();
  }
  OnSignal(const OnSignal&) = delete;
  OnSignal& operator=(const OnSignal&) = delete;

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

}  // namespace ziggurat
