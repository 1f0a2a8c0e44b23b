// The time of a scope, for metrics.
#pragma once

#include <chrono>

namespace ziggurat {

/// Adds the time from its making to its end to `*seconds`.
class ScopedSeconds {
 public:
  explicit ScopedSeconds(double* seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~ScopedSeconds() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  ScopedSeconds(const ScopedSeconds&) = delete;
  ScopedSeconds& operator=(const ScopedSeconds&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point start_;
};

}  // namespace ziggurat
