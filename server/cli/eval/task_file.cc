#include "server/cli/eval/task_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/input_file.h"
#include "nlohmann/json.hpp"
#include "server/cli/json_value.h"

namespace ziggurat::eval {
namespace {

using Json = nlohmann::json;

// FNV-1a, 64 bits: told apart are files that people edit, not files that somebody forges.
std::string Fingerprint(std::string_view content) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : content) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211u;
  }
  return absl::StrFormat("%016x", hash);
}

absl::Status Error(const std::string& path, int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", line, ": ", what));
}

absl::StatusOr<std::string> TextField(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return absl::InvalidArgumentError(absl::StrCat("no '", name, "'"));
  if (!field->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is ", field->type_name(), ", must be a string"));
  }
  const auto& text = field->get_ref<const std::string&>();
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is empty"));
  }
  return text;
}

absl::StatusOr<Question> ParseQuestion(const Json& object) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a JSON object is expected, not ", object.type_name()));
  }
  Question question;
  for (const auto& [name, target] :
       {std::pair{"prompt", &question.prompt}, std::pair{"answer", &question.answer},
        std::pair{"task", &question.task}}) {
    absl::StatusOr<std::string> text = TextField(object, name);
    if (!text.ok()) return text.status();
    *target = *std::move(text);
  }
  const auto length = object.find("length");
  if (length == object.end()) return absl::InvalidArgumentError("no 'length'");
  if (!length->is_number_integer() || length->get<int64_t>() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'length' is ", Shown(*length), ", must be an integer of at least 1"));
  }
  question.length = length->get<int64_t>();
  const auto depth = object.find("depth");
  if (depth == object.end() || depth->is_null()) return question;
  if (!depth->is_number() || !(depth->get<double>() >= 0 && depth->get<double>() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'depth' is ", Shown(*depth), ", must be a number from 0 to 1, or null"));
  }
  question.depth = depth->get<double>();
  return question;
}

}  // namespace

absl::StatusOr<TaskFile> ParseTaskFile(const std::string& path, std::string_view content) {
  TaskFile file{.path = path, .hash = Fingerprint(content), .questions = {}};
  int line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = ParseLine(line);
    if (object.is_discarded()) {
      return Error(path, line_number, "not JSON: each line must be one object");
    }
    absl::StatusOr<Question> question = ParseQuestion(object);
    if (!question.ok()) {
      return Error(path, line_number, std::string(question.status().message()));
    }
    file.questions.push_back(*std::move(question));
  }
  if (file.questions.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no question in it"));
  }
  return file;
}

absl::StatusOr<TaskFile> ReadTaskFile(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{2} << 30;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a folder; name the files in it, e.g. ", path, "/*.jsonl"));
  }
  const absl::StatusOr<std::string> content = ReadGivenFile(path, kMaxBytes);
  if (!content.ok()) return content.status();
  return ParseTaskFile(path, *content);
}

std::vector<size_t> SpreadOverDepths(const std::vector<Question>& questions, size_t limit) {
  std::map<std::tuple<std::string, int64_t, double>, std::vector<size_t>> groups;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    groups[{question.task, question.length, question.depth.value_or(-1)}].push_back(i);
  }
  std::vector<size_t> chosen;
  const size_t wanted = std::min(limit, questions.size());
  for (size_t rank = 0; chosen.size() < wanted; ++rank) {
    std::vector<size_t> round;  // one of each depth that has as many
    for (const auto& [key, group] : groups) {
      if (rank < group.size()) round.push_back(group[rank]);
    }
    const size_t take = std::min(wanted - chosen.size(), round.size());
    for (size_t i = 0; i < take; ++i) {
      chosen.push_back(
          round[take == 1 ? (round.size() - 1) / 2 : i * (round.size() - 1) / (take - 1)]);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace ziggurat::eval
