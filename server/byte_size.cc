#include "server/byte_size.h"

#include <charconv>
#include <cmath>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ziggurat {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"kb", 1e3},
    {"mb", 1e6},
    {"gb", 1e9},
    {"tb", 1e12},
    {"kib", 1024.0},
    {"mib", 1024.0 * 1024},
    {"gib", 1024.0 * 1024 * 1024},
    {"tib", 1024.0 * 1024 * 1024 * 1024},
};

absl::Status Malformed(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text),
                   "' is no size: expected a number of bytes such as 512MiB, 2GiB or 1GB"));
}

}  // namespace

absl::StatusOr<size_t> ParseByteSize(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return Malformed(text);
  std::string unit(end, text.data() + text.size());
  absl::StripLeadingAsciiWhitespace(&unit);
  absl::AsciiStrToLower(&unit);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * known.bytes;
    if (bytes >= 0x1p63) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", std::string(text), "' is too large: must be below 2^63 bytes"));
    }
    return static_cast<size_t>(bytes);
  }
  return Malformed(text);
}

ScaledBytes ScaleBytes(double bytes, double limit) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= limit && unit + 1 < std::size(kNames)) {
    bytes /= 1024;
    ++unit;
  }
  return {bytes, kNames[unit]};
}

std::string FormatByteSize(size_t bytes) {
  // From 1023.5 on it would be rounded to 1024.
  const auto [value, unit] = ScaleBytes(static_cast<double>(bytes), 1023.5);
  const bool whole = value == std::floor(value) || value >= 100;
  return absl::StrFormat("%.*f %s", whole ? 0 : 1, value, unit);
}

}  // namespace ziggurat
