#include "server/cli/bench/load/trace.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "model/input_file.h"
#include "nlohmann/json.hpp"
#include "server/cli/json_value.h"

namespace ziggurat::bench {
namespace {

using Json = nlohmann::json;

constexpr char kAzureHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

absl::Status CheckTokens(const char* name, int64_t tokens) {
  if (tokens >= 1 && tokens <= 1 << 30) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", tokens, ", must be from 1 to ", 1 << 30));
}

absl::Status ParseTokens(const char* name, const std::string& text, int64_t& tokens) {
  if (absl::SimpleAtoi(text, &tokens)) return CheckTokens(name, tokens);
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is '", text, "', must be a number of tokens"));
}

absl::StatusOr<TraceEntry> ParseAzure(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  if (fields.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(), " fields, must be 3: ", kAzureHeader));
  }
  absl::Time time;
  std::string why;
  // With a zone, as Azure's later traces have it, or without.
  const bool is_time = absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], &time, &why) ||
                       absl::ParseTime("%Y-%m-%d %H:%M:%E*S%Ez", fields[0], &time, &why);
  // Whatever the form, "infinite-future" is taken for a time too.
  if (!is_time || time == absl::InfiniteFuture() || time == absl::InfinitePast()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TIMESTAMP is '", fields[0], "', must be such as 2023-11-16 18:15:46.6805900"));
  }
  TraceEntry entry;
  entry.arrival_seconds = absl::ToDoubleSeconds(time - absl::UnixEpoch());
  absl::Status status = ParseTokens("ContextTokens", fields[1], entry.lengths.input);
  status.Update(ParseTokens("GeneratedTokens", fields[2], entry.lengths.output));
  if (!status.ok()) return status;
  return entry;
}

absl::Status TokensField(const Json& object, const char* name, int64_t& tokens) {
  const auto field = object.find(name);
  if (field == object.end()) return absl::InvalidArgumentError(absl::StrCat("no '", name, "'"));
  if (!field->is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is ", Shown(*field), ", must be a number of tokens"));
  }
  // The largest numbers are unsigned.
  tokens = field->is_number_unsigned()
               ? static_cast<int64_t>(std::min<uint64_t>(field->get<uint64_t>(), int64_t{1} << 62))
               : field->get<int64_t>();
  return CheckTokens(name, tokens);
}

absl::StatusOr<TraceEntry> ParseMooncake(const std::string& line) {
  const Json object = ParseLine(line);
  if (!object.is_object()) return absl::InvalidArgumentError("each line must be one JSON object");
  const auto timestamp = object.find("timestamp");
  if (timestamp == object.end()) return absl::InvalidArgumentError("no 'timestamp'");
  if (!timestamp->is_number() || !std::isfinite(timestamp->get<double>())) {
    return absl::InvalidArgumentError(
        absl::StrCat("'timestamp' is ", Shown(*timestamp), ", must be a number of milliseconds"));
  }
  TraceEntry entry;
  entry.arrival_seconds = timestamp->get<double>() / 1000;
  absl::Status status = TokensField(object, "input_length", entry.lengths.input);
  status.Update(TokensField(object, "output_length", entry.lengths.output));
  if (!status.ok()) return status;
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(const std::string& path,
                                                   std::string_view content) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  absl::StatusOr<TraceEntry> (*parse)(const std::string&) = nullptr;
  std::vector<TraceEntry> trace;
  int line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string line(content.substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    const auto error = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", line_number, ": ", what));
    };
    if (parse == nullptr) {
      parse = line[0] == '{' ? ParseMooncake : ParseAzure;
      if (line == kAzureHeader) continue;
      if (parse == ParseAzure) {
        return error(absl::StrCat("neither form of trace: the first line must be '", kAzureHeader,
                                  "' or an object such as {\"timestamp\": 0, \"input_length\": "
                                  "100, \"output_length\": 10}"));
      }
    }
    absl::StatusOr<TraceEntry> entry = parse(line);
    if (!entry.ok()) return error(std::string(entry.status().message()));
    trace.push_back(*entry);
  }
  if (trace.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no request in it"));
  }
  std::stable_sort(trace.begin(), trace.end(), [](const TraceEntry& a, const TraceEntry& b) {
    return a.arrival_seconds < b.arrival_seconds;
  });
  const double first = trace.front().arrival_seconds;
  for (TraceEntry& entry : trace) entry.arrival_seconds -= first;
  if (trace.back().arrival_seconds > kLongestTraceSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its last request arrives ", trace.back().arrival_seconds,
                     " seconds after its first, at most ", kLongestTraceSeconds,
                     " are allowed; a timestamp is a number of milliseconds, or a time of day"));
  }
  return trace;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{2} << 30;
  const absl::StatusOr<std::string> content = ReadGivenFile(path, kMaxBytes);
  if (!content.ok()) return content.status();
  return ParseTrace(path, *content);
}

}  // namespace ziggurat::bench
