// Debian builds Abseil with a string_view of its own, and absl::StrCat takes only that one.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace ziggurat {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace ziggurat
