// How long a daemon that is busy is asked again.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ziggurat {

constexpr absl::Duration kBusyPatience = absl::Minutes(10);

class Patience {
 public:
  explicit Patience(absl::Duration whole) : ends_(absl::Now() + whole) {}

  /// How long to wait before asking once more: twice as long each time, up to a second. Absent once
  /// the patience has ended.
  std::optional<absl::Duration> NextPause() {
    if (absl::Now() > ends_) return std::nullopt;
    const absl::Duration pause = pause_;
    pause_ = std::min(2 * pause_, absl::Seconds(1));
    return pause;
  }

 private:
  const absl::Time ends_;
  absl::Duration pause_ = absl::Milliseconds(50);
};

}  // namespace ziggurat
