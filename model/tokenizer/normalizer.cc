#include "model/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/precompiled_charsmap.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/replacement.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr absl::string_view kWhere = "normalizer";
constexpr absl::string_view kSupported =
    "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip, StripAccents, Lowercase, "
    "Sequence";

/// Hugging Face's normal forms know the characters of Unicode 9. These came later: here they would
/// be decomposed, composed or put into another order, there nothing happens to them.
constexpr std::array<std::pair<char32_t, char32_t>, 47> kLaterCharacters = {
    {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
     {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
     {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
     {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
     {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
     {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
     {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
     {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
     {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
     {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
     {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}}};

bool IsLater(char32_t character) {
  if (character < kLaterCharacters.front().first) return false;
  const auto above =
      std::upper_bound(kLaterCharacters.begin(), kLaterCharacters.end(), character,
                       [](char32_t value, const auto& range) { return value < range.first; });
  return character <= std::prev(above)->second;
}

/// The four normal forms of Unicode (UAX 15).
class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(int options) : options_(static_cast<utf8proc_option_t>(options)) {}

  absl::Status Normalize(std::string* text) const override {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (std::all_of(text->begin(), text->end(), is_ascii)) return absl::OkStatus();
    std::string normalized;
    size_t begin = 0;
    for (size_t position = 0; position < text->size();) {
      const size_t character = position;
      if (!IsLater(ReadUtf8(*text, &position))) continue;
      absl::Status status = Append({text->data() + begin, character - begin}, &normalized);
      if (!status.ok()) return status;
      normalized.append(*text, character, position - character);
      begin = position;
    }
    absl::Status status = Append({text->data() + begin, text->size() - begin}, &normalized);
    if (status.ok()) *text = std::move(normalized);
    return status;
  }

 private:
  absl::Status Append(std::string_view part, std::string* out) const {
    if (part.empty()) return absl::OkStatus();
    // Not by utf8proc_map: it puts marks in order by swapping neighbours, for minutes where there
    // are many.
    std::vector<int32_t> characters = Decompose(part);
    PutMarksInOrder(&characters);
    const utf8proc_ssize_t size = utf8proc_normalize_utf32(
        characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), options_);
    if (size < 0) {
      return absl::InternalError(
          absl::StrCat("the text cannot be normalized: ", utf8proc_errmsg(size)));
    }
    for (utf8proc_ssize_t i = 0; i < size; ++i) {
      AppendUtf8(static_cast<char32_t>(characters[i]), out);
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> Decompose(std::string_view part) const {
    std::vector<int32_t> characters;
    characters.reserve(part.size());
    for (size_t position = 0; position < part.size();) {
      constexpr int kMost = 32;  // U+FDFA becomes 18
      int32_t decomposed[kMost];
      int unused = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<int32_t>(ReadUtf8(part, &position)), decomposed, kMost, options_, &unused);
      characters.insert(characters.end(), decomposed,
                        decomposed + std::clamp<utf8proc_ssize_t>(count, 0, kMost));
    }
    return characters;
  }

  /// Those that follow each other, by their combining class.
  static void PutMarksInOrder(std::vector<int32_t>* characters) {
    const auto class_of = [](int32_t c) { return utf8proc_get_property(c)->combining_class; };
    const auto is_mark = [&](int32_t c) { return class_of(c) > 0; };
    for (auto begin = characters->begin(); begin != characters->end();) {
      begin = std::find_if(begin, characters->end(), is_mark);
      const auto end = std::find_if_not(begin, characters->end(), is_mark);
      std::stable_sort(begin, end, [&](int32_t a, int32_t b) { return class_of(a) < class_of(b); });
      begin = end;
    }
  }

  utf8proc_option_t options_;
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

/// Writes something else, or nothing, for each character.
class CharacterNormalizer : public Normalizer {
 public:
  using Rewrite = void (*)(char32_t character, std::string* out);
  explicit CharacterNormalizer(Rewrite rewrite) : rewrite_(rewrite) {}

  absl::Status Normalize(std::string* text) const override {
    std::string rewritten;
    rewritten.reserve(text->size());
    for (size_t position = 0; position < text->size();) {
      rewrite_(ReadUtf8(*text, &position), &rewritten);
    }
    *text = std::move(rewritten);
    return absl::OkStatus();
  }

 private:
  Rewrite rewrite_;
};

void Lowercase(char32_t character, std::string* out) {
  if (character == U'\u0130') {  // the one character whose lower case is two: i and a dot above
    out->append("i\u0307");
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
             out);
}

void StripAccents(char32_t character, std::string* out) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return;
    default:
      AppendUtf8(character, out);
  }
}

/// SentencePiece's rules for machine translation: what of them are not compatible forms.
void Nmt(char32_t c, std::string* out) {
  if ((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
      c == 0x9F) {
    return;
  }
  const bool is_space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  AppendUtf8(is_space ? U' ' : c, out);
}

/// SentencePiece's compiled rules as Hugging Face applies them: to grapheme clusters, of which a
/// short one is replaced as a whole where a rule fits its beginning, and to characters.
class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(PrecompiledCharsmap rules) : rules_(std::move(rules)) {}

  absl::Status Normalize(std::string* text) const override {
    std::string rewritten;
    rewritten.reserve(text->size());
    for (std::string_view rest = *text; !rest.empty();) {
      const std::string_view cluster = FirstCluster(rest);
      rest.remove_prefix(cluster.size());
      constexpr size_t kShort = 6;  // bytes
      if (cluster.size() < kShort && Append(cluster, &rewritten)) continue;
      for (size_t position = 0; position < cluster.size();) {
        const size_t begin = position;
        ReadUtf8(cluster, &position);
        const std::string_view character = cluster.substr(begin, position - begin);
        if (!Append(character, &rewritten)) rewritten.append(character);
      }
    }
    *text = std::move(rewritten);
    return absl::OkStatus();
  }

 private:
  /// False where there is no rule.
  bool Append(std::string_view part, std::string* out) const {
    const PrecompiledCharsmap::Rule rule = rules_.Shortest(part);
    out->append(rule.to);
    return rule.length > 0;
  }

  /// The grapheme cluster (UAX 29) that `text` begins with.
  static std::string_view FirstCluster(std::string_view text) {
    size_t end = 0;
    utf8proc_int32_t state = 0;
    auto before = static_cast<utf8proc_int32_t>(ReadUtf8(text, &end));
    while (end < text.size()) {
      size_t next = end;
      const auto character = static_cast<utf8proc_int32_t>(ReadUtf8(text, &next));
      if (utf8proc_grapheme_break_stateful(before, character, &state)) break;
      before = character;
      end = next;
    }
    return text.substr(0, end);
  }

  PrecompiledCharsmap rules_;
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

absl::StatusOr<std::unique_ptr<Normalizer>> ParsePrecompiled(const nlohmann::json& component) {
  const absl::StatusOr<std::string> encoded =
      StringMember(component, "precompiled_charsmap", "", "Precompiled");
  if (!encoded.ok()) return encoded.status();
  std::string table;
  if (encoded->empty() || !absl::Base64Unescape(*encoded, &table)) {
    return absl::InvalidArgumentError(
        "\"precompiled_charsmap\" of Precompiled must be a table in base64");
  }
  absl::StatusOr<PrecompiledCharsmap> rules = PrecompiledCharsmap::Parse(table);
  if (!rules.ok()) return rules.status();
  return std::make_unique<PrecompiledNormalizer>(*std::move(rules));
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
  if (*type == "Lowercase") return std::make_unique<CharacterNormalizer>(Lowercase);
  if (*type == "StripAccents") return std::make_unique<CharacterNormalizer>(StripAccents);
  if (*type == "Nmt") return std::make_unique<CharacterNormalizer>(Nmt);
  if (*type == "Precompiled") return ParsePrecompiled(component);
  if (*type == "Sequence") return ParseSequence(component, depth);
  return UnsupportedComponent(kWhere, *type, kSupported);
}

}  // namespace ziggurat
