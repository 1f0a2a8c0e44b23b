// The words of an Oniguruma pattern, one after the other: characters, escapes, sets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ziggurat {

/// Members of a class, in the words of PCRE2, and whether the others are meant.
struct CharacterSet {
  std::string members;
  bool is_negated = false;
};

/// A place in a pattern, which must be valid UTF-8 and outlive the reader. What is called Take
/// moves behind what it gives. After an error the place means nothing.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern);

  /// UNIMPLEMENTED: the pattern uses `what`.
  absl::Status Refuse(absl::string_view what) const;

  bool is_at_end() const { return position_ == pattern_.size(); }
  absl::string_view Rest() const { return pattern_.substr(position_); }
  /// A byte that is ahead; 0 behind the end.
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < pattern_.size() ? pattern_[position_ + ahead] : '\0';
  }
  size_t position() const { return position_; }
  void MoveTo(size_t position) { position_ = position; }
  void Skip(size_t bytes) { position_ += bytes; }

  /// Whether `text` stands here; stays where it is if not.
  bool Take(absl::string_view text);
  /// As many bytes as there are, at most `length`.
  absl::string_view TakeBytes(size_t length);
  char32_t TakeCharacter();
  /// Those that stand here, if any.
  absl::string_view TakeDigits();

  /// The character that an escape stands for, in and outside classes. Nothing, and the place as it
  /// was, where it stands for something else.
  std::optional<absl::StatusOr<char32_t>> TakeEscapedCharacter();
  /// \s, \d, \h, \p{...} and their opposites.
  absl::StatusOr<CharacterSet> TakeSet(bool is_caseless);
  /// [:name:] or [:^name:], which it must be at.
  absl::StatusOr<CharacterSet> TakePosixSet();
  bool IsAtPosixSet() const {
    return Rest().substr(0, 2) == "[:" && Rest().find(":]") != absl::string_view::npos;
  }

 private:
  /// \uHHHH, \x{H...}, \xHH
  absl::StatusOr<char32_t> TakeCode();
  absl::StatusOr<CharacterSet> TakeProperty(bool is_caseless);

  absl::string_view pattern_;
  size_t position_ = 0;
};

}  // namespace ziggurat
