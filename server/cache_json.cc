#include "server/cache_json.h"

#include <string>
#include <utility>

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;

template <typename Numbers>
Json ArrayOf(const Numbers& numbers) {
  Json array = Json::array();
  for (const auto number : numbers) array.push_back(number);
  return array;
}

Json OccupancyJson(const v1::LayerOccupancy& layer) {
  Json formats = Json::object();
  for (const v1::FormatOccupancy& format : layer.formats()) {
    formats[format.format()] = format.blocks();
  }
  return {{"layer", layer.layer()},
          {"used_blocks", layer.used_blocks()},
          {"reserved_blocks", layer.reserved_blocks()},
          {"live_bytes", layer.live_bytes()},
          {"tail_waste_bytes", layer.tail_waste_bytes()},
          {"blocks_by_format", std::move(formats)}};
}

}  // namespace

Json LayerJson(const v1::LayerCacheReport& layer) {
  Json formats = Json::array();
  for (const v1::FormatOccupancy& format : layer.formats()) {
    formats.push_back(
        {{"format", format.format()}, {"blocks", format.blocks()}, {"tokens", format.tokens()}});
  }
  Json object = {{"layer", layer.layer()},   {"budget_tokens", layer.budget_tokens()},
                 {"tokens", layer.tokens()}, {"blocks", layer.blocks()},
                 {"bytes", layer.bytes()},   {"live_bytes", layer.live_bytes()},
                 {"format", layer.format()}, {"formats", std::move(formats)},
                 {"lazy", layer.lazy()}};
  if (layer.has_merged_with()) object["merged_with"] = layer.merged_with();
  object["keys_of"] = ArrayOf(layer.keys_of());
  object["evicted_tokens"] = layer.evicted_tokens();
  object["merged_tokens"] = layer.merged_tokens();
  object["distant_tokens"] = layer.distant_tokens();
  object["quantized_tokens"] = layer.quantized_tokens();
  if (layer.has_attention_recall()) object["attention_recall"] = layer.attention_recall();
  return object;
}

Json RequestJson(const v1::RequestOccupancy& request) {
  Json layers = Json::array();
  for (const v1::LayerCacheReport& layer : request.layers()) layers.push_back(LayerJson(layer));
  return {{"id", request.id()},
          {"request_id", request.request_id()},
          {"compression", request.compression()},
          {"state", request.state()},
          {"prompt_tokens", request.prompt_tokens()},
          {"generated_tokens", request.generated_tokens()},
          {"blocks", request.blocks()},
          {"reserved_blocks", request.reserved_blocks()},
          {"layer_blocks", ArrayOf(request.layer_blocks())},
          {"layers", std::move(layers)}};
}

Json CacheJson(const v1::GetCacheResponse& cache) {
  Json layers = Json::array();
  for (const v1::LayerOccupancy& layer : cache.layers()) layers.push_back(OccupancyJson(layer));
  Json requests = Json::array();
  for (const v1::RequestOccupancy& request : cache.requests()) {
    requests.push_back(RequestJson(request));
  }
  return {{"block_bytes", cache.block_bytes()},
          {"total_blocks", cache.total_blocks()},
          {"used_blocks", cache.used_blocks()},
          {"reserved_blocks", cache.reserved_blocks()},
          {"free_blocks", cache.free_blocks()},
          {"high_water_blocks", cache.high_water_blocks()},
          {"workspace_capacity_bytes", cache.workspace_capacity_bytes()},
          {"workspace_high_water_bytes", cache.workspace_high_water_bytes()},
          {"running", cache.running()},
          {"waiting", cache.waiting()},
          {"layers", std::move(layers)},
          {"requests", std::move(requests)}};
}

std::string JsonText(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ziggurat
