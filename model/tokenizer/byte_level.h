// GPT-2's alphabet for bytes: every byte is a printable character, so that pieces are plain text.
// Printable Latin-1 bytes stand for themselves, the others for U+0100 and following.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ziggurat {

/// Appends the characters that stand for the bytes of `text`.
void AppendByteLevel(std::string_view text, std::string* out);

/// The bytes that the characters of `piece` (valid UTF-8) stand for; nothing if one of them stands
/// for no byte.
std::optional<std::string> BytesOfByteLevel(std::string_view piece);

}  // namespace ziggurat
