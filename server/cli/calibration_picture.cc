#include "server/cli/calibration_picture.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ziggurat {
namespace {

constexpr int kBetweenHeads = 3;

/// Last layer of the group that `layer` is in.
int Highest(const PodGroups& groups, int layer, int head) {
  const int lowest = groups.Lowest(layer, head);
  while (layer + 1 < groups.num_layers && groups.Lowest(layer + 1, head) == lowest) ++layer;
  return layer;
}

std::string GroupName(int lowest, int highest) {
  return lowest == highest ? std::string("-") : absl::StrCat(lowest, "-", highest);
}

/// Tenths, rounded down: what reaches a delta of 0.5 is 5 or more.
std::string Cell(double similarity) {
  const int tenths = std::clamp(static_cast<int>(similarity * 10), 0, 9);
  return tenths == 0 ? " ·" : absl::StrFormat("%2d", tenths);
}

/// Lines of equal width, which is Width().
std::vector<std::string> DrawHead(const LayerSimilarity& similarity, const PodGroups& groups,
                                  int head, const std::string& title) {
  const int layers = similarity.num_layers;
  std::vector<std::string> lines = {absl::StrFormat("%-*s", 5 + 2 * layers + 8, title)};
  for (int layer = layers - 1; layer >= 0; --layer) {
    std::string line = absl::StrFormat("%4d ", layer);
    // Column m stands for layer m; the diagonal is left of what is above it, so layer 0 is widest.
    for (int other = 0; other < layers; ++other) {
      if (other < layer) line += "  ";
      if (other == layer) line += " ■";
      if (other > layer) line += Cell(similarity.At(head, layer, other));
    }
    absl::StrAppendFormat(&line, "  %-6s",
                          GroupName(groups.Lowest(layer, head), Highest(groups, layer, head)));
    lines.push_back(line);
  }
  std::string axis(5, ' ');
  for (int layer = 0; layer < layers; ++layer) absl::StrAppendFormat(&axis, "%2d", layer % 10);
  lines.push_back(axis + std::string(8, ' '));
  return lines;
}

int Width(const LayerSimilarity& similarity) { return 5 + 2 * similarity.num_layers + 8; }

std::string WithoutTrailingSpaces(std::string line) {
  line.resize(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string DrawSimilarity(const LayerSimilarity& similarity, const PodGroups& groups,
                           bool same_for_all_heads, int columns) {
  const int heads = same_for_all_heads ? 1 : similarity.num_kv_heads;
  const int width = Width(similarity) + kBetweenHeads;
  const int beside = std::max(1, (columns + kBetweenHeads) / width);
  std::string picture;
  for (int first = 0; first < heads; first += beside) {
    std::vector<std::string> lines(similarity.num_layers + 2);
    for (int head = first; head < std::min(first + beside, heads); ++head) {
      const std::string title =
          same_for_all_heads ? std::string("all heads") : absl::StrCat("KV head ", head);
      const std::vector<std::string> of_head = DrawHead(similarity, groups, head, title);
      for (size_t i = 0; i < lines.size(); ++i) {
        if (head > first) lines[i].append(kBetweenHeads, ' ');
        lines[i] += of_head[i];
      }
    }
    for (const std::string& line : lines) {
      absl::StrAppend(&picture, WithoutTrailingSpaces(line), "\n");
    }
    picture += "\n";
  }
  return picture;
}

std::string DescribeGroups(const PodGroups& groups) {
  const int heads = groups.IsSameForAllHeads() ? 1 : groups.num_kv_heads;
  std::vector<std::string> of_heads;
  for (int head = 0; head < heads; ++head) {
    std::vector<std::string> shared;
    for (int layer = 0; layer < groups.num_layers; ++layer) {
      if (!groups.IsShared(layer, head)) continue;
      shared.push_back(GroupName(layer, Highest(groups, layer, head)));
    }
    of_heads.push_back(
        absl::StrCat(heads == 1 ? std::string("all heads") : absl::StrCat("KV head ", head), ": ",
                     shared.empty() ? std::string("none") : absl::StrJoin(shared, ", ")));
  }
  return absl::StrJoin(of_heads, "; ");
}

}  // namespace ziggurat
