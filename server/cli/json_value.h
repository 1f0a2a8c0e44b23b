// JSON of a file in messages about it.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ziggurat {

/// What stands there. Arrays and objects by their kind: printing recurses, and they may nest to any
/// depth.
inline std::string Shown(const nlohmann::json& value) {
  return value.is_structured() ? absl::StrCat("an ", value.type_name()) : value.dump();
}

}  // namespace ziggurat
