#include "server/cli/eval/result.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ziggurat::eval {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const CacheFigures& cache) {
  return {{"bytes", cache.bytes},
          {"blocks", cache.blocks},
          {"full_blocks", cache.full_blocks},
          {"lazy_layers", cache.lazy_layers},
          {"evicted_tokens", cache.evicted_tokens},
          {"merged_tokens", cache.merged_tokens},
          {"distant_tokens", cache.distant_tokens},
          {"quantized_tokens", cache.quantized_tokens},
          {"distant_attentions", cache.distant_attentions},
          {"skipped_attentions", cache.skipped_attentions}};
}

CacheFigures ParseCache(const Json& json) {
  CacheFigures cache;
  json.at("bytes").get_to(cache.bytes);
  json.at("blocks").get_to(cache.blocks);
  json.at("full_blocks").get_to(cache.full_blocks);
  json.at("lazy_layers").get_to(cache.lazy_layers);
  json.at("evicted_tokens").get_to(cache.evicted_tokens);
  json.at("merged_tokens").get_to(cache.merged_tokens);
  json.at("distant_tokens").get_to(cache.distant_tokens);
  json.at("quantized_tokens").get_to(cache.quantized_tokens);
  json.at("distant_attentions").get_to(cache.distant_attentions);
  json.at("skipped_attentions").get_to(cache.skipped_attentions);
  return cache;
}

Result FromJson(const Json& json) {
  Result result;
  ResultKey& key = result.key;
  json.at("model").get_to(key.model);
  json.at("dtype").get_to(key.dtype);
  json.at("policy").get_to(key.policy);
  json.at("tasks").get_to(key.tasks);
  json.at("index").get_to(key.index);
  json.at("max_tokens").get_to(key.max_tokens);
  json.at("held_back").get_to(key.held_back);
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
  json.at("prompt_tokens").get_to(result.prompt_tokens);
  json.at("completion_tokens").get_to(result.completion_tokens);
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
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Result> ParseResult(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("not JSON");
  // The library's getters throw; nothing else here does.
  try {
    return FromJson(json);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not a result: ", error.what()));
  }
}

}  // namespace ziggurat::eval
