// When the engine makes its next snapshot.
#pragma once

#include <algorithm>
#include <chrono>

#include "scheduler/request.h"

namespace ziggurat {

/// A snapshot walks every running sequence, so its rate is bounded, and its share of the time; but
/// for the first step after a rest, in which few run. Engine thread only.
class SnapshotPace {
 public:
  explicit SnapshotPace(SteadyTime now) : begun_(now) {}

  /// A request was admitted, begun or finished: the next snapshot is due earlier.
  void NoteChange() { is_stale_ = true; }
  /// `device_waits`: while one is made a device has nothing to do, so that there is less time for
  /// it.
  bool IsDue(SteadyTime now, bool device_waits) const {
    const Duration age = now - begun_;
    const Duration rest = (device_waits ? kRestOfDevice : kRest) * cost_;
    const Duration interval = is_stale_ ? Duration(kStaleInterval) : Duration(kInterval);
    return age >= std::min<Duration>(rest, kLongestRest) && age >= interval;
  }
  void NoteMade(SteadyTime begun, SteadyTime ended) {
    begun_ = begun;
    cost_ = ended - begun;
    is_stale_ = false;
  }

 private:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr auto kInterval = std::chrono::milliseconds(100);
  static constexpr auto kStaleInterval = std::chrono::milliseconds(10);
  static constexpr int kRest = 100;          // times as long as the last one took, or ...
  static constexpr int kRestOfDevice = 400;  // where a device waits meanwhile, but ...
  static constexpr auto kLongestRest = std::chrono::seconds(2);

  SteadyTime begun_;  ///< the last one
  Duration cost_{};   ///< of the last one
  bool is_stale_ = false;
};

}  // namespace ziggurat
