// JSON as text.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace ziggurat {

/// Of nlohmann::json or ordered_json, on one line where `indent` is -1. Bytes that are no UTF-8
/// become U+FFFD.
template <class Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ziggurat
