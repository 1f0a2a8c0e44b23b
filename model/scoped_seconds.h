// Times in seconds, for metrics.
#pragma once

#include <chrono>

namespace ziggurat {

inline double Seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Adds the time from its making to its end to `*seconds`.
class ScopedSeconds {
 public:
  explicit ScopedSeconds(double* seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~ScopedSeconds() { *seconds_ += Seconds(Clock::now() - start_); }
  ScopedSeconds(const ScopedSeconds&) = delete;
  ScopedSeconds& operator=(const ScopedSeconds&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point start_;
};

}  // namespace ziggurat
