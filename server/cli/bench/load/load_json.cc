// result.json and requests.jsonl.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/cli/bench/load/load_report.h"
#include "server/json_text.h"

namespace ziggurat::bench {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json ToJson(const Distribution& figures) {
  return {{"count", figures.count},     {"mean", Number(figures.mean)},
          {"p50", Number(figures.p50)}, {"p95", Number(figures.p95)},
          {"p99", Number(figures.p99)}, {"max", Number(figures.max)}};
}

Json ToJson(const Goodput& good) {
  return {{"requests", good.requests},
          {"output_tokens", good.output_tokens},
          {"share", good.share},
          {"requests_per_second", good.requests_per_second},
          {"output_tokens_per_second", good.output_tokens_per_second}};
}

Json SettingJson(const LoadSetting& setting) {
  Json load = {{"kind", setting.kind}, {"seed", setting.seed}, {"warmup", setting.warmup}};
  if (setting.kind == "closed") load["clients"] = setting.clients;
  if (setting.kind == "poisson") load["requests_per_second"] = setting.rate;
  if (setting.kind == "trace") {
    load["trace"] = setting.trace;
    load["time_scale"] = setting.time_scale;
    load["length_scale"] = setting.length_scale;
  } else {
    load["input_tokens"] = setting.input_tokens;
    load["output_tokens"] = setting.output_tokens;
  }
  return load;
}

Json ModelJson(const v1::GetModelResponse& model) {
  return {{"name", model.name()},
          {"dtype", model.dtype()},
          {"backend", model.backend()},
          {"layers", model.num_layers()},
          {"vocab_size", model.vocab_size()},
          {"max_context_tokens", model.max_context_tokens()},
          {"max_prompt_tokens", model.max_prompt_tokens()},
          {"version", model.version()}};
}

Json RequestsJson(const LoadSummary& summary) {
  Json reasons = Json::object();
  for (const auto& [reason, count] : summary.reasons) reasons[reason] = count;
  return {{"made", summary.made},
          {"done", summary.done},
          {"refused", summary.refused},
          {"failed", summary.failed},
          {"cancelled", summary.cancelled},
          {"reasons", std::move(reasons)},
          {"other_reasons", summary.other_reasons},
          {"cut_to_context", summary.cut},
          {"short_answers", summary.short_answers}};
}

Json LatencyJson(const LoadSummary& summary) {
  return {{"ttft", ToJson(summary.ttft)},
          {"itl", ToJson(summary.itl)},
          {"request_mean_itl", ToJson(summary.mean_itl)},
          {"request_p99_itl", ToJson(summary.p99_itl)},
          {"request_worst_itl", ToJson(summary.worst_itl)},
          {"end_to_end", ToJson(summary.end_to_end)},
          {"queue", ToJson(summary.queue)},
          {"send_delay", ToJson(summary.send_delay)}};
}

Json CacheJson(const LoadResult& result) {
  Json samples = Json::array();
  for (const CacheSample& sample : result.cache.samples) {
    samples.push_back({{"seconds", sample.seconds},
                       {"used_blocks", sample.used_blocks},
                       {"reserved_blocks", sample.reserved_blocks},
                       {"running", sample.running},
                       {"waiting", sample.waiting}});
  }
  const LoadSummary& summary = result.summary;
  return {{"block_bytes", result.cache.block_bytes},
          {"total_blocks", result.cache.total_blocks},
          {"used_blocks", ToJson(summary.used_blocks)},
          {"used_and_reserved_blocks", ToJson(summary.committed_blocks)},
          {"running", ToJson(summary.running)},
          {"waiting", ToJson(summary.waiting)},
          {"compression_ratio", ToJson(summary.compression_ratio)},
          {"missed_samples", result.cache.missed},
          {"samples", std::move(samples)}};
}

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "";
}

Json ToJson(const RequestRecord& record) {
  Json line = {{"index", record.plan.index},
               {"outcome", OutcomeName(record.outcome)},
               {"due_seconds", record.due_seconds},
               {"sent_seconds", record.sent_seconds},
               {"end_seconds", record.end_seconds},
               {"asked_input_tokens", record.plan.lengths.input},
               {"asked_output_tokens", record.plan.lengths.output},
               {"cut_to_context", record.plan.cut},
               {"arrived_tokens", record.arrived_tokens()}};
  if (!record.error_code.empty()) {
    line["error_code"] = record.error_code;
    line["error"] = record.error;
  }
  if (!record.arrivals.empty()) line["ttft_seconds"] = record.ttft();
  if (record.arrived_tokens() > 1) line["mean_itl_seconds"] = record.MeanGap();
  if (record.outcome == Outcome::kDone) {
    line["end_to_end_seconds"] = record.end_to_end();
    line["prompt_tokens"] = record.prompt_tokens;
    line["output_tokens"] = record.output_tokens;
    line["queue_seconds"] = record.queue_seconds;
    line["cache_bytes"] = record.cache_bytes;
    line["compression_ratio"] = record.compression_ratio;
  }
  return line;
}

std::string Dump(const Json& json, int indent) { return JsonText(json, indent) + "\n"; }

}  // namespace

std::string LoadJson(const LoadResult& result) {
  const LoadSetting& setting = result.setting;
  const LoadSummary& summary = result.summary;
  return Dump({{"command", setting.command},
               {"time", absl::FormatTime(absl::RFC3339_sec, setting.time, absl::UTCTimeZone())},
               {"server", setting.server},
               {"model", ModelJson(setting.model)},
               {"compression", summary.compression},
               {"load", SettingJson(setting)},
               {"broken_off", setting.broken_off},
               {"requests", RequestsJson(summary)},
               {"duration_seconds", summary.duration_seconds},
               {"tokens",
                {{"input", summary.input_tokens},
                 {"output", summary.output_tokens},
                 {"lost_output", summary.lost_output_tokens},
                 {"merged_output", summary.merged_tokens}}},
               {"throughput",
                {{"requests_per_second", summary.requests_per_second},
                 {"input_tokens_per_second", summary.input_tokens_per_second},
                 {"output_tokens_per_second", summary.output_tokens_per_second}}},
               {"latency_seconds", LatencyJson(summary)},
               {"goodput",
                {{"ttft_goal_seconds", setting.goals.ttft_seconds},
                 {"itl_goal_seconds", setting.goals.itl_seconds},
                 {"by_mean_itl", ToJson(summary.good_by_mean)},
                 {"by_p99_itl", ToJson(summary.good_by_p99)},
                 {"by_worst_itl", ToJson(summary.good_by_worst)}}},
               {"cache", CacheJson(result)}},
              2);
}

std::string RequestLines(const std::vector<RequestRecord>& records) {
  std::string lines;
  for (const RequestRecord& record : records) lines += Dump(ToJson(record), -1);
  return lines;
}

}  // namespace ziggurat::bench
