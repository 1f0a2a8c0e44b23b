// JSON of a line of a file, and in messages about it.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "model/input_file.h"
#include "nlohmann/json.hpp"

namespace ziggurat {

/// Discarded (is_discarded) where `line` is no JSON.
///   Json  nlohmann's, or its ordered kind
template <typename Json = nlohmann::json>
Json ParseLine(std::string_view line) {
  if (!CheckHasNoNul(line).ok()) return Json(nlohmann::detail::value_t::discarded);
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

/// What stands there. Arrays and objects by their kind: printing recurses, and they may nest to any
/// depth.
inline std::string Shown(const nlohmann::json& value) {
  return value.is_structured() ? absl::StrCat("an ", value.type_name()) : value.dump();
}

}  // namespace ziggurat
