#include "server/cli/plan/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/byte_size.h"

namespace ziggurat::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarCells = 24;

std::string Cells(const char* cell, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cell;
  return text;
}

/// "41", "38-45".
std::string Range(const AtOnce& at_once) {
  if (at_once.least == at_once.most) return absl::StrCat(at_once.most);
  return absl::StrCat(at_once.least, "-", at_once.most);
}

/// What an empty pool lets in, and what runs while it goes on.
std::string Cell(const AtOnce& at_once) {
  return absl::StrFormat("%-10s %7.0f  ", Range(at_once), at_once.sustained);
}

std::string MemoryText(const Plan& plan) {
  const MemoryParts& parts = plan.memory;
  std::string text = "Memory\n";
  const auto line = [&](const char* name, size_t bytes, const std::string& note) {
    absl::StrAppendFormat(&text, "  %-18s %10s%s%s\n", name, FormatByteSize(bytes),
                          note.empty() ? "" : "   ", note);
  };
  line("weights", parts.weights, plan.dtype);
  line("prefill workspace", parts.workspace,
       absl::StrCat("of ", FormatByteSize(parts.workspace_capacity), " set aside"));
  line("decode step", parts.decode, absl::StrCat(plan.max_running, " requests (--max-running)"));
  line("requests", parts.requests,
       absl::StrCat("streams and prompts of ", plan.max_running, " that run and ", plan.max_queue,
                    " that wait (--max-queue)"));
  line("program", parts.program, "code, libraries, threads");
  line("block counts", parts.block_counts, "");
  if (parts.spare > 0) line("spare", parts.spare, "kept free on purpose");
  line("KV cache", parts.pool,
       absl::StrFormat("%d blocks of %s, %d tokens of a layer each", plan.blocks,
                       FormatByteSize(plan.geometry.block_bytes), plan.block_tokens));
  line("in all", parts.total(),
       plan.memory_bytes == 0 ? "" : absl::StrCat("of ", FormatByteSize(plan.memory_bytes)));
  return text;
}

std::string TrafficText(const Plan& plan) {
  const auto side = [](const char* name, const TrafficFigures::Side& figures) {
    return absl::StrFormat("  %-8s mean %.0f, p50 %.0f, p95 %.0f, p99 %.0f, longest %.0f tokens\n",
                           name, figures.mean, figures.p50, figures.p95, figures.p99, figures.max);
  };
  return absl::StrCat(
      "Traffic\n", side("prompts", plan.traffic.prompt), side("answers", plan.traffic.answer),
      absl::StrFormat("  reserved for answers: %.0f tokens on average%s\n", plan.traffic.reserved,
                      plan.max_tokens ? absl::StrCat(" (requests ask for ", *plan.max_tokens, ")")
                                      : std::string(", as many as are generated")));
}

/// One bar: what is certain, and what may come on top of it, by whether layers turn out to be lazy.
std::string Bar(const PolicyRow& row, double most) {
  const auto cells = [&](double at_once) {
    return most > 0 ? static_cast<int>(std::lround(at_once / most * kBarCells)) : 0;
  };
  const int usual = cells(row.at_once.sustained);
  const int lazy = row.at_once_lazy ? cells(row.at_once_lazy->sustained) : usual;
  return Cells("█", std::min(usual, lazy)) + Cells("▒", std::abs(usual - lazy));
}

/// A cell of a column that is there only where a number of clients was given.
std::string ForClients(const Plan& plan, const std::string& text) {
  return plan.clients > 0 ? absl::StrFormat("%10s", text) : "";
}

std::string PoliciesText(const Plan& plan) {
  double most = 0;
  size_t width = 6;
  for (const PolicyRow& row : plan.policies) {
    most =
        std::max({most, row.at_once.sustained, row.at_once_lazy ? row.at_once_lazy->sustained : 0});
    width = std::max(width, row.policy.size());
  }
  const int columns = static_cast<int>(width);
  std::string text = absl::StrFormat(
      "A request of %d + %d tokens, and how many requests run at once in %d blocks\n\n"
      "  %-*s %8s %10s %7s %s  %s\n",
      plan.usual.input, plan.usual.output, plan.blocks, columns, "policy", "blocks", "memory",
      "saved", ForClients(plan, absl::StrCat("for ", plan.clients)), "at once    on and on");
  const auto line = [&](const std::string& name, const RequestForecast& usual, size_t pool,
                        const std::string& at_once) {
    const double saved =
        1 - static_cast<double>(usual.settled_blocks) / static_cast<double>(plan.full_blocks);
    std::string made = absl::StrFormat(
        "  %-*s %8d %10s %5.0f %% %s  %s", columns, name, usual.settled_blocks,
        FormatByteSize(usual.settled_blocks * plan.geometry.block_bytes), 100 * saved,
        ForClients(plan, FormatByteSize(pool * plan.geometry.block_bytes)), at_once);
    absl::StripTrailingAsciiWhitespace(&made);
    absl::StrAppend(&text, made, "\n");
  };
  for (const PolicyRow& row : plan.policies) {
    if (!row.refusal.empty()) {
      absl::StrAppendFormat(&text, "  %-*s cannot be used: %s\n", columns, row.policy, row.refusal);
      continue;
    }
    line(row.policy, row.usual, row.pool_for_clients,
         absl::StrCat(Cell(row.at_once), Bar(row, most)));
    if (row.usual_lazy) {
      line("  if all its layers are lazy", *row.usual_lazy, row.pool_for_clients_lazy,
           Cell(*row.at_once_lazy));
    }
  }
  if (plan.clients > 0) {
    absl::StrAppend(&text, "\n  for ", plan.clients, ": the pool in which so many run at once");
  }
  text += R"(
  blocks: held and reserved once the prompt is there, which nobody else can have
  at once: what the pool lets in when the daemon is idle, least and most by who comes first;
  on and on, and its bar: running while ever more wait (▒: if all layers are lazy); either is
  at most --max-running in the daemon
)";
  for (const PolicyRow& row : plan.policies) {
    if (!row.usual.depends_on_content) continue;
    absl::StrAppend(&text, "  ", row.policy,
                    ": what it keeps depends on the text; this is one way it may come\n");
  }
  return text;
}

Json SideJson(const TrafficFigures::Side& side) {
  return {{"mean", side.mean},
          {"p50", side.p50},
          {"p95", side.p95},
          {"p99", side.p99},
          {"max", side.max}};
}

Json AtOnceJson(const AtOnce& at_once) {
  return {{"sustained", at_once.sustained},
          {"mean", at_once.mean},
          {"least", at_once.least},
          {"most", at_once.most},
          {"never_fits_share", at_once.refused_share}};
}

Json ForecastJson(const RequestForecast& forecast, size_t block_bytes) {
  return {{"admitted_blocks", forecast.admitted_blocks},
          {"blocks", forecast.settled_blocks},
          {"bytes", forecast.settled_blocks * block_bytes},
          {"blocks_after_prompt", forecast.prompt_blocks},
          {"blocks_at_end", forecast.last_blocks},
          {"layer_blocks_at_end", forecast.layer_blocks}};
}

Json PolicyJson(const PolicyRow& row, const Plan& plan) {
  Json object = {{"policy", row.policy}};
  if (!row.refusal.empty()) {
    object["refusal"] = row.refusal;
    return object;
  }
  const size_t block_bytes = plan.geometry.block_bytes;
  object["depends_on_content"] = row.usual.depends_on_content;
  object["request"] = ForecastJson(row.usual, block_bytes);
  object["at_once"] = AtOnceJson(row.at_once);
  if (row.usual_lazy) {
    object["request_if_lazy"] = ForecastJson(*row.usual_lazy, block_bytes);
    object["at_once_if_lazy"] = AtOnceJson(*row.at_once_lazy);
  }
  if (row.pool_for_clients > 0) {
    object["kv_cache_bytes_for_clients"] = row.pool_for_clients * block_bytes;
  }
  if (row.pool_for_clients_lazy > 0) {
    object["kv_cache_bytes_for_clients_if_lazy"] = row.pool_for_clients_lazy * block_bytes;
  }
  return object;
}

}  // namespace

std::string PlanText(const Plan& plan) {
  std::string text = absl::StrCat(plan.model, "\n", plan.shape, "\n\n", MemoryText(plan), "\n",
                                  TrafficText(plan), "\n", PoliciesText(plan));
  if (plan.suggestions.empty()) return text;
  text += "\nSuggestions\n";
  for (const std::string& suggestion : plan.suggestions) {
    absl::StrAppend(&text, "  - ", suggestion, "\n");
  }
  return text;
}

Json PlanJson(const Plan& plan) {
  const MemoryParts& parts = plan.memory;
  Json policies = Json::array();
  for (const PolicyRow& row : plan.policies) policies.push_back(PolicyJson(row, plan));
  Json memory = {{"weights_bytes", parts.weights},
                 {"workspace_bytes", parts.workspace},
                 {"workspace_capacity_bytes", parts.workspace_capacity},
                 {"decode_bytes", parts.decode},
                 {"requests_bytes", parts.requests},
                 {"program_bytes", parts.program},
                 {"block_counts_bytes", parts.block_counts},
                 {"spare_bytes", parts.spare},
                 {"kv_cache_bytes", parts.pool},
                 {"total_bytes", parts.total()}};
  if (plan.memory_bytes > 0) memory["available_bytes"] = plan.memory_bytes;
  Json traffic = {{"prompt_tokens", SideJson(plan.traffic.prompt)},
                  {"answer_tokens", SideJson(plan.traffic.answer)},
                  {"reserved_tokens_mean", plan.traffic.reserved},
                  {"cut_share", plan.traffic.cut_share},
                  {"usual",
                   {{"prompt_tokens", plan.usual.input},
                    {"answer_tokens", plan.usual.output},
                    {"reserved_tokens", plan.usual_reserved}}}};
  if (plan.clients > 0) traffic["clients"] = plan.clients;
  return {{"model", {{"folder", plan.model}, {"shape", plan.shape}, {"dtype", plan.dtype}}},
          {"memory", std::move(memory)},
          {"pool",
           {{"blocks", plan.blocks},
            {"block_bytes", plan.geometry.block_bytes},
            {"block_tokens", plan.block_tokens}}},
          {"traffic", std::move(traffic)},
          {"policies", std::move(policies)},
          {"suggestions", plan.suggestions}};
}

}  // namespace ziggurat::plan
