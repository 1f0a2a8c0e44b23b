#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/regex.h"

#include <pcre2.h>

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/tokenizer/pattern_translator.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

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
  // The library may have been built for other newlines.
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Oniguruma's ^ and $ match at every line.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
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
