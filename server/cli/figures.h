// Figures as the report writes them.
#pragma once

#include <cstdint>
#include <string>

namespace ziggurat {

/// What stands where a figure cannot be told.
constexpr char kNoFigure[] = "–";

/// Three significant digits, so that rows can be told apart: "1.04 MiB", "288 KiB", "12 B".
std::string FormatBytes(double bytes);
/// Three significant digits, or more before the point; not negative: "0.25", "12.5", "1250".
std::string FormatDigits(double value);
/// "16.7 %"
std::string FormatPercent(double share);
/// With so many decimals.
std::string FormatDecimals(double value, int decimals);
/// "0.545", or that nothing was counted.
std::string FormatShare(int64_t part, int64_t whole);

}  // namespace ziggurat
