#include "model/tokenizer/pre_tokenizer.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/metaspace.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/replacement.h"

namespace ziggurat {
namespace {

constexpr absl::string_view kWhere = "pre_tokenizer";
constexpr absl::string_view kSupported =
    "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, Sequence";

/// GPT-2's words (Radford et al., 2019).
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// What `\\w+|[^\\w\\s]+` matches in Rust, whose words have other characters than Oniguruma's.
constexpr std::string_view kWhitespacePattern =
    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]+|"
    "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}\\s]+";

/// What becomes of the matches, and with `invert` of what lies between them.
enum class SplitBehavior {
  kRemoved,
  kIsolated,            ///< a word of its own
  kMergedWithPrevious,  ///< the end of the word before it
  kMergedWithNext,      ///< the beginning of the word behind it
  kContiguous,          ///< one word with the matches directly beside it
};

/// A part of a text between two borders of matches.
struct Part {
  ByteRange range;
  bool is_match = false;
};

/// The parts of `text`, which cover it.
absl::Status FindParts(const Regex& regex, bool invert, std::string_view text,
                       std::vector<Part>* parts) {
  std::vector<ByteRange> matches;
  if (absl::Status status = regex.FindAll(text, &matches); !status.ok()) return status;
  size_t done = 0;
  for (const ByteRange& match : matches) {
    if (done < match.begin) parts->push_back({{done, match.begin}, invert});
    parts->push_back({match, !invert});
    done = match.end;
  }
  if (done < text.size()) parts->push_back({{done, text.size()}, invert});
  return absl::OkStatus();
}

/// Joins neighbouring parts as the behavior says, and leaves out what is removed.
std::vector<ByteRange> JoinParts(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<ByteRange> words;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool follows_match = i > 0 && parts[i - 1].is_match;
    bool joins = false;
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (part.is_match) continue;
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = i > 0 && part.is_match && !follows_match;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !part.is_match && follows_match;
        break;
      case SplitBehavior::kContiguous:
        joins = i > 0 && part.is_match == follows_match;
        break;
    }
    if (joins) {
      words.back().end = part.range.end;
    } else {
      words.push_back(part.range);
    }
  }
  return words;
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(std::vector<Word>* words) const override {
    std::vector<Word> result;
    std::vector<Part> parts;
    for (const Word& word : *words) {
      parts.clear();
      if (absl::Status status = FindParts(regex_, invert_, word.text, &parts); !status.ok()) {
        return status;
      }
      for (const ByteRange& range : JoinParts(parts, behavior_)) {
        if (range.begin == range.end) continue;
        result.push_back({word.text.substr(range.begin, range.end - range.begin),
                          word.begins_the_input && range.begin == 0});
      }
    }
    *words = std::move(result);
    return absl::OkStatus();
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  /// `words`: GPT-2's pattern, or null not to split.
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<PreTokenizer> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  absl::Status Split(std::vector<Word>* words) const override {
    if (add_prefix_space_) {
      for (Word& word : *words) {
        if (word.text[0] != ' ') word.text = absl::StrCat(" ", word.text);
      }
    }
    if (words_ != nullptr) {
      if (absl::Status status = words_->Split(words); !status.ok()) return status;
    }
    std::string mapped;
    for (Word& word : *words) {
      mapped.clear();
      AppendByteLevel(word.text, &mapped);
      word.text = mapped;
    }
    return absl::OkStatus();
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> words_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  /// `words`: splits before every replacement character, or null not to split.
  MetaspacePreTokenizer(Metaspace metaspace, std::unique_ptr<PreTokenizer> words)
      : metaspace_(std::move(metaspace)), words_(std::move(words)) {}

  absl::Status Split(std::vector<Word>* words) const override {
    for (Word& word : *words) {
      std::string replaced;
      for (const char c : word.text) {
        c == ' ' ? replaced.append(metaspace_.replacement) : replaced.append(1, c);
      }
      const bool wanted =
          metaspace_.prepend == Metaspace::Prepend::kAlways ||
          (metaspace_.prepend == Metaspace::Prepend::kFirst && word.begins_the_input);
      if (wanted && !absl::StartsWith(replaced, metaspace_.replacement)) {
        replaced.insert(0, metaspace_.replacement);
      }
      word.text = std::move(replaced);
    }
    return words_ == nullptr ? absl::OkStatus() : words_->Split(words);
  }

 private:
  Metaspace metaspace_;
  std::unique_ptr<PreTokenizer> words_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}

  absl::Status Split(std::vector<Word>* words) const override {
    for (const auto& part : parts_) {
      if (absl::Status status = part->Split(words); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

absl::StatusOr<SplitBehavior> ParseBehavior(const nlohmann::json& component,
                                            std::string_view fallback, absl::string_view where) {
  const absl::StatusOr<std::string> name = StringMember(component, "behavior", fallback, where);
  if (!name.ok()) return name.status();
  if (*name == "Removed") return SplitBehavior::kRemoved;
  if (*name == "Isolated") return SplitBehavior::kIsolated;
  if (*name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (*name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (*name == "Contiguous") return SplitBehavior::kContiguous;
  return UnsupportedComponent(absl::StrCat("behavior of ", where), *name,
                              "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

using ParsedPreTokenizer = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

ParsedPreTokenizer ParseSplit(const nlohmann::json& component) {
  absl::StatusOr<Regex> regex = ParsePattern(component, "Split");
  if (!regex.ok()) return regex.status();
  const absl::StatusOr<SplitBehavior> behavior = ParseBehavior(component, "", "Split");
  if (!behavior.ok()) return behavior.status();
  const absl::StatusOr<bool> invert = BoolMember(component, "invert", false, "Split");
  if (!invert.ok()) return invert.status();
  return std::make_unique<SplitPreTokenizer>(*std::move(regex), *behavior, *invert);
}

ParsedPreTokenizer ParseByteLevel(const nlohmann::json& component) {
  const absl::StatusOr<bool> prefix = BoolMember(component, "add_prefix_space", true, "ByteLevel");
  if (!prefix.ok()) return prefix.status();
  const absl::StatusOr<bool> use_regex = BoolMember(component, "use_regex", true, "ByteLevel");
  if (!use_regex.ok()) return use_regex.status();
  std::unique_ptr<PreTokenizer> words;
  if (*use_regex) {
    absl::StatusOr<Regex> regex = Regex::Compile(kGpt2Pattern);
    if (!regex.ok()) return regex.status();
    words = std::make_unique<SplitPreTokenizer>(*std::move(regex), SplitBehavior::kIsolated, false);
  }
  return std::make_unique<ByteLevelPreTokenizer>(*prefix, std::move(words));
}

ParsedPreTokenizer ParseMetaspacePreTokenizer(const nlohmann::json& component) {
  absl::StatusOr<Metaspace> metaspace = ParseMetaspace(component);
  if (!metaspace.ok()) return metaspace.status();
  const absl::StatusOr<bool> split = BoolMember(component, "split", true, "Metaspace");
  if (!split.ok()) return split.status();
  std::unique_ptr<PreTokenizer> words;
  if (*split) {
    absl::StatusOr<Regex> regex = Regex::Literal(metaspace->replacement);
    if (!regex.ok()) return regex.status();
    words = std::make_unique<SplitPreTokenizer>(*std::move(regex), SplitBehavior::kMergedWithNext,
                                                false);
  }
  return std::make_unique<MetaspacePreTokenizer>(*std::move(metaspace), std::move(words));
}

ParsedPreTokenizer SplitBy(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) return regex.status();
  return std::make_unique<SplitPreTokenizer>(*std::move(regex), behavior, invert);
}

ParsedPreTokenizer ParseDigits(const nlohmann::json& component) {
  const absl::StatusOr<bool> individual =
      BoolMember(component, "individual_digits", false, "Digits");
  if (!individual.ok()) return individual.status();
  return SplitBy("\\p{N}", *individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

ParsedPreTokenizer ParsePunctuation(const nlohmann::json& component) {
  const absl::StatusOr<SplitBehavior> behavior =
      ParseBehavior(component, "Isolated", "Punctuation");
  if (!behavior.ok()) return behavior.status();
  return SplitBy("[!-/:-@\\[-`{-~\\p{P}]", *behavior);
}

ParsedPreTokenizer ParseSequence(const nlohmann::json& component, int depth) {
  if (depth >= kMaxComponentDepth) {
    return absl::InvalidArgumentError("pre_tokenizers of type Sequence lie too deep in each other");
  }
  const nlohmann::json& list = Member(component, "pretokenizers");
  if (!list.is_array()) {
    return absl::InvalidArgumentError("the pre_tokenizer Sequence has no list \"pretokenizers\"");
  }
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const nlohmann::json& element : list) {
    ParsedPreTokenizer part = ParsePreTokenizer(element, depth + 1);
    if (!part.ok()) return part.status();
    if (*part != nullptr) parts.push_back(*std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const nlohmann::json& component,
                                                                int depth) {
  if (component.is_null()) return nullptr;
  const absl::StatusOr<std::string> type = ComponentType(component, kWhere);
  if (!type.ok()) return type.status();
  if (*type == "Split") return ParseSplit(component);
  if (*type == "ByteLevel") return ParseByteLevel(component);
  if (*type == "Metaspace") return ParseMetaspacePreTokenizer(component);
  if (*type == "Digits") return ParseDigits(component);
  if (*type == "Punctuation") return ParsePunctuation(component);
  if (*type == "Whitespace") return SplitBy(kWhitespacePattern, SplitBehavior::kRemoved, true);
  if (*type == "WhitespaceSplit") return SplitBy("\\s", SplitBehavior::kRemoved);
  if (*type == "Sequence") return ParseSequence(component, depth);
  return UnsupportedComponent(kWhere, *type, kSupported);
}

}  // namespace ziggurat
