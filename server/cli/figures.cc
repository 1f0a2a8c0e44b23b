#include "server/cli/figures.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/byte_size.h"

namespace ziggurat {

std::string FormatBytes(double bytes) {
  if (std::isnan(bytes)) return kNoFigure;
  // From 999.5 on three digits would not do.
  const auto [value, unit] = ScaleBytes(bytes, 999.5);
  const bool is_scaled = value != bytes;
  return absl::StrCat(is_scaled ? FormatDigits(value) : FormatDecimals(value, 0), " ", unit);
}

std::string FormatDigits(double value) {
  return FormatDecimals(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string FormatPercent(double share) {
  return std::isnan(share) ? kNoFigure : absl::StrFormat("%.1f %%", 100 * share);
}

std::string FormatDecimals(double value, int decimals) {
  return std::isnan(value) ? kNoFigure : absl::StrFormat("%.*f", decimals, value);
}

std::string FormatShare(int64_t part, int64_t whole) {
  if (whole == 0) return kNoFigure;
  return absl::StrFormat("%.3f", static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace ziggurat
