// report.md.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "server/cli/eval/report.h"
#include "server/cli/figures.h"
#include "server/printable.h"

namespace ziggurat::eval {
namespace {

constexpr char kTooLittle[] = "**does not count: compresses too little**";

// Of a cell: a bar would end it, a line break the table.
// Names come from files of others.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(Printable(text), {{"|", "\\|"}, {"<", "&lt;"}});
}

std::string Code(const std::string& text) {
  return absl::StrCat("`", absl::StrReplaceAll(Printable(text), {{"|", "\\|"}, {"`", "'"}}), "`");
}

// Of KV pairs: whole ones, but a few with a decimal.
std::string Count(double value) {
  return FormatDecimals(value, value != 0 && std::abs(value) < 10 ? 1 : 0);
}

std::string Accuracy(const Row& row) {
  return absl::StrFormat("%.3f (%.3f to %.3f)", row.accuracy(), row.exact_interval.low,
                         row.exact_interval.high);
}

std::string PValue(double p) { return p < 0.001 ? "< 0.001" : absl::StrFormat("%.3f", p); }

std::string Remark(const Row& row, bool is_full) {
  std::vector<std::string> remarks;
  if (is_full) remarks.push_back("baseline");
  if (!is_full && row.too_little()) remarks.push_back(kTooLittle);
  if (row.failed > 0) remarks.push_back(absl::StrCat(row.failed, " failed"));
  return absl::StrJoin(remarks, "; ");
}

// A Markdown table; columns without a title are left out.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) : titles_(std::move(titles)) {
    AddLine(titles_);
    std::vector<std::string> rule;
    for (const std::string& title : titles_) rule.push_back(IsText(title) ? "---" : "---:");
    AddLine(rule);
  }
  void AddLine(const std::vector<std::string>& cells) {
    text_ += "|";
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!titles_[i].empty()) absl::StrAppend(&text_, " ", cells[i], " |");
    }
    text_ += "\n";
  }
  std::string ToString() const { return text_ + "\n"; }

 private:
  // Text stands at the left, figures at the right.
  static bool IsText(const std::string& title) {
    for (const char* text : {"policy", "in full", "task file", "content", "cause", "policies",
                             "for example", "remark"}) {
      if (title == text) return true;
    }
    return false;
  }

  std::vector<std::string> titles_;
  std::string text_;
};

std::string HeadTable(const RunInfo& info, const Summary& summary) {
  const v1::GetModelResponse& model = info.model;
  size_t prompts = 0;
  for (const auto& [file, asked] : info.files) prompts += asked;
  std::string text = "| | |\n| --- | --- |\n";
  absl::StrAppend(&text, "| model | ", Cell(model.name()), " (", Cell(model.architecture()), "), ",
                  model.num_layers(), " layers, ", model.num_q_heads(), " query and ",
                  model.num_kv_heads(), " KV heads of ", model.head_dim(), ", ", model.dtype(),
                  " |\n");
  absl::StrAppend(&text, "| daemon | ziggurat ", Cell(absl::StrJoin(summary.versions, ", ")),
                  ", backend ", Cell(model.backend()), ", at ", Cell(info.server), " |\n");
  absl::StrAppend(&text, "| date | ",
                  absl::FormatTime("%Y-%m-%d %H:%M UTC", info.time, absl::UTCTimeZone()), " |\n");
  absl::StrAppend(&text, "| requests | ", prompts, " prompts × ", summary.policies.size(),
                  " policies, ", info.concurrency, " at once, greedy");
  if (info.concurrency > 1) absl::StrAppend(&text, " (so times include waiting for each other)");
  if (info.reused > 0) absl::StrAppend(&text, "; ", info.reused, " of them from earlier runs");
  absl::StrAppend(&text, " |\n\n");
  return text;
}

std::string PolicyList(const RunInfo& info, const Summary& summary) {
  Table policies({"policy", "in full"});
  for (const EvalPolicy& policy : summary.policies) {
    policies.AddLine({Code(policy.name), Code(policy.canonical)});
  }
  Table files({"task file", "content", "prompts", "asked"});
  for (const auto& [file, asked] : info.files) {
    files.AddLine({Code(file->path), Code(file->hash), absl::StrCat(file->questions.size()),
                   absl::StrCat(asked)});
  }
  return policies.ToString() + files.ToString();
}

std::string OverallTable(const Summary& summary) {
  std::vector<std::string> titles = {"policy", "all tasks (95 % interval)", "n"};
  for (const std::string& task : summary.tasks) titles.push_back(Cell(task));
  for (const char* title : {"of full's bytes", "lost", "won", "p", "remark"}) {
    titles.push_back(title);
  }
  Table table(titles);
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    const Row& row = summary.overall[p];
    std::vector<std::string> cells = {Code(summary.policies[p].name), Accuracy(row),
                                      absl::StrCat(row.prompts)};
    for (const std::vector<Row>& rows : summary.by_task) {
      cells.push_back(absl::StrFormat("%.3f", rows[p].accuracy()));
    }
    cells.push_back(FormatPercent(row.share_of_full));
    cells.push_back(p == 0 ? kNoFigure : absl::StrCat(row.lost));
    cells.push_back(p == 0 ? kNoFigure : absl::StrCat(row.won));
    cells.push_back(p == 0 ? kNoFigure : PValue(row.mcnemar_p));
    cells.push_back(Remark(row, p == 0));
    table.AddLine(cells);
  }
  return table.ToString();
}

std::string AnswerTable(const Summary& summary, const Group& group) {
  const Row& full = group.rows[0];
  Table table({"policy", "exact match (95 % interval)", "n",
               full.items > full.prompts ? "items right" : "",
               full.later_digits > 0 ? "later digits" : "", "bytes", "of full's bytes", "ratio",
               "lost", "won", "p", "remark"});
  for (size_t p = 0; p < group.rows.size(); ++p) {
    const Row& row = group.rows[p];
    table.AddLine({Code(summary.policies[p].name), Accuracy(row), absl::StrCat(row.prompts),
                   FormatShare(row.items_right, row.items),
                   FormatShare(row.later_digits_right, row.later_digits), FormatBytes(row.bytes),
                   FormatPercent(row.share_of_full), FormatDecimals(row.compression_ratio, 2),
                   p == 0 ? kNoFigure : absl::StrCat(row.lost),
                   p == 0 ? kNoFigure : absl::StrCat(row.won),
                   p == 0 ? kNoFigure : PValue(row.mcnemar_p), Remark(row, p == 0)});
  }
  return table.ToString();
}

std::string WorkTable(const Summary& summary, const Group& group) {
  const bool skips = std::any_of(group.rows.begin(), group.rows.end(),
                                 [](const Row& row) { return row.distant_attentions > 0; });
  Table table({"policy", "first token", "tokens/s", "evicted", "lazy layers", "merged", "distant",
               "quantized", skips ? "distant skipped" : "", "failed"});
  for (size_t p = 0; p < group.rows.size(); ++p) {
    const Row& row = group.rows[p];
    table.AddLine({Code(summary.policies[p].name),
                   std::isnan(row.first_token_seconds)
                       ? kNoFigure
                       : absl::StrFormat("%.0f ms", 1000 * row.first_token_seconds),
                   FormatDecimals(row.tokens_per_second, 0), Count(row.evicted),
                   Count(row.lazy_layers), Count(row.merged), Count(row.distant),
                   Count(row.quantized),
                   FormatShare(static_cast<int64_t>(row.skipped_attentions),
                               static_cast<int64_t>(row.distant_attentions)),
                   absl::StrCat(row.failed)});
  }
  return table.ToString();
}

// What must be known to read a group rightly.
std::string GroupRemarks(const Group& group) {
  std::string text;
  const int64_t prompts = group.rows[0].prompts;
  if (group.held_back > 0) {
    absl::StrAppend(&text, "Of ",
                    group.held_back == prompts ? "all" : absl::StrCat(group.held_back),
                    " prompts the end was held back: the model writes it before the answer, so "
                    "that the answer comes out of the compressed cache.");
    if (group.single_token_answers > 0) {
      absl::StrAppend(&text,
                      " The answer is one token, which otherwise the uncompressed prefill brings.");
    }
    absl::StrAppend(&text, "\n\n");
  } else if (group.single_token_answers > 0) {
    absl::StrAppend(&text, "**", group.single_token_answers, " of ", prompts,
                    " answers are one token, which the uncompressed prefill brings whatever the "
                    "policy: this table cannot tell policies apart there.**\n\n");
  }
  return text;
}

std::string HeatMapSection(const Summary& summary, const PictureNames& pictures) {
  if (pictures.heat_map_overview.empty()) return "";
  std::string text =
      absl::StrCat("![Exact match of every policy over depth](", pictures.heat_map_overview,
                   ")\n\nDepth over length, for each policy:");
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    absl::StrAppend(&text, p == 0 ? " " : ", ", "[", Code(summary.policies[p].name), "](",
                    pictures.heat_maps[p], ")");
  }
  return text + ".\n\n";
}

std::string GroupSections(const Summary& summary, const PictureNames& pictures) {
  std::string text;
  std::string kind;
  for (const Group& group : summary.groups) {
    if (TaskKind(group.task) != kind) {
      kind = TaskKind(group.task);
      absl::StrAppend(&text, "## ", Cell(KindTitle(kind)), "\n\n");
      if (kind == "single") text += HeatMapSection(summary, pictures);
    }
    absl::StrAppend(&text, "### ", Cell(group.task), ", ", group.length, " tokens\n\n",
                    GroupRemarks(group), AnswerTable(summary, group), WorkTable(summary, group));
  }
  return text;
}

std::string RecallSection(const RunInfo& info, const Summary& summary,
                          const PictureNames& pictures) {
  if (!info.asking.attention_recall) return "";
  std::string text = "## Attention recall\n\n";
  if (pictures.attention_recall.empty()) {
    return text +
           "The daemon reported none: it is older than this command, or no policy has it.\n\n";
  }
  absl::StrAppend(&text,
                  "The share of the full attention of the last prompt tokens that falls on what a "
                  "layer keeps of the prompt; the mean over prompts.\n\n![Attention recall](",
                  pictures.attention_recall, ")\n\n");
  size_t layers = 0;
  for (const Recall& recall : summary.recall) layers = std::max(layers, recall.layers.size());
  std::vector<std::string> titles = {"policy", "n"};
  for (size_t l = 0; l < layers; ++l) titles.push_back(absl::StrCat(l));
  titles.push_back("mean");
  Table table(titles);
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    const Recall& recall = summary.recall[p];
    std::vector<std::string> cells = {Code(summary.policies[p].name),
                                      absl::StrCat(recall.requests)};
    double sum = 0;
    int with_recall = 0;  // PoD measures none of layers that borrow keys
    for (size_t l = 0; l < layers; ++l) {
      const double value = l < recall.layers.size() ? recall.layers[l] : std::nan("");
      cells.push_back(FormatDecimals(value, 3));
      if (std::isnan(value)) continue;
      sum += value;
      ++with_recall;
    }
    cells.push_back(with_recall == 0 ? kNoFigure : FormatDecimals(sum / with_recall, 3));
    table.AddLine(cells);
  }
  return text + table.ToString();
}

std::string FailureSection(const Summary& summary) {
  if (summary.failures.empty()) return "";
  std::string text = "## Failed requests\n\nThey count as wrong answers.\n\n";
  Table table({"cause", "requests", "policies", "for example"});
  for (const auto& [code, cause] : summary.failures) {
    std::vector<std::string> policies;
    for (const auto& [policy, count] : cause.by_policy) {
      policies.push_back(absl::StrCat(Code(summary.policies[policy].name), " ", count));
    }
    table.AddLine({Code(code), absl::StrCat(cause.count), absl::StrJoin(policies, ", "),
                   Cell(cause.example)});
  }
  return text + table.ToString();
}

constexpr char kLegend[] = R"(## Columns

- **exact match**: share of the prompts whose answer is, to the letter, the right one; Wilson's 95 % interval; *n* prompts. A request
  that failed counts as wrong.
- **items right**: where an answer lists several items, the share of single items. **later digits**: the share of the answer's digits in
  their place, without one that the first token may have brought.
- **bytes**: what a request held in the KV cache at its end, mean, measured from its blocks; **of full's bytes**: for the same prompts;
  **ratio**: blocks of `full` for each block held. A row that holds more than 90 % of full's bytes compresses too little to say anything.
- **lost**, **won**: prompts that `full` answered and the policy did not, and the other way round; **p**: McNemar's exact test of the two.
- **first token**: median time from arrival; **tokens/s**: of one request while decoding.
- **evicted**, **merged**, **distant**, **quantized**: KV pairs per KV head, summed over layers, and **lazy layers**; means per request.
)";

}  // namespace

std::string MarkdownReport(const RunInfo& info, const Summary& summary,
                           const PictureNames& pictures) {
  std::string text = absl::StrCat("# Evaluation of ", Cell(info.model.name()), "\n\n");
  absl::StrAppend(&text, HeadTable(info, summary), "```sh\n", info.command, "\n```\n\n");
  absl::StrAppend(&text, "## All tasks\n\n", OverallTable(summary));
  absl::StrAppend(&text, "![Accuracy over bytes](", pictures.accuracy, ")\n\n");
  absl::StrAppend(&text, "![Accuracy over bytes, for each task](", pictures.accuracy_by_task,
                  ")\n\n");
  absl::StrAppend(&text, GroupSections(summary, pictures), RecallSection(info, summary, pictures),
                  FailureSection(summary));
  absl::StrAppend(&text, "## Policies and task files\n\n", PolicyList(info, summary), kLegend);
  return text;
}

}  // namespace ziggurat::eval
