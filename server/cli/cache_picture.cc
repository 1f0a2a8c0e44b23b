#include "server/cli/cache_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/byte_size.h"
#include "server/cli/layer_text.h"

namespace ziggurat {
namespace {

constexpr char kUsed[] = "█";
constexpr char kReserved[] = "▒";
constexpr char kFree[] = "░";
constexpr size_t kMaxRequests = 20;

std::string Repeat(const char* cell, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cell;
  return text;
}

// Cells for `part` of `whole`: at least one where there is anything at all.
int Cells(uint64_t part, uint64_t whole, int width) {
  if (part == 0 || whole == 0) return 0;
  const double exact = static_cast<double>(part) / static_cast<double>(whole) * width;
  return std::clamp(static_cast<int>(std::lround(exact)), 1, width);
}

std::string DrawPool(const v1::GetCacheResponse& cache, int columns) {
  const int width = columns - 2;
  const int used = Cells(cache.used_blocks(), cache.total_blocks(), width);
  const int reserved =
      std::min(Cells(cache.reserved_blocks(), cache.total_blocks(), width), width - used);
  return absl::StrFormat(
      "pool: %d blocks of %s, %s\n %s%s%s\n %s %d used  %s %d reserved  %s %d free\n",
      cache.total_blocks(), FormatByteSize(cache.block_bytes()),
      FormatByteSize(cache.total_blocks() * cache.block_bytes()), Repeat(kUsed, used),
      Repeat(kReserved, reserved), Repeat(kFree, width - used - reserved), kUsed,
      cache.used_blocks(), kReserved, cache.reserved_blocks(), kFree, cache.free_blocks());
}

// One floor: what is used in the middle, what is reserved half to each side of it.
std::string DrawLayer(const v1::LayerOccupancy& layer, uint64_t widest, int width) {
  const int used = Cells(layer.used_blocks(), widest, width);
  const int reserved = std::min(Cells(layer.reserved_blocks(), widest, width), width - used);
  const int left = reserved / 2;
  const int margin = (width - used - reserved) / 2;
  std::string bar = Repeat(" ", margin) + Repeat(kReserved, left) + Repeat(kUsed, used) +
                    Repeat(kReserved, reserved - left) +
                    Repeat(" ", width - margin - used - reserved);
  return absl::StrFormat("%5d %s %6d +%d\n", layer.layer(), bar, layer.used_blocks(),
                         layer.reserved_blocks());
}

// "layers 0-7  int4 120 + bf16 16 blocks", a line for each run of layers that hold the same
// formats; nothing where one plain format is all there is.
std::string DescribeFormats(const v1::GetCacheResponse& cache, int columns) {
  std::set<std::string> formats;
  std::vector<std::string> texts;
  for (const v1::LayerOccupancy& layer : cache.layers()) {
    texts.push_back(
        absl::StrJoin(layer.formats(), " + ", [&](std::string* out, const auto& format) {
          absl::StrAppend(out, format.format(), " ", format.blocks());
          formats.insert(format.format());
        }));
  }
  const bool is_plain = formats.empty() || formats == std::set<std::string>{"f32"} ||
                        formats == std::set<std::string>{"bf16"};
  return is_plain ? "" : "\nblocks by format\n" + WrapRuns(texts, columns);
}

std::string DrawRequest(const v1::RequestOccupancy& request, int columns) {
  std::string line =
      absl::StrFormat("%-10s %6d+%-5d %7d +%-6d %s  %s", request.state(), request.prompt_tokens(),
                      request.generated_tokens(), request.blocks(), request.reserved_blocks(),
                      request.request_id(), request.compression());
  // Ids and policies are ASCII, so bytes are columns.
  if (line.size() > static_cast<size_t>(columns)) line.resize(columns);
  line += "\n";
  const std::string layers = SummarizeLayers(request.layers());
  constexpr int kIndent = 11;  // under the tokens
  if (!layers.empty()) {
    line += WrapParts(std::string(kIndent, ' ') + layers, columns, kIndent);
  }
  return line;
}

}  // namespace

std::string DrawCache(const v1::GetCacheResponse& cache, int columns) {
  columns = std::max(columns, 60);
  std::string picture = DrawPool(cache, columns);
  absl::StrAppend(&picture, "peaks: ", cache.high_water_blocks(), " blocks, workspace ",
                  FormatByteSize(cache.workspace_high_water_bytes()), "\n\n");

  uint64_t widest = 1;
  for (const v1::LayerOccupancy& layer : cache.layers()) {
    widest = std::max(widest, layer.used_blocks() + layer.reserved_blocks());
  }
  absl::StrAppend(&picture, "layer  blocks used +reserved\n");
  const int width = columns - 22;  // beside the numbers
  for (int i = cache.layers_size() - 1; i >= 0; --i) {
    picture += DrawLayer(cache.layers(i), widest, width);
  }
  picture += DescribeFormats(cache, columns);

  absl::StrAppendFormat(&picture, "\n%d running, %d waiting\n", cache.running(), cache.waiting());
  if (cache.requests_size() > 0) picture += "state      tokens       blocks          id\n";
  for (int i = 0; i < cache.requests_size(); ++i) {
    if (i == static_cast<int>(kMaxRequests)) {
      absl::StrAppend(&picture, "and ", cache.requests_size() - i, " more\n");
      break;
    }
    picture += DrawRequest(cache.requests(i), columns);
  }
  return picture;
}

std::string DrawReport(const v1::CacheReport& report, int columns) {
  if (report.layers_size() == 0) return "";
  columns = std::max(columns, 60);
  const uint64_t full = report.full_blocks() / report.layers_size();
  const int width = columns - 20;  // beside the numbers
  std::string picture = "layer  blocks held, of those that full would hold\n";
  for (int i = report.layers_size() - 1; i >= 0; --i) {
    const uint64_t blocks = report.layers(i).blocks();
    const int held = Cells(blocks, std::max(full, blocks), width);
    const int margin = (width - held) / 2;
    absl::StrAppendFormat(&picture, "%5d %s%s%s %5d of %d\n", report.layers(i).layer(),
                          Repeat(kFree, margin), Repeat(kUsed, held),
                          Repeat(kFree, width - margin - held), blocks, full);
  }
  const std::string all =
      absl::StrFormat("all   %d blocks, %s: 1/%.2f of full", report.blocks(),
                      FormatByteSize(report.bytes()), report.compression_ratio());
  const std::string policy = absl::StrCat("  (", report.compression(), ")");
  if (all.size() + policy.size() <= static_cast<size_t>(columns)) {
    absl::StrAppend(&picture, all, policy, "\n");
  } else {
    absl::StrAppend(&picture, all, "\n", WrapParts("    " + policy, columns, 7));
  }
  absl::StrAppend(&picture, "\n", DescribeLayers(report.layers(), columns));
  if (report.distant_attentions() > 0) {
    std::string line = absl::StrFormat("distant      %d attentions", report.distant_attentions());
    if (report.skipped_attentions() > 0) {
      absl::StrAppendFormat(&line, ", %d of them (%.1f %%) left out", report.skipped_attentions(),
                            100.0 * static_cast<double>(report.skipped_attentions()) /
                                static_cast<double>(report.distant_attentions()));
    }
    picture += WrapParts(line, columns, 13);
  }
  return picture;
}

}  // namespace ziggurat
