#include "model/calibration/sample_text.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/input_file.h"

namespace ziggurat {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 256 << 20;

absl::Status Error(const std::filesystem::path& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", what));
}

/// The prompt of one line, or what is wrong with it.
absl::StatusOr<std::string> ReadPrompt(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !CheckHasNoNul(line).ok()) {
    return absl::InvalidArgumentError("each line must be one JSON object");
  }
  const auto prompt = json.find("prompt");
  if (prompt == json.end()) return absl::InvalidArgumentError("no field 'prompt'");
  if (!prompt->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'prompt' is ", prompt->type_name(), ", must be a string"));
  }
  return prompt->get<std::string>();
}

/// Collects samples; they are chosen among when all are there.
class Cutter {
 public:
  Cutter(const Tokenizer& tokenizer, const SampleOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        prefix_(tokenizer.prefix_ids().begin(), tokenizer.prefix_ids().end()),
        room_(options.length - static_cast<int>(prefix_.size())) {}

  absl::Status Add(const TextFile& file) {
    if (room_ < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("samples of ", options_.length, " tokens have no room for text behind the ",
                       prefix_.size(), " that every prompt of this model begins with"));
    }
    for (const std::string& text : file.texts) {
      absl::StatusOr<std::vector<int32_t>> ids =
          tokenizer_.Encode(text, {.add_special_tokens = false});
      if (!ids.ok()) return Error(file.path, std::string(ids.status().message()));
      tokens_ += ids->size();
      file.has_prompts ? AddPrompt(*ids) : AddStretches(*ids);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SampledText> Choose() && {
    const size_t all = found_.size(), wanted = std::min<size_t>(options_.count, all);
    if (all == 0) {
      return absl::InvalidArgumentError(
          too_short_ > 0
              ? absl::StrCat("every prompt is shorter than the ", options_.least,
                             " tokens that a sample needs")
              : absl::StrCat("the text has ", tokens_, " tokens, fewer than one sample of ",
                             options_.length, "; more text or shorter samples are needed"));
    }
    SampledText sampled{.samples = {}, .available = all, .too_short = too_short_};
    for (size_t i = 0; i < wanted; ++i) {
      sampled.samples.push_back(std::move(found_[i * all / wanted]));
    }
    return sampled;
  }

 private:
  using Iterator = std::vector<int32_t>::const_iterator;

  void AddPrompt(const std::vector<int32_t>& ids) {
    const auto taken = std::min<std::ptrdiff_t>(std::ssize(ids), room_);
    if (taken + std::ssize(prefix_) < options_.least) {
      ++too_short_;
      return;
    }
    AddSample(ids.end() - taken, ids.end());
  }

  void AddStretches(const std::vector<int32_t>& ids) {
    for (auto next = ids.begin(); ids.end() - next >= room_; next += room_) {
      AddSample(next, next + room_);
    }
  }

  void AddSample(Iterator begin, Iterator end) {
    found_.push_back(prefix_);
    found_.back().insert(found_.back().end(), begin, end);
  }

  const Tokenizer& tokenizer_;
  SampleOptions options_;
  std::vector<int32_t> prefix_;
  int room_;  ///< tokens of a sample that are text
  std::vector<std::vector<int32_t>> found_;
  size_t tokens_ = 0;
  size_t too_short_ = 0;
};

}  // namespace

absl::StatusOr<TextFile> ReadTextFile(const std::filesystem::path& path) {
  absl::StatusOr<std::string> content = ReadGivenFile(path, kMaxFileBytes);
  if (!content.ok()) return content.status();
  TextFile file{.path = path, .has_prompts = path.extension() == ".jsonl", .texts = {}};
  if (absl::StripAsciiWhitespace(*content).empty()) return Error(path, "no text in it");
  if (!file.has_prompts) {
    file.texts.push_back(*std::move(content));
    return file;
  }
  const std::string_view all = *content;
  int line_number = 0;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = all.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    absl::StatusOr<std::string> prompt = ReadPrompt(line);
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), ":", line_number, ": ",
                                                     std::string(prompt.status().message())));
    }
    file.texts.push_back(*std::move(prompt));
  }
  return file;
}

absl::StatusOr<SampledText> SampleText(const Tokenizer& tokenizer,
                                       const std::vector<TextFile>& files,
                                       const SampleOptions& options) {
  Cutter cutter(tokenizer, options);
  for (const TextFile& file : files) {
    if (absl::Status status = cutter.Add(file); !status.ok()) return status;
  }
  return std::move(cutter).Choose();
}

}  // namespace ziggurat
