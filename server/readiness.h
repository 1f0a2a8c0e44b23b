// Where the daemon stands; what /readyz answers.
#pragma once

namespace ziggurat {

enum class Readiness : int { kLoading, kServing, kDraining };

/// "loading", "serving", "draining".
constexpr const char* ReadinessName(Readiness readiness) {
  switch (readiness) {
    case Readiness::kLoading:
      return "loading";
    case Readiness::kServing:
      return "serving";
    case Readiness::kDraining:
      return "draining";
  }
  return "unknown";
}

}  // namespace ziggurat
