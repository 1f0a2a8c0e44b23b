#include "server/printable.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

/// Breaks the line, or turns what follows around (the bidirectional controls of Unicode).
bool ChangesTheLine(char32_t character) {
  return character == 0x2028 || character == 0x2029 || character == 0x061C || character == 0x200E ||
         character == 0x200F || (character >= 0x202A && character <= 0x202E) ||
         (character >= 0x2066 && character <= 0x2069);
}

bool IsControl(char32_t character) {
  return character < 0x20 || (character >= 0x7F && character < 0xA0);
}

void AppendEscape(char32_t character, std::string* out) {
  switch (character) {
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    default:
      if (character < 0x80) {
        absl::StrAppendFormat(out, "\\x%02x", static_cast<uint32_t>(character));
      } else {
        absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(character));
      }
  }
}

std::string Escape(std::string_view text, bool keeps_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const std::string_view bytes = text.substr(0, step.length);
    text.remove_prefix(step.length);
    if (step.kind != Utf8Kind::kCharacter) {
      for (const char byte : bytes) {
        absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(byte));
      }
      continue;
    }
    size_t position = 0;
    const char32_t character = ReadUtf8(bytes, &position);
    const bool is_kept = keeps_lines && character == '\n';
    if (!is_kept && (IsControl(character) || ChangesTheLine(character))) {
      AppendEscape(character, &out);
    } else {
      out.append(bytes);
    }
  }
  return out;
}

}  // namespace

std::string Printable(std::string_view text) { return Escape(text, /*keeps_lines=*/false); }

std::string PrintableLines(std::string_view text) { return Escape(text, /*keeps_lines=*/true); }

std::string PrintableMessage(std::string_view text) {
  const size_t caret = text.rfind('\n');
  const size_t shown = caret == std::string_view::npos || caret == 0 ? std::string_view::npos
                                                                     : text.rfind('\n', caret - 1);
  const bool has_caret = shown != std::string_view::npos && text.back() == '^' &&
                         text.substr(caret + 1).find_first_not_of(' ') == text.size() - caret - 2;
  if (!has_caret) return Printable(text);
  return Printable(text.substr(0, shown)) + PrintableLines(text.substr(shown));
}

}  // namespace ziggurat
