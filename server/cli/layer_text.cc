#include "server/cli/layer_text.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ziggurat {
namespace {

/// "0-2 5": ascending numbers, runs as ranges.
std::string Ranges(const std::set<uint32_t>& numbers) {
  std::vector<std::string> parts;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const uint32_t first = *it;
    uint32_t last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    parts.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  return absl::StrJoin(parts, " ");
}

/// "int4 1984 + bf16 40", the format that holds most first.
std::string FormatAmounts(std::vector<std::pair<std::string, uint64_t>> formats) {
  std::erase_if(formats, [](const auto& format) { return format.second == 0; });
  std::stable_sort(formats.begin(), formats.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return absl::StrJoin(formats, " + ", [](std::string* out, const auto& format) {
    absl::StrAppend(out, format.first, " ", format.second);
  });
}

/// Where a line that begins at `begin` and has room for `room` characters ends: behind the last ",
/// " or "; ", else behind the last ',' or '+', else where the room does.
size_t FindBreak(const std::string& text, size_t begin, size_t room) {
  size_t within = begin + room;
  for (size_t end = begin + room; end > begin; --end) {
    const char last = text[end - 1];
    const bool separates = last == ',' || last == ';';
    if (separates && text[end] == ' ') return end;
    if (within == begin + room && (separates || last == '+')) within = end;
  }
  return within;
}

/// "12-976", or "976" where all are equal; empty where all are zero.
std::string Span(const LayerReports& layers, uint64_t (v1::LayerCacheReport::*count)() const) {
  uint64_t least = UINT64_MAX, most = 0;
  for (const v1::LayerCacheReport& layer : layers) {
    least = std::min(least, (layer.*count)());
    most = std::max(most, (layer.*count)());
  }
  if (most == 0) return "";
  return least == most ? absl::StrCat(most) : absl::StrCat(least, "-", most);
}

}  // namespace

std::string DescribeLayer(const v1::LayerCacheReport& layer) {
  std::vector<std::string> parts;
  if (layer.lazy()) parts.push_back("lazy");
  if (layer.has_merged_with()) {
    parts.push_back(absl::StrCat("merged with layer ", layer.merged_with()));
  }
  if (layer.keys_of_size() > 0) {
    parts.push_back(absl::StrCat("keys of layer", layer.keys_of_size() > 1 ? "s " : " ",
                                 absl::StrJoin(layer.keys_of(), " and ")));
  }
  std::vector<std::pair<std::string, uint64_t>> formats;
  for (const v1::FormatOccupancy& format : layer.formats()) {
    formats.emplace_back(format.format(), format.tokens());
  }
  if (std::string held = FormatAmounts(std::move(formats)); !held.empty()) parts.push_back(held);
  const std::pair<uint64_t, const char*> counts[] = {{layer.evicted_tokens(), " evicted"},
                                                     {layer.merged_tokens(), " merged"},
                                                     {layer.distant_tokens(), " distant"},
                                                     {layer.quantized_tokens(), " quantized"}};
  for (const auto& [count, what] : counts) {
    if (count > 0) parts.push_back(absl::StrCat(count, what));
  }
  if (layer.has_attention_recall()) {
    parts.push_back(absl::StrFormat("recall %.3f", layer.attention_recall()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string WrapRuns(const std::vector<std::string>& texts, int columns) {
  constexpr int kIndent = 13;
  std::string lines;
  for (int last = static_cast<int>(texts.size()) - 1; last >= 0;) {
    int first = last;
    while (first > 0 && texts[first - 1] == texts[last]) --first;
    const std::string name =
        first == last ? absl::StrCat("layer ", last) : absl::StrCat("layers ", first, "-", last);
    if (!texts[last].empty()) {
      lines += WrapParts(absl::StrFormat("%-11s  %s", name, texts[last]), columns, kIndent);
    }
    last = first - 1;
  }
  return lines;
}

std::string DescribeLayers(const LayerReports& layers, int columns) {
  std::vector<std::string> texts;
  for (const v1::LayerCacheReport& layer : layers) texts.push_back(DescribeLayer(layer));
  return WrapRuns(texts, columns);
}

std::string SummarizeLayers(const LayerReports& layers) {
  std::set<uint32_t> lazy;
  std::vector<std::string> pairs;
  std::map<uint32_t, std::set<uint32_t>> readers_of;
  std::map<std::string, uint64_t> blocks;
  for (const v1::LayerCacheReport& layer : layers) {
    if (layer.lazy()) lazy.insert(layer.layer());
    if (layer.has_merged_with() && layer.merged_with() > layer.layer()) {
      pairs.push_back(absl::StrCat(layer.layer(), "+", layer.merged_with()));
    }
    for (const uint32_t lowest : layer.keys_of()) readers_of[lowest].insert(layer.layer());
    for (const v1::FormatOccupancy& format : layer.formats()) {
      blocks[format.format()] += format.blocks();
    }
  }
  std::vector<std::string> parts;
  if (!lazy.empty()) parts.push_back("lazy " + Ranges(lazy));
  if (!pairs.empty()) parts.push_back("merged " + absl::StrJoin(pairs, " "));
  for (const auto& [lowest, readers] : readers_of) {
    parts.push_back(absl::StrCat("keys of ", lowest, " in ", Ranges(readers)));
  }
  if (blocks.size() > 1 || (blocks.size() == 1 && layers[0].quantized_tokens() > 0)) {
    parts.push_back(FormatAmounts({blocks.begin(), blocks.end()}) + " blocks");
  }
  using Count = uint64_t (v1::LayerCacheReport::*)() const;
  const std::pair<const char*, Count> counts[] = {
      {"evicted ", &v1::LayerCacheReport::evicted_tokens},
      {"merged tokens ", &v1::LayerCacheReport::merged_tokens},
      {"distant ", &v1::LayerCacheReport::distant_tokens},
      {"quantized ", &v1::LayerCacheReport::quantized_tokens}};
  for (const auto& [what, count] : counts) {
    if (const std::string span = Span(layers, count); !span.empty()) parts.push_back(what + span);
  }
  return absl::StrJoin(parts, "; ");
}

std::string WrapParts(const std::string& text, int columns, int indent) {
  std::string wrapped;
  size_t begin = 0;
  while (true) {
    const size_t room = columns - (begin == 0 ? 0 : indent);
    if (begin > 0) wrapped.append(indent, ' ');
    if (text.size() - begin <= room) break;
    const size_t end = FindBreak(text, begin, room);
    absl::StrAppend(&wrapped, text.substr(begin, end - begin), "\n");
    begin = text[end] == ' ' ? end + 1 : end;
  }
  absl::StrAppend(&wrapped, text.substr(begin), "\n");
  return wrapped;
}

}  // namespace ziggurat
