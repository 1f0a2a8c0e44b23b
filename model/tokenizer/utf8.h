// UTF-8: stepping through it, checking it, and repairing what a model made of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ziggurat {

enum class Utf8Kind {
  kCharacter,   ///< a whole, valid character
  kIncomplete,  ///< valid so far, but the input ends inside the character
  kInvalid,     ///< cannot become a character, whatever follows
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  /// Bytes of the character; of the incomplete rest; or, if invalid, of the maximal subpart that
  /// one U+FFFD stands for (Unicode 15, section 3.9).
  size_t length = 0;
};

/// What stands at the beginning of `bytes`, which must not be empty.
Utf8Step NextUtf8(std::string_view bytes);

/// Reads the character at `*position` of valid UTF-8 and moves `*position` behind it.
char32_t ReadUtf8(std::string_view valid, size_t* position);

/// Where the character begins that byte `at` of valid UTF-8 is part of.
size_t CharacterBegin(std::string_view valid, size_t at);

void AppendUtf8(char32_t character, std::string* out);

/// INVALID_ARGUMENT with the offset of the first byte that is not UTF-8.
absl::Status ValidateUtf8(std::string_view text);

/// How bytes that are no UTF-8 are replaced.
enum class Utf8Replacement {
  kPerSubpart,  ///< one U+FFFD for each maximal subpart (byte-level decoders)
  kPerByte,     ///< one U+FFFD for each byte (byte fallback)
};

/// Turns a stream of bytes into valid UTF-8, holding back only a character not yet complete. What
/// comes out does not depend on how the stream was cut.
class Utf8Repairer {
 public:
  explicit Utf8Repairer(Utf8Replacement replacement) : replacement_(replacement) {}

  void Push(std::string_view bytes, std::string* out);
  /// No more bytes: what is held back can no longer be completed.
  void Finish(std::string* out);

 private:
  void Replace(size_t bytes, std::string* out) const;

  Utf8Replacement replacement_;
  std::string held_;
};

}  // namespace ziggurat
