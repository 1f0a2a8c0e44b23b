// How far a command is, for whoever waits for it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ziggurat {

/// How far a run is.
struct RunProgress {
  size_t done = 0;   ///< requests, failed ones included
  size_t total = 0;  ///< 0: nobody knows
  size_t failed = 0;
  std::string_view failed_word = "failed";  ///< what became of these
  /// Bytes of prompts: long ones take longer, so the time that is left goes by these.
  size_t done_weight = 0;
  size_t total_weight = 0;
};

/// "123/480  25 % 12.3/s, 0:29 left, 2 failed".
std::string DescribeProgress(const RunProgress& progress, absl::Duration elapsed);
/// The same behind a bar, "[=====>    ] 123/480 ...": at most `columns` wide, and without the bar
/// where there is no room for it.
std::string DrawProgress(const RunProgress& progress, absl::Duration elapsed, int columns);

/// Writes that: on a terminal over itself, elsewhere as a line every now and then.
class ProgressLine {
 public:
  ProgressLine(FILE* out, bool is_terminal, int columns)
      : out_(out), is_terminal_(is_terminal), columns_(columns), start_(absl::Now()) {}
  void Update(const RunProgress& progress);
  /// The last look; the next thing that is written begins a new line.
  void Finish(const RunProgress& progress);

 private:
  void Write(const RunProgress& progress);

  FILE* out_;
  bool is_terminal_;
  int columns_;
  absl::Time start_;
  absl::Time last_line_ = absl::InfinitePast();
  size_t last_done_ = 0;
};

}  // namespace ziggurat
