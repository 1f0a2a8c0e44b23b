// Private to this folder.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace ziggurat {

/// Debian builds Abseil with a string_view of its own; absl::StrCat takes only that one.
inline absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace ziggurat
