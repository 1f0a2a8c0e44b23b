#include "model/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr size_t kNumCharacters = 0x100 + 68;  // 68 bytes are not printable

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> character_of{};
  std::array<int16_t, kNumCharacters> byte_of{};

  constexpr Alphabet() {
    for (int16_t& byte : byte_of) byte = -1;
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t character = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
      character_of[static_cast<size_t>(byte)] = character;
      byte_of[character] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

void AppendByteLevel(std::string_view text, std::string* out) {
  for (const char byte : text) {
    AppendUtf8(kAlphabet.character_of[static_cast<unsigned char>(byte)], out);
  }
}

std::optional<std::string> BytesOfByteLevel(std::string_view piece) {
  std::string bytes;
  for (size_t position = 0; position < piece.size();) {
    const char32_t character = ReadUtf8(piece, &position);
    if (character >= kNumCharacters || kAlphabet.byte_of[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[character]));
  }
  return bytes;
}

}  // namespace ziggurat
