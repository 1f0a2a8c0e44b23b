#include "server/cli/eval/summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "server/cli/eval/judge.h"

namespace ziggurat::eval {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr std::array<std::pair<const char*, const char*>, 6> kKinds = {{
    {"single", "Needle in a haystack"},
    {"multikey", "Multi-key retrieval"},
    {"multiquery", "Multi-query retrieval"},
    {"line", "Line retrieval"},
    {"cls", "Few-shot classification"},
    {"agg", "Aggregation"},
}};

size_t KindRank(const std::string& kind) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kind == kKinds[i].first) return i;
  }
  return kKinds.size();
}

// Order of the tables.
auto TaskOrder(const std::string& task) {
  const std::string kind = TaskKind(task);
  return std::tuple(KindRank(kind), kind, task);
}

// A result with its judgement.
struct Judged {
  const Result* result = nullptr;  // null: there is none
  Judgement judgement;

  bool answered() const { return result != nullptr && !result->failed(); }
};

Judged JudgeResult(const Asking& asking, const Result* result) {
  const std::string& answer = asking.question().answer;
  const bool answered = result != nullptr && !result->failed();
  return {result, answered ? Judge(result->text, answer, asking.held_back_text)
                           : JudgeFailure(answer, asking.held_back_text)};
}

double Ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : kNaN;
}

void CountAnswers(const std::vector<const Judged*>& of_policy,
                  const std::vector<const Judged*>& of_full, Row& row) {
  for (size_t i = 0; i < of_policy.size(); ++i) {
    const Judgement& judgement = of_policy[i]->judgement;
    ++row.prompts;
    row.exact += judgement.exact ? 1 : 0;
    row.items += judgement.items;
    row.items_right += judgement.items_right;
    row.later_digits += judgement.later_digits;
    row.later_digits_right += judgement.later_digits_right;
    row.failed += of_policy[i]->answered() ? 0 : 1;
    const bool full_exact = of_full[i]->judgement.exact;
    row.lost += full_exact && !judgement.exact ? 1 : 0;
    row.won += judgement.exact && !full_exact ? 1 : 0;
  }
  row.exact_interval = WilsonInterval(row.exact, row.prompts);
  row.mcnemar_p = McNemarExactP(row.lost, row.won);
}

void AddCacheAndTimes(const std::vector<const Judged*>& of_policy,
                      const std::vector<const Judged*>& of_full, Row& row) {
  CacheFigures sum;
  double paired_bytes = 0;
  double paired_full_bytes = 0;
  double decoded_tokens = 0;
  double decode_seconds = 0;
  std::vector<double> first_token_seconds;
  for (size_t i = 0; i < of_policy.size(); ++i) {
    if (!of_policy[i]->answered()) continue;
    const Result& result = *of_policy[i]->result;
    const CacheFigures& cache = result.cache;
    for (const NamedCacheFigure& named : kCacheFigures) {
      sum.*named.figure += cache.*named.figure;
    }
    first_token_seconds.push_back(result.first_token_seconds);
    if (result.completion_tokens > 1) {
      decoded_tokens += result.completion_tokens - 1;
      decode_seconds += result.total_seconds - result.first_token_seconds;
    }
    if (!of_full[i]->answered()) continue;
    paired_bytes += static_cast<double>(cache.bytes);
    paired_full_bytes += static_cast<double>(of_full[i]->result->cache.bytes);
  }
  const auto answered = static_cast<double>(row.prompts - row.failed);
  const auto mean = [&](uint64_t total) { return Ratio(static_cast<double>(total), answered); };
  row.bytes = mean(sum.bytes);
  row.share_of_full = Ratio(paired_bytes, paired_full_bytes);
  row.compression_ratio =
      Ratio(static_cast<double>(sum.full_blocks), static_cast<double>(sum.blocks));
  row.first_token_seconds = Median(std::move(first_token_seconds));
  row.tokens_per_second = Ratio(decoded_tokens, decode_seconds);
  row.evicted = mean(sum.evicted_tokens);
  row.lazy_layers = mean(sum.lazy_layers);
  row.merged = mean(sum.merged_tokens);
  row.distant = mean(sum.distant_tokens);
  row.quantized = mean(sum.quantized_tokens);
  row.distant_attentions = sum.distant_attentions;
  row.skipped_attentions = sum.skipped_attentions;
}

// [policy][asking], and views of some askings of it.
class AskingTable {
 public:
  AskingTable(const v1::GetModelResponse& model, const std::vector<EvalPolicy>& policies,
              const std::vector<Asking>& askings, const std::map<ResultKey, Result>& results) {
    for (const EvalPolicy& policy : policies) {
      std::vector<Judged> judged;
      for (const Asking& asking : askings) {
        const auto found = results.find(MakeKey(model, asking, policy));
        judged.push_back(JudgeResult(asking, found == results.end() ? nullptr : &found->second));
      }
      cells_.push_back(std::move(judged));
    }
  }

  const Judged& at(size_t policy, size_t asking) const { return cells_[policy][asking]; }
  size_t policies() const { return cells_.size(); }

  // The row of every policy over these askings.
  std::vector<Row> Rows(const std::vector<size_t>& askings) const {
    const std::vector<const Judged*> of_full = Select(0, askings);
    std::vector<Row> rows;
    for (size_t p = 0; p < cells_.size(); ++p) {
      const std::vector<const Judged*> of_policy = Select(p, askings);
      Row row;
      CountAnswers(of_policy, of_full, row);
      AddCacheAndTimes(of_policy, of_full, row);
      rows.push_back(row);
    }
    return rows;
  }

 private:
  std::vector<const Judged*> Select(size_t policy, const std::vector<size_t>& askings) const {
    std::vector<const Judged*> selected;
    selected.reserve(askings.size());
    for (const size_t i : askings) selected.push_back(&cells_[policy][i]);
    return selected;
  }

  std::vector<std::vector<Judged>> cells_;
};

std::vector<Group> MakeGroups(const std::vector<Asking>& askings, const AskingTable& table) {
  using Key = std::tuple<decltype(TaskOrder("")), int64_t>;
  std::map<Key, std::vector<size_t>> members;
  for (size_t i = 0; i < askings.size(); ++i) {
    const Question& question = askings[i].question();
    members[{TaskOrder(question.task), question.length}].push_back(i);
  }
  std::vector<Group> groups;
  for (const auto& [key, indices] : members) {
    const Question& first = askings[indices[0]].question();
    Group group{.task = first.task, .length = first.length, .rows = table.Rows(indices)};
    for (const size_t i : indices) {
      group.single_token_answers += askings[i].answer_tokens == 1 ? 1 : 0;
      group.held_back += askings[i].held_back > 0 ? 1 : 0;
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

HeatMap MakeHeatMap(const std::string& task, const std::vector<Asking>& askings,
                    const AskingTable& table) {
  constexpr size_t kMostDepths = 21;
  std::set<int64_t> lengths;
  std::set<double> depths;
  for (const Asking& asking : askings) {
    const Question& question = asking.question();
    if (question.task != task || !question.depth) continue;
    lengths.insert(question.length);
    depths.insert(*question.depth);
  }
  // Depths that follow no grid fall into tenths.
  const bool round = depths.size() > kMostDepths;
  const auto depth_of = [&](double depth) { return round ? std::round(10 * depth) / 10 : depth; };
  if (round) {
    std::set<double> tenths;
    for (const double depth : depths) tenths.insert(depth_of(depth));
    depths = std::move(tenths);
  }
  HeatMap map{.task = task,
              .lengths = {lengths.begin(), lengths.end()},
              .depths = {depths.begin(), depths.end()},
              .cells = {}};
  map.cells.assign(table.policies(),
                   std::vector<std::vector<HeatMap::Cell>>(
                       depths.size(), std::vector<HeatMap::Cell>(lengths.size())));
  for (size_t i = 0; i < askings.size(); ++i) {
    const Question& question = askings[i].question();
    if (question.task != task || !question.depth) continue;
    const auto row = std::distance(depths.begin(), depths.find(depth_of(*question.depth)));
    const auto column = std::distance(lengths.begin(), lengths.find(question.length));
    for (size_t p = 0; p < table.policies(); ++p) {
      HeatMap::Cell& cell = map.cells[p][static_cast<size_t>(row)][static_cast<size_t>(column)];
      ++cell.prompts;
      cell.exact += table.at(p, i).judgement.exact ? 1 : 0;
    }
  }
  return map;
}

Recall MakeRecall(const AskingTable& table, size_t policy, size_t askings) {
  Recall recall;
  std::vector<int64_t> counts;
  for (size_t i = 0; i < askings; ++i) {
    const Judged& judged = table.at(policy, i);
    if (!judged.answered() || judged.result->attention_recall.empty()) continue;
    const std::vector<double>& layers = judged.result->attention_recall;
    ++recall.requests;
    recall.layers.resize(std::max(recall.layers.size(), layers.size()));
    counts.resize(recall.layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      if (std::isnan(layers[l])) continue;
      recall.layers[l] += layers[l];
      ++counts[l];
    }
  }
  for (size_t l = 0; l < recall.layers.size(); ++l) {
    recall.layers[l] = Ratio(recall.layers[l], static_cast<double>(counts[l]));
  }
  return recall;
}

void AddFailures(const AskingTable& table, size_t askings, Summary& summary) {
  std::set<std::string> versions;
  for (size_t p = 0; p < table.policies(); ++p) {
    for (size_t i = 0; i < askings; ++i) {
      const Judged& judged = table.at(p, i);
      if (judged.result != nullptr) versions.insert(judged.result->version);
      if (judged.answered()) continue;
      FailureCause& cause =
          summary.failures[judged.result != nullptr ? judged.result->error_code : "NOT_ASKED"];
      ++cause.count;
      ++cause.by_policy[p];
      if (cause.example.empty() && judged.result != nullptr) cause.example = judged.result->error;
    }
  }
  summary.versions.assign(versions.begin(), versions.end());
}

}  // namespace

double Row::accuracy() const {
  return Ratio(static_cast<double>(exact), static_cast<double>(prompts));
}

std::string TaskKind(const std::string& task) {
  const size_t end = task.find_last_not_of("0123456789");
  return end == std::string::npos ? task : task.substr(0, end + 1);
}

std::string KindTitle(const std::string& kind) {
  const size_t rank = KindRank(kind);
  return rank < kKinds.size() ? kKinds[rank].second : kind;
}

Summary Summarize(const v1::GetModelResponse& model, const std::vector<EvalPolicy>& policies,
                  const std::vector<Asking>& askings, const std::map<ResultKey, Result>& results) {
  const AskingTable table(model, policies, askings, results);
  Summary summary;
  summary.policies = policies;
  std::vector<size_t> all(askings.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  summary.overall = table.Rows(all);
  summary.groups = MakeGroups(askings, table);
  for (const Group& group : summary.groups) {
    if (!summary.tasks.empty() && summary.tasks.back() == group.task) continue;
    summary.tasks.push_back(group.task);
    std::vector<size_t> members;
    for (size_t i = 0; i < askings.size(); ++i) {
      if (askings[i].question().task == group.task) members.push_back(i);
    }
    summary.by_task.push_back(table.Rows(members));
    if (TaskKind(group.task) != "single") continue;
    HeatMap map = MakeHeatMap(group.task, askings, table);
    if (!map.lengths.empty()) summary.heat_maps.push_back(std::move(map));
  }
  for (size_t p = 0; p < policies.size(); ++p) {
    summary.recall.push_back(MakeRecall(table, p, askings.size()));
  }
  AddFailures(table, askings.size(), summary);
  return summary;
}

}  // namespace ziggurat::eval
