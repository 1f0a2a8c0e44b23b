#include "server/cli/eval/result.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/cli/json_value.h"
#include "server/json_text.h"

namespace ziggurat::eval {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const CacheFigures& cache) {
  Json json;
  for (const auto& [name, figure] : kCacheFigures) json[name] = cache.*figure;
  return json;
}

/// Whole numbers that fit; the library makes some number of any.
template <typename Int>
void ReadInteger(const Json& json, const char* key, Int& to) {
  const Json& value = json.at(key);
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<Int>(value.get<uint64_t>())
                        : value.is_number_integer() && std::in_range<Int>(value.get<int64_t>());
  if (!fits) throw std::invalid_argument(absl::StrCat("'", key, "' is no whole number that fits"));
  to = value.get<Int>();
}

CacheFigures ParseCache(const Json& json) {
  CacheFigures cache;
  for (const auto& [name, figure] : kCacheFigures) ReadInteger(json, name, cache.*figure);
  return cache;
}

Result FromJson(const Json& json) {
  Result result;
  ResultKey& key = result.key;
  json.at("model").get_to(key.model);
  json.at("dtype").get_to(key.dtype);
  json.at("policy").get_to(key.policy);
  json.at("tasks").get_to(key.tasks);
  ReadInteger(json, "index", key.index);
  ReadInteger(json, "max_tokens", key.max_tokens);
  ReadInteger(json, "held_back", key.held_back);
  json.at("stop").get_to(key.stop);
  json.at("file").get_to(result.file);
  json.at("version").get_to(result.version);
  json.at("recall_asked").get_to(result.recall_asked);
  if (json.contains("error")) {
    json.at("error").at("code").get_to(result.error_code);
    json.at("error").at("message").get_to(result.error);
    return result;
  }
  json.at("text").get_to(result.text);
  ReadInteger(json, "prompt_tokens", result.prompt_tokens);
  ReadInteger(json, "completion_tokens", result.completion_tokens);
  json.at("queue_seconds").get_to(result.queue_seconds);
  json.at("first_token_seconds").get_to(result.first_token_seconds);
  json.at("total_seconds").get_to(result.total_seconds);
  result.cache = ParseCache(json.at("cache"));
  if (!json.contains("attention_recall")) return result;
  for (const Json& layer : json.at("attention_recall")) {
    result.attention_recall.push_back(layer.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                                      : layer.get<double>());
  }
  return result;
}

}  // namespace

void FillFrom(const v1::GenerateResult& message, Result& result) {
  result.prompt_tokens = message.usage().prompt_tokens();
  result.completion_tokens = message.usage().completion_tokens();
  result.queue_seconds = message.timings().queue_seconds();
  result.first_token_seconds = message.timings().first_token_seconds();
  result.total_seconds = message.timings().total_seconds();
  const v1::CacheReport& report = message.cache();
  CacheFigures& cache = result.cache;
  cache = {.bytes = report.bytes(), .blocks = report.blocks(), .full_blocks = report.full_blocks()};
  cache.distant_attentions = report.distant_attentions();
  cache.skipped_attentions = report.skipped_attentions();
  bool has_recall = false;
  for (const v1::LayerCacheReport& layer : report.layers()) {
    cache.lazy_layers += layer.lazy() ? 1 : 0;
    cache.evicted_tokens += layer.evicted_tokens();
    cache.merged_tokens += layer.merged_tokens();
    cache.distant_tokens += layer.distant_tokens();
    cache.quantized_tokens += layer.quantized_tokens();
    has_recall = has_recall || layer.has_attention_recall();
    result.attention_recall.push_back(layer.has_attention_recall()
                                          ? layer.attention_recall()
                                          : std::numeric_limits<double>::quiet_NaN());
  }
  if (!has_recall) result.attention_recall.clear();
}

std::string ToJsonLine(const Result& result) {
  const ResultKey& key = result.key;
  Json json = {{"model", key.model},
               {"dtype", key.dtype},
               {"policy", key.policy},
               {"file", result.file},
               {"tasks", key.tasks},
               {"index", key.index},
               {"max_tokens", key.max_tokens},
               {"held_back", key.held_back},
               {"stop", key.stop},
               {"recall_asked", result.recall_asked},
               {"version", result.version}};
  if (result.failed()) {
    json["error"] = {{"code", result.error_code}, {"message", result.error}};
  } else {
    json["text"] = result.text;
    json["prompt_tokens"] = result.prompt_tokens;
    json["completion_tokens"] = result.completion_tokens;
    json["queue_seconds"] = result.queue_seconds;
    json["first_token_seconds"] = result.first_token_seconds;
    json["total_seconds"] = result.total_seconds;
    json["cache"] = ToJson(result.cache);
    if (!result.attention_recall.empty()) json["attention_recall"] = result.attention_recall;
  }
  return JsonText(json);
}

absl::StatusOr<Result> ParseResult(std::string_view line) {
  const Json json = ParseLine<Json>(line);
  if (json.is_discarded()) return absl::InvalidArgumentError("not JSON");
  // As the library's getters do, ReadInteger throws; nothing else here does.
  try {
    return FromJson(json);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not a result: ", error.what()));
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(absl::StrCat("not a result: ", error.what()));
  }
}

}  // namespace ziggurat::eval
