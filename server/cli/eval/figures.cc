#include "server/cli/eval/figures.h"

#include <array>
#include <cmath>

#include "absl/strings/str_format.h"

namespace ziggurat::eval {

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (std::isnan(bytes)) return kNoFigure;
  size_t unit = 0;
  // From 999.5 on three digits would not do.
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f %s", decimals, bytes, kUnits[unit]);
}

std::string FormatPercent(double share) {
  return std::isnan(share) ? kNoFigure : absl::StrFormat("%.1f %%", 100 * share);
}

std::string FormatNumber(double value, int decimals) {
  return std::isnan(value) ? kNoFigure : absl::StrFormat("%.*f", decimals, value);
}

std::string FormatShare(int64_t part, int64_t whole) {
  if (whole == 0) return kNoFigure;
  return absl::StrFormat("%.3f", static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace ziggurat::eval
