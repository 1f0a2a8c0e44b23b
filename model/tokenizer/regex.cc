#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/absl_view.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// Members of Oniguruma's \w, written for a character class. PCRE2's \w lacks marks and most
/// connecting punctuation.
constexpr absl::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/// \p{Han} is the Script property in Oniguruma, but Script_Extensions in PCRE2.
bool IsScriptName(absl::string_view name) {
  constexpr std::array<absl::string_view, 14> kScripts = {
      "Han",    "Hiragana", "Katakana", "Hangul", "Latin",   "Greek", "Cyrillic",
      "Arabic", "Hebrew",   "Thai",     "Lao",    "Bengali", "Tamil", "Devanagari"};
  return std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end();
}

/// Rewrites one pattern; a small scanner that knows only escapes and character classes.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(AbslView(pattern)) {}

  absl::StatusOr<std::string> Run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      absl::Status status;
      if (c == '\\') {
        status = Escape();
      } else if (in_class_) {
        status = ClassMember(c);
      } else {
        c == '[' ? BeginClass() : Copy(1);
      }
      if (!status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("the regular expression '", pattern_, "' uses ",
                                                 what, ", which is not supported"));
  }

  void Copy(size_t count) {
    count = std::min(count, pattern_.size() - position_);
    absl::StrAppend(&out_, pattern_.substr(position_, count));
    position_ += count;
  }

  void BeginClass() {
    in_class_ = true;
    Copy(1);
    if (position_ < pattern_.size() && pattern_[position_] == '^') Copy(1);
    // A bracket that closes at once would be an empty class: it stands for itself.
    if (position_ < pattern_.size() && pattern_[position_] == ']') Copy(1);
  }

  absl::Status ClassMember(char c) {
    if (c == '[') {
      if (pattern_.substr(position_, 2) != "[:") return Refuse("a class inside a class");
      const size_t end = pattern_.find(":]", position_);
      if (end == absl::string_view::npos) return Refuse("an unfinished POSIX class");
      Copy(end + 2 - position_);
      return absl::OkStatus();
    }
    if (pattern_.substr(position_, 2) == "&&") return Refuse("the intersection of classes");
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (position_ + 1 == pattern_.size()) return Refuse("a backslash at its end");
    const char c = pattern_[position_ + 1];
    switch (c) {
      case 's':  // PCRE2's \s also matches U+180E, which is no white space since Unicode 6.3.
        return Substitute("\\p{White_Space}");
      case 'S':
        return Substitute("\\P{White_Space}");
      case 'w':
        return Substitute(in_class_ ? std::string(kWordMembers)
                                    : absl::StrCat("[", kWordMembers, "]"));
      case 'W':
        if (in_class_) return Refuse("\\W inside a class");
        return Substitute(absl::StrCat("[^", kWordMembers, "]"));
      case 'h':
      case 'H':
        return Refuse("\\h");
      case 'u':  // \uHHHH
        absl::StrAppend(&out_, "\\x{", pattern_.substr(position_ + 2, 4), "}");
        position_ = std::min(pattern_.size(), position_ + 6);
        return absl::OkStatus();
      case 'p':
      case 'P':
        Property();
        return absl::OkStatus();
      default:
        Copy(2);
        return absl::OkStatus();
    }
  }

  absl::Status Substitute(absl::string_view replacement) {
    absl::StrAppend(&out_, replacement);
    position_ += 2;
    return absl::OkStatus();
  }

  void Property() {
    const size_t end = pattern_.find('}', position_);
    if (pattern_.substr(position_ + 2, 1) != "{" || end == absl::string_view::npos) return Copy(2);
    absl::string_view name = pattern_.substr(position_ + 3, end - position_ - 3);
    const bool inverted = !name.empty() && name[0] == '^';
    if (inverted) name.remove_prefix(1);
    absl::StrAppend(&out_, pattern_.substr(position_, 3));
    absl::StrAppend(&out_, inverted ? "^" : "", IsScriptName(name) ? "sc:" : "", name, "}");
    position_ = end + 1;
  }

  absl::string_view pattern_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  const absl::StatusOr<std::string> translated = TranslatePattern(pattern);
  if (!translated.ok()) return translated.status();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ match at every line.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the regular expression '", AbslView(pattern),
                                                   "' cannot be compiled: ", Pcre2Message(error)));
  }
  // Where there is no JIT for this processor, the interpreter gives the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::make_unique<Code>(code));
}

absl::StatusOr<Regex> Regex::Literal(std::string_view literal) {
  std::string pattern;
  for (size_t position = 0; position < literal.size();) {
    absl::StrAppend(&pattern, "\\x{",
                    absl::Hex(static_cast<uint32_t>(ReadUtf8(literal, &position))), "}");
  }
  return Compile(pattern);
}

absl::Status Regex::FindAll(std::string_view text, std::vector<ByteRange>* matches) const {
  matches->clear();
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
  std::optional<size_t> last_end;
  size_t start = 0;
  while (start <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                         PCRE2_NO_UTF_CHECK | options, data.get(), nullptr);
    };
    int count = match(0);
    // The interpreter keeps its backtracking points on the heap, so it gets further than the JIT.
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a regular expression gave up on the text: ", Pcre2Message(count)));
    }
    const ByteRange found{offsets[0], offsets[1]};
    if (found.begin == found.end && last_end == found.end) {
      if (start >= text.size()) break;
      ReadUtf8(text, &start);
      continue;
    }
    matches->push_back(found);
    last_end = found.end;
    start = found.end;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat
