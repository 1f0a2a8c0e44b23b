#include "model/tokenizer/utf8.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Length of the character that `lead` begins (0: none does), and the range of its second byte,
/// which excludes overlong forms, surrogates and what lies beyond U+10FFFF.
struct LeadByte {
  size_t length = 0;
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

LeadByte ClassifyLead(unsigned char lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  const LeadByte lead = ClassifyLead(static_cast<unsigned char>(bytes[0]));
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i};
    const unsigned char byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.length};
}

char32_t ReadUtf8(std::string_view valid, size_t* position) {
  const unsigned char lead = static_cast<unsigned char>(valid[*position]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t character = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  const size_t end = std::min(valid.size(), *position + length);
  for (size_t i = *position + 1; i < end; ++i) {
    character = (character << 6) | (static_cast<unsigned char>(valid[i]) & 0x3F);
  }
  *position = end;
  return character;
}

size_t CharacterBegin(std::string_view valid, size_t at) {
  while (at > 0 && (static_cast<unsigned char>(valid[at]) & 0xC0) == 0x80) --at;
  return at;
}

void AppendUtf8(char32_t character, std::string* out) {
  const auto append = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    append(character);
    return;
  }
  if (character < 0x800) {
    append(0xC0 | (character >> 6));
  } else {
    if (character < 0x10000) {
      append(0xE0 | (character >> 12));
    } else {
      append(0xF0 | (character >> 18));
      append(0x80 | ((character >> 12) & 0x3F));
    }
    append(0x80 | ((character >> 6) & 0x3F));
  }
  append(0x80 | (character & 0x3F));
}

absl::Status ValidateUtf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(position));
    if (step.kind != Utf8Kind::kCharacter) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text is not valid UTF-8: byte 0x",
                       absl::Hex(static_cast<unsigned char>(text[position]), absl::kZeroPad2),
                       " at offset ", position));
    }
    position += step.length;
  }
  return absl::OkStatus();
}

void Utf8Repairer::Replace(size_t bytes, std::string* out) const {
  const size_t count = replacement_ == Utf8Replacement::kPerByte ? bytes : 1;
  for (size_t i = 0; i < count; ++i) out->append(kReplacementCharacter);
}

void Utf8Repairer::Push(std::string_view bytes, std::string* out) {
  held_.append(bytes);
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    if (step.kind == Utf8Kind::kCharacter) {
      out->append(rest.substr(0, step.length));
    } else {
      Replace(step.length, out);
    }
    rest.remove_prefix(step.length);
  }
  held_.erase(0, held_.size() - rest.size());
}

void Utf8Repairer::Finish(std::string* out) {
  if (!held_.empty()) Replace(held_.size(), out);
  held_.clear();
}

}  // namespace ziggurat
