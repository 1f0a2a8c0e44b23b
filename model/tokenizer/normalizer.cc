#include "model/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/replacement.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr absl::string_view kWhere = "normalizer";
constexpr absl::string_view kSupported =
    "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase, Sequence";

/// The four normal forms of Unicode (UAX 15).
class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(int options) : options_(options) {}

  absl::Status Normalize(std::string* text) const override {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (std::all_of(text->begin(), text->end(), is_ascii)) return absl::OkStatus();
    utf8proc_uint8_t* normalized = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text->data()),
                     static_cast<utf8proc_ssize_t>(text->size()), &normalized,
                     static_cast<utf8proc_option_t>(options_));
    if (size < 0) {
      return absl::InternalError(
          absl::StrCat("the text cannot be normalized: ", utf8proc_errmsg(size)));
    }
    text->assign(reinterpret_cast<const char*>(normalized), static_cast<size_t>(size));
    std::free(normalized);
    return absl::OkStatus();
  }

 private:
  int options_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  absl::Status Normalize(std::string* text) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  explicit ReplaceNormalizer(Replacement replacement) : replacement_(std::move(replacement)) {}

  absl::Status Normalize(std::string* text) const override { return replacement_.Apply(text); }

 private:
  Replacement replacement_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(Regex spaces, bool left, bool right)
      : spaces_(std::move(spaces)), left_(left), right_(right) {}

  absl::Status Normalize(std::string* text) const override {
    std::vector<ByteRange> runs;
    if (absl::Status status = spaces_.FindAll(*text, &runs); !status.ok()) return status;
    if (runs.empty()) return absl::OkStatus();
    if (right_ && runs.back().end == text->size()) text->resize(runs.back().begin);
    if (left_ && runs.front().begin == 0) text->erase(0, runs.front().end);
    return absl::OkStatus();
  }

 private:
  Regex spaces_;
  bool left_;
  bool right_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Normalize(std::string* text) const override {
    std::string lower;
    lower.reserve(text->size());
    for (size_t position = 0; position < text->size();) {
      const char32_t character = ReadUtf8(*text, &position);
      if (character == U'\u0130') {  // the one character whose lower case is two: i and a dot above
        lower.append("i\u0307");
        continue;
      }
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
                 &lower);
    }
    *text = std::move(lower);
    return absl::OkStatus();
  }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}

  absl::Status Normalize(std::string* text) const override {
    for (const auto& part : parts_) {
      if (absl::Status status = part->Normalize(text); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

absl::StatusOr<std::unique_ptr<Normalizer>> ParseStrip(const nlohmann::json& component) {
  const absl::StatusOr<bool> left = BoolMember(component, "strip_left", true, "Strip");
  if (!left.ok()) return left.status();
  const absl::StatusOr<bool> right = BoolMember(component, "strip_right", true, "Strip");
  if (!right.ok()) return right.status();
  absl::StatusOr<Regex> spaces = Regex::Compile("\\s+");
  if (!spaces.ok()) return spaces.status();
  return std::make_unique<StripNormalizer>(*std::move(spaces), *left, *right);
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParseSequence(const nlohmann::json& component,
                                                          int depth) {
  if (depth >= kMaxComponentDepth) {
    return absl::InvalidArgumentError("normalizers of type Sequence lie too deep in each other");
  }
  const nlohmann::json& list = Member(component, "normalizers");
  if (!list.is_array()) {
    return absl::InvalidArgumentError("the normalizer Sequence has no list \"normalizers\"");
  }
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const nlohmann::json& element : list) {
    absl::StatusOr<std::unique_ptr<Normalizer>> part = ParseNormalizer(element, depth + 1);
    if (!part.ok()) return part.status();
    if (*part != nullptr) parts.push_back(*std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const nlohmann::json& component,
                                                            int depth) {
  if (component.is_null()) return nullptr;
  const absl::StatusOr<std::string> type = ComponentType(component, kWhere);
  if (!type.ok()) return type.status();
  constexpr int kStable = UTF8PROC_STABLE;
  if (*type == "NFC") return std::make_unique<UnicodeNormalizer>(kStable | UTF8PROC_COMPOSE);
  if (*type == "NFD") return std::make_unique<UnicodeNormalizer>(kStable | UTF8PROC_DECOMPOSE);
  if (*type == "NFKC") {
    return std::make_unique<UnicodeNormalizer>(kStable | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  }
  if (*type == "NFKD") {
    return std::make_unique<UnicodeNormalizer>(kStable | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  if (*type == "Prepend") {
    absl::StatusOr<std::string> prefix = StringMember(component, "prepend", "", *type);
    if (!prefix.ok()) return prefix.status();
    return std::make_unique<PrependNormalizer>(*std::move(prefix));
  }
  if (*type == "Replace") {
    absl::StatusOr<Replacement> replacement = Replacement::Parse(component);
    if (!replacement.ok()) return replacement.status();
    return std::make_unique<ReplaceNormalizer>(*std::move(replacement));
  }
  if (*type == "Strip") return ParseStrip(component);
  if (*type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (*type == "Sequence") return ParseSequence(component, depth);
  return UnsupportedComponent(kWhere, *type, kSupported);
}

}  // namespace ziggurat
