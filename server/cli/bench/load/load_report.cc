#include "server/cli/bench/load/load_report.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/byte_size.h"
#include "server/cli/bench/load/load_charts.h"
#include "server/cli/figures.h"
#include "server/cli/write_file.h"
#include "server/printable.h"

namespace ziggurat::bench {
namespace {

struct ReportFile {
  const char* name;
  std::string (*content)(const LoadResult& result, const std::string& subtitle);
};
constexpr ReportFile kFiles[] = {
    {"result.json",
     [](const LoadResult& result, const std::string& /*subtitle*/) { return LoadJson(result); }},
    {"requests.jsonl",
     [](const LoadResult& result, const std::string& /*subtitle*/) {
       return RequestLines(result.records);
     }},
    {"latency.svg",
     [](const LoadResult& result, const std::string& subtitle) {
       return DrawLatency(result.records, result.setting.goals, subtitle);
     }},
    {"throughput.svg",
     [](const LoadResult& result, const std::string& subtitle) {
       return DrawThroughput(result.records, result.summary, subtitle);
     }},
    {"cache.svg",
     [](const LoadResult& result, const std::string& subtitle) {
       return DrawCacheOverTime(result.cache, result.summary, subtitle);
     }},
};

// Right-aligned; the dash has more bytes than width.
std::string Cell(const std::string& text) {
  constexpr size_t kWidth = 10;
  const size_t width = text == kNoFigure ? 1 : text.size();
  return std::string(width < kWidth ? kWidth - width : 1, ' ') + text;
}

void AddRow(const std::string& name, const Distribution& figures, double factor,
            std::string& text) {
  absl::StrAppendFormat(&text, "%-22s", name);
  for (const double value : {figures.mean, figures.p50, figures.p95, figures.p99, figures.max}) {
    text += Cell(FormatDigits(factor * value));
  }
  text += "\n";
}

void AddGoodput(const std::string& name, const Goodput& good, int64_t judged, std::string& text) {
  absl::StrAppendFormat(&text, "%-22s%d of %d requests (%s), %s requests/s, %s output tokens/s\n",
                        name, good.requests, judged, FormatPercent(good.share),
                        FormatDigits(good.requests_per_second),
                        FormatDigits(good.output_tokens_per_second));
}

void AddRequests(const LoadSummary& s, std::string& text) {
  absl::StrAppendFormat(&text, "%-22s%d done, %d refused, %d failed", "requests", s.done, s.refused,
                        s.failed);
  if (s.cancelled > 0) absl::StrAppendFormat(&text, ", %d broken off", s.cancelled);
  absl::StrAppendFormat(&text, " in %s s\n", FormatDigits(s.duration_seconds));
  for (const auto& [reason, count] : s.reasons) {
    absl::StrAppendFormat(&text, "%-22s%d: %s\n", "", count, Printable(reason));
  }
  if (s.other_reasons > 0) {
    absl::StrAppendFormat(&text, "%-22sand %d more, for other reasons\n", "", s.other_reasons);
  }
  if (s.cut > 0) {
    absl::StrAppendFormat(&text, "%-22s%d of %d did not fit the context and were cut\n", "", s.cut,
                          s.made);
  }
  if (s.short_answers > 0) {
    absl::StrAppendFormat(&text, "%-22s%d answers have another length than was asked for\n", "",
                          s.short_answers);
  }
  absl::StrAppendFormat(&text, "%-22s%s requests/s, %s input tokens/s, %s output tokens/s\n",
                        "throughput", FormatDigits(s.requests_per_second),
                        FormatDigits(s.input_tokens_per_second),
                        FormatDigits(s.output_tokens_per_second));
}

void AddCache(const LoadResult& result, std::string& text) {
  const LoadSummary& s = result.summary;
  if (result.cache.total_blocks == 0) return;
  const auto total = static_cast<double>(result.cache.total_blocks);
  absl::StrAppendFormat(
      &text, "%-22s%d blocks of %s, %s: used %s on average, %s at most; with reservations %s, %s\n",
      "cache", result.cache.total_blocks, FormatByteSize(result.cache.block_bytes),
      FormatByteSize(result.cache.total_blocks * result.cache.block_bytes),
      FormatPercent(s.used_blocks.mean / total), FormatPercent(s.used_blocks.max / total),
      FormatPercent(s.committed_blocks.mean / total),
      FormatPercent(s.committed_blocks.max / total));
  absl::StrAppendFormat(&text, "%-22s%s running on average, %s at most; waiting %s, %s\n", "",
                        FormatDigits(s.running.mean), FormatDigits(s.running.max),
                        FormatDigits(s.waiting.mean), FormatDigits(s.waiting.max));
}

}  // namespace

std::string DescribeLoad(const LoadSetting& setting) {
  const std::string lengths =
      absl::StrCat(", ", setting.input_tokens, " in, ", setting.output_tokens, " out");
  if (setting.kind == "closed") {
    return absl::StrCat("closed loop of ", setting.clients,
                        setting.clients == 1 ? " client" : " clients", lengths);
  }
  if (setting.kind == "poisson") {
    return absl::StrFormat("%g requests/s, Poisson%s", setting.rate, lengths);
  }
  std::string text = std::filesystem::path(setting.trace).filename().string();
  if (setting.time_scale != 1) absl::StrAppendFormat(&text, ", times × %g", setting.time_scale);
  if (setting.length_scale != 1) {
    absl::StrAppendFormat(&text, ", lengths × %g", setting.length_scale);
  }
  return text;
}

std::string LoadText(const LoadResult& result) {
  const LoadSummary& s = result.summary;
  const Goals& goals = result.setting.goals;
  std::string text =
      absl::StrFormat("%s (%s), %s\n%s\n\n", Printable(result.setting.model.name()),
                      Printable(result.setting.model.dtype()), Printable(s.compression),
                      Printable(DescribeLoad(result.setting)));
  AddRequests(s, text);
  absl::StrAppendFormat(&text, "\n%-22s", "milliseconds");
  for (const char* head : {"mean", "p50", "p95", "p99", "max"}) text += Cell(head);
  text += "\n";
  AddRow("TTFT", s.ttft, 1000, text);
  AddRow("ITL", s.itl, 1000, text);
  AddRow("  mean of a request", s.mean_itl, 1000, text);
  AddRow("  p99 of a request", s.p99_itl, 1000, text);
  AddRow("  worst of a request", s.worst_itl, 1000, text);
  AddRow("end to end", s.end_to_end, 1000, text);
  AddRow("queue of the daemon", s.queue, 1000, text);
  const int64_t judged = s.made - s.cancelled;
  absl::StrAppendFormat(&text, "\n%-22sTTFT within %g s and ITL within %g s\n", "goodput",
                        goals.ttft_seconds, goals.itl_seconds);
  AddGoodput("  by mean ITL", s.good_by_mean, judged, text);
  AddGoodput("  by p99 ITL", s.good_by_p99, judged, text);
  AddGoodput("  by worst ITL", s.good_by_worst, judged, text);
  text += "\n";
  AddCache(result, text);
  if (s.send_delay.max > 0.05) {
    absl::StrAppendFormat(&text,
                          "\nRequests were sent up to %s ms late: this machine is too busy to make "
                          "the load on time\n",
                          FormatDigits(1000 * s.send_delay.max));
  }
  return text;
}

absl::Status CheckLoadReport(const std::string& folder) {
  for (const ReportFile& file : kFiles) {
    absl::Status status = CheckReplaceable(std::filesystem::path(folder) / file.name);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status WriteLoadReport(const std::string& folder, const LoadResult& result) {
  const std::filesystem::path path(folder);
  const std::string subtitle = absl::StrFormat(
      "%s (%s), %s\n%s", Printable(result.setting.model.name()),
      Printable(result.setting.model.dtype()), Printable(DescribeLoad(result.setting)),
      Printable(result.summary.compression));
  for (const ReportFile& file : kFiles) {
    absl::Status status = ReplaceFile(path / file.name, file.content(result, subtitle));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat::bench
