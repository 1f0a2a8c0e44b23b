// Messages as JSON: what the commands print with --json and the HTTP port answers. Protobuf's own
// JSON writes numbers of 64 bits as strings.
#pragma once

#include "nlohmann/json.hpp"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// Every field under its name, in the order of the message; what is optional and absent is left
/// out. Enumerations are the names of their values.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

/// The same, but for the formats of a layer of the pool: "blocks_by_format": {"bf16": 12}.
nlohmann::ordered_json CacheJson(const v1::GetCacheResponse& cache);

}  // namespace ziggurat
