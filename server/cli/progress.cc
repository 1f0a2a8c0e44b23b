#include "server/cli/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ziggurat {
namespace {

constexpr absl::Duration kBetweenLines = absl::Seconds(10);

std::string Clock(double seconds) {
  const int64_t whole = std::llround(seconds);
  if (whole >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

double Share(const RunProgress& progress) {
  if (progress.total_weight == 0) return 1;
  return static_cast<double>(progress.done_weight) / static_cast<double>(progress.total_weight);
}

}  // namespace

std::string DescribeProgress(const RunProgress& progress, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double share = Share(progress);
  std::string text = absl::StrCat(progress.done);
  if (progress.total > 0) absl::StrAppend(&text, "/", progress.total);
  absl::StrAppendFormat(&text, " %3.0f %%", 100 * share);
  if (progress.done > 0 && seconds > 0) {
    absl::StrAppendFormat(&text, " %.1f/s", static_cast<double>(progress.done) / seconds);
    if (share >= 1) {
      absl::StrAppend(&text, ", took ", Clock(seconds));
    } else if (share > 0) {
      absl::StrAppend(&text, ", ", Clock(seconds * (1 - share) / share), " left");
    }
  }
  if (progress.failed > 0) {
    absl::StrAppend(&text, ", ", progress.failed, " ", std::string(progress.failed_word));
  }
  return text;
}

std::string DrawProgress(const RunProgress& progress, absl::Duration elapsed, int columns) {
  std::string text = DescribeProgress(progress, elapsed);
  const int width = std::min(40, columns - static_cast<int>(text.size()) - 3);
  if (width >= 8) {
    const int cells = static_cast<int>(Share(progress) * width);
    const std::string bar = std::string(static_cast<size_t>(cells), '=') +
                            (cells < width ? ">" : "") +
                            std::string(static_cast<size_t>(std::max(0, width - cells - 1)), ' ');
    text = absl::StrCat("[", bar, "] ", text);
  }
  if (text.size() > static_cast<size_t>(std::max(columns, 1))) {
    text.resize(static_cast<size_t>(std::max(columns, 1)));
  }
  return text;
}

void ProgressLine::Write(const RunProgress& progress) {
  const absl::Duration elapsed = absl::Now() - start_;
  last_done_ = progress.done;
  if (is_terminal_) {
    // Back to the first column, and clear what was longer.
    std::fprintf(out_, "\r%s\033[K", DrawProgress(progress, elapsed, columns_ - 1).c_str());
  } else {
    std::fprintf(out_, "%s\n", DescribeProgress(progress, elapsed).c_str());
  }
  std::fflush(out_);
}

void ProgressLine::Update(const RunProgress& progress) {
  if (!is_terminal_ && absl::Now() - last_line_ < kBetweenLines) return;
  last_line_ = absl::Now();
  Write(progress);
}

void ProgressLine::Finish(const RunProgress& progress) {
  if (is_terminal_ || progress.done != last_done_) Write(progress);
  if (is_terminal_) std::fputc('\n', out_);
}

}  // namespace ziggurat
