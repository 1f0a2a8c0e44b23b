#include "server/cli/eval/charts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/eval/line_chart.h"
#include "server/cli/figures.h"
#include "server/cli/svg.h"

namespace ziggurat::eval {
namespace {

// Which series a policy belongs to, and how that looks. The same in all charts.
class SeriesOfPolicies {
 public:
  explicit SeriesOfPolicies(const std::vector<EvalPolicy>& policies) {
    std::map<std::string, size_t> families;
    std::map<std::string, size_t> variants_of_family;
    std::map<std::string, size_t> series_of_variant;
    for (const EvalPolicy& policy : policies) {
      const std::string family = PolicyFamily(policy.canonical);
      const size_t look = families.emplace(family, families.size()).first->second;
      const auto [series, is_new] =
          series_of_variant.emplace(PolicyVariant(policy.canonical), styles_.size());
      if (is_new) {
        styles_.push_back({.name = PolicyVariant(policy.name),
                           .color = look,
                           .shape = look,
                           .dash = variants_of_family[family]++,
                           .points = {}});
      }
      series_.push_back(series->second);
    }
  }

  // A line of these rows for every variant that has a share of full's bytes.
  std::vector<ChartSeries> Lines(const Summary& summary, const std::vector<Row>& rows) const {
    std::vector<ChartSeries> lines = styles_;
    for (size_t p = 0; p < rows.size(); ++p) {
      const Row& row = rows[p];
      if (!(row.share_of_full > 0)) continue;
      lines[series_[p]].points.push_back(
          {.x = row.share_of_full,
           .y = row.accuracy(),
           .interval = row.exact_interval,
           .tip = absl::StrFormat("%s: %.1f %% of %d, %s, %.1f %% of full",
                                  summary.policies[p].name, 100 * row.accuracy(), row.prompts,
                                  FormatBytes(row.bytes), 100 * row.share_of_full)});
    }
    for (ChartSeries& line : lines) {
      std::sort(line.points.begin(), line.points.end(),
                [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    }
    return lines;
  }

  const std::vector<ChartSeries>& styles() const { return styles_; }

 private:
  std::vector<ChartSeries> styles_;
  std::vector<size_t> series_;  // of each policy
};

// Shares of full's bytes from below the least to above the most, with a tick at every halving.
ChartAxes ByteAxes(const std::vector<std::vector<Row>>& tables, const Row* full) {
  double least = 0.5;
  double most = 1;
  for (const std::vector<Row>& rows : tables) {
    for (const Row& row : rows) {
      if (!(row.share_of_full > 0)) continue;
      least = std::min(least, row.share_of_full);
      most = std::max(most, row.share_of_full);
    }
  }
  ChartAxes axes{.low = least / 1.15, .high = most * 1.15, .logarithmic = true};
  for (int halvings = 0; std::ldexp(1, -halvings) >= axes.low; ++halvings) {
    const double share = std::ldexp(1, -halvings);
    axes.ticks.push_back({.x = share,
                          .label = absl::StrFormat("%.3g %%", 100 * share),
                          .second_label = full != nullptr ? FormatBytes(full->bytes * share) : ""});
  }
  axes.x_title = "KV cache held, of full's (logarithmic)";
  axes.y_title = "exact match";
  return axes;
}

}  // namespace

std::string DrawAccuracy(const Summary& summary) {
  constexpr double kWidth = 760;
  constexpr double kHeight = 340;
  const SeriesOfPolicies series(summary.policies);
  const double legend = LegendHeight(series.styles(), kWidth);
  const double left = kPictureMargin + kChartLeft - 12;
  Svg svg(left + kWidth + kPictureMargin + 14,
          74 + kHeight + kChartBottom + legend + kPictureMargin,
          "Exact match over the bytes of the KV cache");
  const Row& full = summary.overall[0];
  svg.Text(kPictureMargin, 26, "Accuracy over bytes, all tasks together", "title");
  svg.Text(
      kPictureMargin, 44,
      absl::StrCat(full.prompts, " prompts for each policy; bars: 95 % confidence; dashed: full"),
      "faint");
  ChartAxes axes = ByteAxes({summary.overall}, &full);
  axes.reference = full.accuracy();
  DrawChart(svg, axes, series.Lines(summary, summary.overall), left, 74, kWidth, kHeight);
  DrawLegend(svg, series.styles(), left, 74 + kHeight + kChartBottom, kWidth);
  return svg.ToString();
}

std::string DrawAccuracyByTask(const Summary& summary) {
  constexpr size_t kMostColumns = 3;
  constexpr double kWidth = 290;
  constexpr double kHeight = 150;
  constexpr double kPanelWidth = kChartLeft + kWidth + 14;
  constexpr double kPanelHeight = 42 + kHeight + kChartBottom;
  const SeriesOfPolicies series(summary.policies);
  const size_t columns = std::min(kMostColumns, std::max<size_t>(2, summary.groups.size()));
  const size_t lines = (summary.groups.size() + columns - 1) / columns;
  const double width = 2 * kPictureMargin + kPanelWidth * static_cast<double>(columns);
  const double legend = LegendHeight(series.styles(), width - 2 * kPictureMargin);
  Svg svg(width, 44 + kPanelHeight * static_cast<double>(lines) + legend + kPictureMargin,
          "Exact match over the bytes of the KV cache, for each task and length");
  svg.Text(kPictureMargin, 26, "Accuracy over bytes", "title");
  std::vector<std::vector<Row>> tables;
  for (const Group& group : summary.groups) tables.push_back(group.rows);
  for (size_t g = 0; g < summary.groups.size(); ++g) {
    const Group& group = summary.groups[g];
    const double left = kPictureMargin + kPanelWidth * static_cast<double>(g % columns);
    const size_t line = g / columns;
    const double top = 44 + kPanelHeight * static_cast<double>(line);
    svg.Text(left, top + 14,
             CutToWidth(absl::StrCat(group.task, ", ", group.length,
                                     " tokens (n = ", group.rows[0].prompts, ")"),
                        12, kPanelWidth - 20),
             "heading");
    ChartAxes axes = ByteAxes(tables, &group.rows[0]);
    axes.x_title = "of full's bytes";
    axes.y_title = "";
    axes.reference = group.rows[0].accuracy();
    DrawChart(svg, axes, series.Lines(summary, group.rows), left + kChartLeft - 12, top + 28,
              kWidth, kHeight);
  }
  DrawLegend(svg, series.styles(), kPictureMargin, 44 + kPanelHeight * static_cast<double>(lines),
             width - 2 * kPictureMargin);
  return svg.ToString();
}

std::string DrawAttentionRecall(const Summary& summary) {
  constexpr double kWidth = 760;
  constexpr double kHeight = 340;
  std::vector<ChartSeries> lines;
  std::map<std::string, size_t> families;
  std::map<std::string, size_t> members;
  size_t layers = 1;
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    const Recall& recall = summary.recall[p];
    const std::string family = PolicyFamily(summary.policies[p].canonical);
    const size_t look = families.emplace(family, families.size()).first->second;
    if (recall.requests == 0) continue;
    layers = std::max(layers, recall.layers.size());
    const size_t member = members[family]++;
    ChartSeries line{.name = summary.policies[p].name,
                     .color = look,
                     .shape = look + member / kChartDashes,
                     .dash = member % kChartDashes,
                     .points = {}};
    for (size_t l = 0; l < recall.layers.size(); ++l) {
      line.points.push_back(
          {.x = static_cast<double>(l),
           .y = recall.layers[l],
           .tip = absl::StrFormat("%s, layer %d: %.1f %%", summary.policies[p].name, l,
                                  100 * recall.layers[l])});
    }
    lines.push_back(std::move(line));
  }
  ChartAxes axes{.low = -0.4, .high = static_cast<double>(layers) - 0.6};
  const size_t step = (layers + 31) / 32;
  for (size_t l = 0; l < layers; l += step) {
    axes.ticks.push_back({.x = static_cast<double>(l), .label = absl::StrCat(l)});
  }
  axes.x_title = "layer";
  axes.y_title = "attention recall";
  const double legend = LegendHeight(lines, kWidth);
  const double left = kPictureMargin + kChartLeft - 12;
  Svg svg(left + kWidth + kPictureMargin + 14,
          74 + kHeight + kChartBottom + legend + kPictureMargin,
          "Attention recall of every policy in every layer");
  svg.Text(kPictureMargin, 26, "Attention recall", "title");
  svg.Text(kPictureMargin, 44,
           "share of the full attention of the last prompt tokens that falls on what a layer keeps",
           "faint");
  DrawChart(svg, axes, lines, left, 74, kWidth, kHeight);
  DrawLegend(svg, lines, left, 74 + kHeight + kChartBottom, kWidth);
  return svg.ToString();
}

}  // namespace ziggurat::eval
