// Occupancy of the KV cache as JSON: what `ziggurat cache --json` prints and the HTTP port answers.
#pragma once

#include "nlohmann/json.hpp"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

// Field by field, under the names of the messages. Protobuf's own JSON would write 64-bit numbers
// as strings.

/// What is optional and absent is left out.
nlohmann::ordered_json LayerJson(const v1::LayerCacheReport& layer);
nlohmann::ordered_json RequestJson(const v1::RequestOccupancy& request);
nlohmann::ordered_json CacheJson(const v1::GetCacheResponse& cache);

/// As text. Bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace ziggurat
