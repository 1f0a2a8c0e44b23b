// report.json.
#include "nlohmann/json.hpp"
#include "server/cli/eval/report.h"
#include "server/json_text.h"

namespace ziggurat::eval {
namespace {

using Json = nlohmann::ordered_json;

// NaN becomes null.
Json ToJson(const Row& row) {
  return {{"prompts", row.prompts},
          {"exact", row.exact},
          {"accuracy", row.accuracy()},
          {"accuracy_low", row.exact_interval.low},
          {"accuracy_high", row.exact_interval.high},
          {"items", row.items},
          {"items_right", row.items_right},
          {"later_digits", row.later_digits},
          {"later_digits_right", row.later_digits_right},
          {"failed", row.failed},
          {"bytes", row.bytes},
          {"share_of_full", row.share_of_full},
          {"compression_ratio", row.compression_ratio},
          {"first_token_seconds", row.first_token_seconds},
          {"tokens_per_second", row.tokens_per_second},
          {"evicted_tokens", row.evicted},
          {"lazy_layers", row.lazy_layers},
          {"merged_tokens", row.merged},
          {"distant_tokens", row.distant},
          {"quantized_tokens", row.quantized},
          {"distant_attentions", row.distant_attentions},
          {"skipped_attentions", row.skipped_attentions},
          {"lost", row.lost},
          {"won", row.won},
          {"mcnemar_p", row.mcnemar_p}};
}

Json RowsToJson(const Summary& summary, const std::vector<Row>& rows) {
  Json array = Json::array();
  for (size_t p = 0; p < rows.size(); ++p) {
    Json row = {{"policy", summary.policies[p].canonical}};
    row.update(ToJson(rows[p]));
    row["compresses_too_little"] = p > 0 && rows[p].too_little();
    array.push_back(std::move(row));
  }
  return array;
}

Json RunToJson(const RunInfo& info, const Summary& summary) {
  Json files = Json::array();
  for (const auto& [file, asked] : info.files) {
    files.push_back({{"path", file->path},
                     {"hash", file->hash},
                     {"prompts", file->questions.size()},
                     {"asked", asked}});
  }
  const v1::GetModelResponse& model = info.model;
  Json run = {{"command", info.command},
              {"server", info.server},
              {"time", absl::FormatTime(absl::RFC3339_sec, info.time, absl::UTCTimeZone())},
              {"versions", summary.versions},
              {"concurrency", info.concurrency},
              {"limit", nullptr},
              {"stop", info.asking.stop},
              {"attention_recall", info.asking.attention_recall},
              {"reused_results", info.reused},
              {"model",
               {{"name", model.name()},
                {"architecture", model.architecture()},
                {"layers", model.num_layers()},
                {"q_heads", model.num_q_heads()},
                {"kv_heads", model.num_kv_heads()},
                {"head_dim", model.head_dim()},
                {"dtype", model.dtype()},
                {"backend", model.backend()}}},
              {"task_files", std::move(files)}};
  if (info.limit) run["limit"] = *info.limit;
  return run;
}

Json ToJson(const Summary& summary, const HeatMap& map) {
  Json policies = Json::array();
  for (size_t p = 0; p < map.cells.size(); ++p) {
    Json prompts = Json::array();
    Json exact = Json::array();
    for (const std::vector<HeatMap::Cell>& row : map.cells[p]) {
      Json row_prompts = Json::array();
      Json row_exact = Json::array();
      for (const HeatMap::Cell& cell : row) {
        row_prompts.push_back(cell.prompts);
        row_exact.push_back(cell.exact);
      }
      prompts.push_back(std::move(row_prompts));
      exact.push_back(std::move(row_exact));
    }
    policies.push_back({{"policy", summary.policies[p].canonical},
                        {"prompts", std::move(prompts)},
                        {"exact", std::move(exact)}});
  }
  return {{"task", map.task},
          {"lengths", map.lengths},
          {"depths", map.depths},
          {"policies", std::move(policies)}};
}

Json FailuresToJson(const Summary& summary) {
  Json failures = Json::array();
  for (const auto& [code, cause] : summary.failures) {
    Json by_policy = Json::object();
    for (const auto& [policy, count] : cause.by_policy) {
      by_policy[summary.policies[policy].canonical] = count;
    }
    failures.push_back({{"code", code},
                        {"requests", cause.count},
                        {"example", cause.example},
                        {"by_policy", std::move(by_policy)}});
  }
  return failures;
}

}  // namespace

std::string JsonReport(const RunInfo& info, const Summary& summary) {
  Json policies = Json::array();
  for (const EvalPolicy& policy : summary.policies) {
    policies.push_back({{"name", policy.name}, {"policy", policy.canonical}});
  }
  Json tables = Json::array();
  for (const Group& group : summary.groups) {
    tables.push_back({{"task", group.task},
                      {"length", group.length},
                      {"single_token_answers", group.single_token_answers},
                      {"held_back", group.held_back},
                      {"rows", RowsToJson(summary, group.rows)}});
  }
  Json heat_maps = Json::array();
  for (const HeatMap& map : summary.heat_maps) heat_maps.push_back(ToJson(summary, map));
  Json recall = Json::array();
  for (size_t p = 0; p < summary.recall.size(); ++p) {
    if (summary.recall[p].requests == 0) continue;
    recall.push_back({{"policy", summary.policies[p].canonical},
                      {"requests", summary.recall[p].requests},
                      {"layers", summary.recall[p].layers}});
  }
  const Json report = {{"run", RunToJson(info, summary)},
                       {"policies", std::move(policies)},
                       {"all_tasks", RowsToJson(summary, summary.overall)},
                       {"tables", std::move(tables)},
                       {"heat_maps", std::move(heat_maps)},
                       {"attention_recall", std::move(recall)},
                       {"failures", FailuresToJson(summary)}};
  return JsonText(report, 1) + "\n";
}

}  // namespace ziggurat::eval
