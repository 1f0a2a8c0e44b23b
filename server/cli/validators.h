// What numbers and texts of flags may be. CLI11's own validators let NaN pass, write out the
// largest double where they do not, and take 010 for 8.
#pragma once

#include <climits>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

/// Of digits alone. --help says the range.
inline CLI::Validator IntegerBetween(int least, int most) {
  const std::string range = most == INT_MAX ? absl::StrCat("at least ", least)
                                            : absl::StrCat("from ", least, " to ", most);
  return CLI::Validator(
      [least, most, range](const std::string& text) {
        int value = 0;
        if (text.empty()) return std::string();  // is refused by itself
        const bool is_decimal =
            absl::c_all_of(text, absl::ascii_isdigit) && (text == "0" || text[0] != '0');
        if (is_decimal && absl::SimpleAtoi(text, &value) && value >= least && value <= most) {
          return std::string();
        }
        return absl::StrCat("'", text, "' must be an integer ", most == INT_MAX ? "of " : "",
                            range);
      },
      range);
}

inline CLI::Validator NumberBetween(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) {
          return std::string();
        }
        return absl::StrCat("'", text, "' must be a number from ", least, " to ", most);
      },
      "");
}

/// Of seconds, rates and factors.
inline CLI::Validator PositiveNumber() {
  return CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value > 0 && value < 1e9) {
          return std::string();
        }
        return "'" + text + "' must be a number above 0 and below 1e9";
      },
      "");
}

/// Of a string that goes into a message, which takes no other bytes.
inline CLI::Validator Utf8Text() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(ValidateUtf8(text).message()); }, "");
}

}  // namespace ziggurat
