// The configuration file: one YAML mapping from the names of flags to their values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat {

/// One line of the file: `key: value` or `key: [value, value]`.
struct FileSetting {
  std::string key;
  int line = 0;  ///< of the key, 1-based
  std::vector<std::string> values;
};

/// The settings in their order; none where the text is empty. A value is the text that stands there
/// (`512`, `yes`, `4GiB`): what it means is for the flag to say. INVALID_ARGUMENT begins with
/// "PATH:LINE: " and says what is wrong: no YAML, no mapping, a key that stands twice or has no
/// value, a mapping where a value should be.
absl::StatusOr<std::vector<FileSetting>> ParseSettingsFile(std::string_view text,
                                                           const std::string& path);

/// The same of a file, of at most 1 MiB. NOT_FOUND where it is larger or cannot be read.
absl::StatusOr<std::vector<FileSetting>> ReadSettingsFile(const std::string& path);

/// `values` as the file writes them: one as it is, with quotes where YAML needs them, several as a
/// list.
std::string WriteSettingValue(const std::vector<std::string>& values);

}  // namespace ziggurat
