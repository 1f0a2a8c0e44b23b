// The parameters of SnapKV's selection inside a layer (arXiv:2404.14469), which PyramidKV and
// others share: an observation window, pooled scores, a budget that includes the window.
#pragma once

#include <cstdint>
#include <optional>

#include "compression/cache_plan.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {

/// Bounds of parameters that count tokens of a layer: far above any context, far below overflow.
inline constexpr double kMaxTokensParameter = 1 << 24;

inline constexpr std::string_view kPoolingChoices[] = {"avg", "max"};

constexpr ParameterSpec BudgetParameter(std::string_view help) {
  return {.name = "budget",
          .help = help,
          .is_amount = true,
          .minimum = 2,
          .maximum = kMaxTokensParameter};
}
constexpr ParameterSpec WindowParameter(double default_value) {
  return {.name = "window",
          .help = "the last prompt tokens, whose attention selects and which are all kept",
          .minimum = 1,
          .maximum = 1024,
          .default_value = default_value};
}
constexpr ParameterSpec KernelParameter() {
  return {.name = "kernel",
          .help = "neighbouring tokens that scores are pooled over",
          .odd = true,
          .minimum = 1,
          .maximum = 127,
          .default_value = 5};
}
constexpr ParameterSpec PoolParameter() {
  return {.name = "pool",
          .help = "how scores are pooled",
          .type = ParameterType::kChoice,
          .choices = kPoolingChoices,
          .default_value = 0};
}

/// The statistic that `window`, `kernel` and `pool` ask for.
WindowScoreStatistic ReadWindowStatistic(const PolicyArguments& arguments);

/// budget > window, so that there is something to select. Aborts where the policy has no parameters
/// of these names.
std::optional<ArgumentError> CheckBudgetAboveWindow(const PolicyArguments& arguments);

}  // namespace ziggurat
