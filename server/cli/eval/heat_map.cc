#include "server/cli/eval/heat_map.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/svg.h"

namespace ziggurat::eval {
namespace {

constexpr double kTop = 62;     // title and canonical text
constexpr double kMapTop = 40;  // heading of a map, and its lengths
constexpr double kCellWidth = 52;
constexpr double kCellHeight = 24;
constexpr double kDepthLabel = 46;
constexpr double kBetweenMaps = 36;
constexpr double kScale = 58;  // the legend at the bottom

constexpr double kStripCell = 10;
constexpr double kStripHeight = 18;
constexpr double kBetweenStrips = 14;

double ShareOf(const HeatMap::Cell& cell) {
  return static_cast<double>(cell.exact) / static_cast<double>(std::max<int64_t>(cell.prompts, 1));
}

std::string DepthText(double depth) { return absl::StrCat(SvgNumber(100 * depth), " %"); }

std::string Tip(const HeatMap::Cell& cell, int64_t length, double depth) {
  if (cell.prompts == 0) return "no prompt";
  return absl::StrCat(cell.exact, " of ", cell.prompts, " right at ", length, " tokens, depth ",
                      DepthText(depth));
}

// What the colours mean.
void DrawScale(Svg& svg, const Summary& summary, double x, double y) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  int64_t most = 0;
  for (const HeatMap& map : summary.heat_maps) {
    for (const auto& row : map.cells[0]) {
      for (const HeatMap::Cell& cell : row) {
        if (cell.prompts == 0) continue;
        fewest = std::min(fewest, cell.prompts);
        most = std::max(most, cell.prompts);
      }
    }
  }
  constexpr int kSteps = 50;
  constexpr double kWidth = 200;
  svg.Text(x, y,
           absl::StrCat("share of prompts answered exactly; prompts in a cell: ", fewest,
                        fewest == most ? "" : absl::StrCat(" to ", most)),
           "faint");
  for (int i = 0; i < kSteps; ++i) {
    svg.Rectangle(x + kWidth * i / kSteps, y + 7, kWidth / kSteps + 0.5, 10, "",
                  HeatColor((i + 0.5) / kSteps));
  }
  for (const int percent : {0, 50, 100}) {
    svg.Text(x + kWidth * percent / 100, y + 30, absl::StrCat(percent, " %"), "small",
             percent == 0     ? Svg::Anchor::kStart
             : percent == 100 ? Svg::Anchor::kEnd
                              : Svg::Anchor::kMiddle);
  }
  svg.Rectangle(x + kWidth + 24, y + 7, 14, 10, "empty");
  svg.Text(x + kWidth + 44, y + 16, "no prompt", "small");
}

double MapWidth(const HeatMap& map) {
  return kDepthLabel + kCellWidth * static_cast<double>(std::max<size_t>(map.lengths.size(), 2));
}

void DrawMap(Svg& svg, const HeatMap& map, size_t policy, double left, double top) {
  const double cells_left = left + kDepthLabel;
  svg.Text(left, top + 12, map.task + ": depth over tokens of context", "heading");
  for (size_t c = 0; c < map.lengths.size(); ++c) {
    svg.Text(cells_left + kCellWidth * (static_cast<double>(c) + 0.5), top + kMapTop - 8,
             absl::StrCat(map.lengths[c]), "small", Svg::Anchor::kMiddle);
  }
  for (size_t r = 0; r < map.depths.size(); ++r) {
    const double y = top + kMapTop + kCellHeight * static_cast<double>(r);
    svg.Text(cells_left - 6, y + kCellHeight / 2 + 4, DepthText(map.depths[r]), "small",
             Svg::Anchor::kEnd);
    for (size_t c = 0; c < map.lengths.size(); ++c) {
      const HeatMap::Cell& cell = map.cells[policy][r][c];
      const double x = cells_left + kCellWidth * static_cast<double>(c);
      const std::string tip = Tip(cell, map.lengths[c], map.depths[r]);
      const bool empty = cell.prompts == 0;
      svg.Rectangle(x + 0.5, y + 0.5, kCellWidth - 1, kCellHeight - 1, empty ? "empty" : "",
                    empty ? "" : HeatColor(ShareOf(cell)), tip);
      if (empty) continue;
      svg.Text(x + kCellWidth / 2, y + kCellHeight / 2 + 4,
               absl::StrFormat("%.0f", 100 * ShareOf(cell)), "cell", Svg::Anchor::kMiddle,
               HeatTextColor(ShareOf(cell)));
    }
  }
}

}  // namespace

std::string DrawHeatMaps(const Summary& summary, size_t policy) {
  double width = kPictureMargin;
  size_t most_depths = 0;
  for (const HeatMap& map : summary.heat_maps) {
    width += std::max(MapWidth(map), TextWidth(map.task, 12) + 190) + kBetweenMaps;
    most_depths = std::max(most_depths, map.depths.size());
  }
  width = std::max(width, 420.0);
  const double height = kTop + kMapTop + kCellHeight * static_cast<double>(most_depths) + kScale;
  const EvalPolicy& shown = summary.policies[policy];
  Svg svg(width, height, "Needle in a haystack, exact match over length and depth: " + shown.name);
  svg.Text(kPictureMargin, 26, CutToWidth(shown.name, 16, width - 2 * kPictureMargin), "title");
  if (shown.canonical != shown.name) {
    svg.Text(kPictureMargin, 44, CutToWidth(shown.canonical, 11, width - 2 * kPictureMargin),
             "faint");
  }
  double left = kPictureMargin;
  for (const HeatMap& map : summary.heat_maps) {
    DrawMap(svg, map, policy, left, kTop);
    left += std::max(MapWidth(map), TextWidth(map.task, 12) + 190) + kBetweenMaps;
  }
  DrawScale(svg, summary, kPictureMargin, height - kScale + 24);
  return svg.ToString();
}

std::string DrawHeatMapOverview(const Summary& summary) {
  constexpr double kLongestName = 420;
  double names = 80;
  for (const EvalPolicy& policy : summary.policies) {
    names = std::max(names, std::min(TextWidth(policy.name, 12) + 12, kLongestName));
  }
  double width = kPictureMargin + names;
  for (const HeatMap& map : summary.heat_maps) {
    const double strip = kStripCell * static_cast<double>(map.depths.size());
    width += (std::max(strip, 60.0) + kBetweenStrips) * static_cast<double>(map.lengths.size());
  }
  constexpr std::string_view kSubtitle =
      "each strip from the beginning of the context (left) to its end";
  width = std::max(width, kPictureMargin + TextWidth(kSubtitle, 11)) + kPictureMargin;
  const double top = 92;
  const double height =
      top + kStripHeight * static_cast<double>(summary.policies.size()) + kScale + 6;
  Svg svg(width, height, "Needle in a haystack, exact match of every policy at every depth");
  svg.Text(kPictureMargin, 26, "Needle in a haystack", "title");
  svg.Text(kPictureMargin, 44, kSubtitle, "faint");
  for (size_t p = 0; p < summary.policies.size(); ++p) {
    svg.Text(kPictureMargin, top + kStripHeight * static_cast<double>(p) + 13,
             CutToWidth(summary.policies[p].name, 12, kLongestName), "label");
  }
  double left = kPictureMargin + names;
  for (const HeatMap& map : summary.heat_maps) {
    const double strip = std::max(kStripCell * static_cast<double>(map.depths.size()), 60.0);
    const double cell_width = strip / static_cast<double>(map.depths.size());
    for (size_t c = 0; c < map.lengths.size(); ++c) {
      svg.Text(left, top - 22, CutToWidth(map.task, 12, strip + 10), "heading");
      svg.Text(left, top - 8, absl::StrCat(map.lengths[c]), "small");
      for (size_t p = 0; p < summary.policies.size(); ++p) {
        for (size_t r = 0; r < map.depths.size(); ++r) {
          const HeatMap::Cell& cell = map.cells[p][r][c];
          const bool empty = cell.prompts == 0;
          svg.Rectangle(left + cell_width * static_cast<double>(r),
                        top + kStripHeight * static_cast<double>(p) + 1, cell_width,
                        kStripHeight - 2, empty ? "empty" : "",
                        empty ? "" : HeatColor(ShareOf(cell)),
                        Tip(cell, map.lengths[c], map.depths[r]));
        }
      }
      left += strip + kBetweenStrips;
    }
  }
  DrawScale(svg, summary, kPictureMargin, height - kScale + 24);
  return svg.ToString();
}

}  // namespace ziggurat::eval
