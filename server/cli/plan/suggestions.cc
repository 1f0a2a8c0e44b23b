// What follows from the figures of a plan.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/byte_size.h"
#include "server/cli/plan/report.h"

namespace ziggurat::plan {
namespace {

/// A share of waste that is worth a word.
constexpr double kMuchWaste = 0.15;

std::string InMib(size_t bytes) { return absl::StrCat(bytes >> 20, "MiB"); }

std::string Percent(double share) {
  return share < 0.0005 ? "under 0.1 %" : absl::StrFormat("%.1f %%", 100 * share);
}

void SuggestPool(const Plan& plan, std::vector<std::string>* out) {
  if (plan.is_pool_what_is_left) {
    out->push_back(absl::StrCat("--kv-cache-memory ", InMib(plan.memory.pool), ": what is left of ",
                                FormatByteSize(plan.memory_bytes)));
  }
  double most = 0;
  for (const PolicyRow& row : plan.policies) {
    most = std::max({most, row.at_once.mean, row.at_once_lazy ? row.at_once_lazy->mean : 0});
  }
  if (most > plan.max_running) {
    out->push_back(absl::StrFormat("--max-running %.0f: with %d, places run out before blocks do",
                                   std::ceil(most), plan.max_running));
  }
}

/// The first policy of the list in which they all fit, since it changes the least.
void SuggestForClients(const Plan& plan, std::vector<std::string>* out) {
  if (plan.clients == 0) return;
  for (const PolicyRow& row : plan.policies) {
    // Whether layers are lazy or not.
    const size_t pool = std::max(row.pool_for_clients, row.pool_for_clients_lazy);
    if (!row.refusal.empty() || pool > plan.blocks) continue;
    const size_t bytes = pool * plan.geometry.block_bytes;
    out->push_back(absl::StrFormat(
        "%d requests run at once with %s; --kv-cache-memory %s would be enough for them",
        plan.clients, row.policy, InMib(bytes + (size_t{1} << 20) - 1)));
    return;
  }
  out->push_back(
      absl::StrFormat("%d requests at once fit with none of these policies: a larger "
                      "pool, smaller budgets, or more daemons",
                      plan.clients));
}

void SuggestForTraffic(const Plan& plan, std::vector<std::string>* out) {
  if (plan.traffic.cut_share > 0) {
    out->push_back(absl::StrCat(Percent(plan.traffic.cut_share),
                                " of the requests are longer than the model's context and were "
                                "cut"));
  }
  for (const PolicyRow& row : plan.policies) {
    if (row.at_once.refused_share == 0) continue;
    out->push_back(absl::StrCat(
        Percent(row.at_once.refused_share), " of the requests can never fit this pool with ",
        row.policy, " and would be refused: it needs to be larger, or the policy to keep less"));
  }
  if (plan.traffic.reserved > 2 * plan.traffic.answer.mean) {
    out->push_back(absl::StrFormat(
        "requests reserve %.0f tokens for answers and use %.0f: a smaller max_tokens, or "
        "--default-max-tokens where they set none, lets more run at once",
        plan.traffic.reserved, plan.traffic.answer.mean));
  }
}

/// Blocks are as large as 16 tokens of bf16 and cannot be chosen, so all that can be said is what
/// that costs.
void SuggestForWaste(const Plan& plan, std::vector<std::string>* out) {
  for (const PolicyRow& row : plan.policies) {
    if (!row.refusal.empty() || row.policy != "full") continue;
    const double tokens = plan.usual.input + std::max(plan.usual_reserved - 1, 0);
    const double held = static_cast<double>(row.usual.settled_blocks) * plan.block_tokens /
                        std::max(1, plan.geometry.num_layers);
    if (1 - tokens / held > kMuchWaste) {
      out->push_back(absl::StrFormat(
          "%.0f %% of the blocks of the usual request are tails without tokens: it is short "
          "against the %d tokens of a block, whose size is fixed",
          100 * (1 - tokens / held), plan.block_tokens));
    }
  }
}

}  // namespace

std::vector<std::string> Suggest(const Plan& plan) {
  std::vector<std::string> suggestions;
  SuggestPool(plan, &suggestions);
  SuggestForClients(plan, &suggestions);
  SuggestForTraffic(plan, &suggestions);
  SuggestForWaste(plan, &suggestions);
  return suggestions;
}

}  // namespace ziggurat::plan
