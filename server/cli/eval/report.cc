#include "server/cli/eval/report.h"

#include <filesystem>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/eval/charts.h"
#include "server/cli/eval/heat_map.h"
#include "server/cli/figures.h"
#include "server/cli/write_file.h"

namespace ziggurat::eval {

PictureNames NamePictures(const Summary& summary) {
  const bool has_recall =
      absl::c_any_of(summary.recall, [](const Recall& recall) { return recall.requests > 0; });
  return NamePictures(summary.policies, !summary.heat_maps.empty(), has_recall);
}

PictureNames NamePictures(absl::Span<const EvalPolicy> policies, bool has_heat_maps,
                          bool has_recall) {
  PictureNames names;
  if (has_recall) names.attention_recall = "attention_recall.svg";
  if (!has_heat_maps) return names;
  names.heat_map_overview = "needle_overview.svg";
  std::set<std::string> taken = {names.heat_map_overview};
  for (const EvalPolicy& policy : policies) {
    const std::string slug = absl::StrCat("needle_", PolicySlug(policy.name));
    std::string name = slug + ".svg";
    for (int i = 2; !taken.insert(name).second; ++i) name = absl::StrCat(slug, "_", i, ".svg");
    names.heat_maps.push_back(name);
  }
  return names;
}

std::string ShortReport(const Summary& summary) {
  std::string text = "  exact match (95 % interval)    of full's bytes  policy\n";
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    const Row& row = summary.overall[p];
    absl::StrAppendFormat(
        &text, "  %5.1f %%  (%5.1f to %5.1f)  %10s  %9s  %s%s\n", 100 * row.accuracy(),
        100 * row.exact_interval.low, 100 * row.exact_interval.high, FormatBytes(row.bytes),
        FormatPercent(row.share_of_full), summary.policies[p].name,
        p > 0 && row.too_little() ? "  (does not count: compresses too little)" : "");
  }
  return text;
}

absl::Status CheckReport(const std::string& folder, const PictureNames& pictures) {
  std::vector<std::string> names = {"report.md",
                                    "report.json",
                                    pictures.accuracy,
                                    pictures.accuracy_by_task,
                                    pictures.heat_map_overview,
                                    pictures.attention_recall};
  names.insert(names.end(), pictures.heat_maps.begin(), pictures.heat_maps.end());
  for (const std::string& name : names) {
    if (name.empty()) continue;
    absl::Status status = CheckReplaceable(std::filesystem::path(folder) / name);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status WriteReport(const std::string& folder, const RunInfo& info, const Summary& summary) {
  const PictureNames pictures = NamePictures(summary);
  const std::filesystem::path path(folder);
  std::vector<std::pair<std::string, std::string>> files = {
      {"report.md", MarkdownReport(info, summary, pictures)},
      {"report.json", JsonReport(info, summary)},
      {pictures.accuracy, DrawAccuracy(summary)},
      {pictures.accuracy_by_task, DrawAccuracyByTask(summary)}};
  if (!pictures.heat_map_overview.empty()) {
    files.emplace_back(pictures.heat_map_overview, DrawHeatMapOverview(summary));
  }
  for (size_t p = 0; p < pictures.heat_maps.size(); ++p) {
    files.emplace_back(pictures.heat_maps[p], DrawHeatMaps(summary, p));
  }
  if (!pictures.attention_recall.empty()) {
    files.emplace_back(pictures.attention_recall, DrawAttentionRecall(summary));
  }
  for (const auto& [name, content] : files) {
    if (absl::Status status = ReplaceFile(path / name, content); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat::eval
