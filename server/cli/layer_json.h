// The cache report of a layer as JSON, for the commands that print it.
#pragma once

#include "nlohmann/json.hpp"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// Field by field; what is optional and absent is left out.
inline nlohmann::ordered_json LayerJson(const v1::LayerCacheReport& layer) {
  using Json = nlohmann::ordered_json;
  Json formats = Json::array();
  for (const v1::FormatOccupancy& format : layer.formats()) {
    formats.push_back(
        {{"format", format.format()}, {"blocks", format.blocks()}, {"tokens", format.tokens()}});
  }
  Json keys_of = Json::array();
  for (const uint32_t lowest : layer.keys_of()) keys_of.push_back(lowest);
  Json object = {{"layer", layer.layer()},   {"budget_tokens", layer.budget_tokens()},
                 {"tokens", layer.tokens()}, {"blocks", layer.blocks()},
                 {"bytes", layer.bytes()},   {"live_bytes", layer.live_bytes()},
                 {"format", layer.format()}, {"formats", std::move(formats)},
                 {"lazy", layer.lazy()}};
  if (layer.has_merged_with()) object["merged_with"] = layer.merged_with();
  object["keys_of"] = std::move(keys_of);
  object["evicted_tokens"] = layer.evicted_tokens();
  object["merged_tokens"] = layer.merged_tokens();
  object["distant_tokens"] = layer.distant_tokens();
  object["quantized_tokens"] = layer.quantized_tokens();
  if (layer.has_attention_recall()) object["attention_recall"] = layer.attention_recall();
  return object;
}

}  // namespace ziggurat
