#include "compression/window_selection.h"

#include <fmt/format.h>

namespace ziggurat {

WindowScoreStatistic ReadWindowStatistic(const PolicyArguments& arguments) {
  return {.window = static_cast<int>(arguments.Integer("window")),
          .kernel = static_cast<int>(arguments.Integer("kernel")),
          .pooling = arguments.Choice("pool") == 0 ? ScorePooling::kAverage : ScorePooling::kMax};
}

std::optional<ArgumentError> CheckBudgetAboveWindow(const PolicyArguments& arguments) {
  const int64_t budget = arguments.Integer("budget");
  const int64_t window = arguments.Integer("window");
  if (budget > window) return std::nullopt;
  return ArgumentError{
      "budget",
      fmt::format("budget={} must be greater than window={}, which it includes", budget, window)};
}

}  // namespace ziggurat
