// The regular expressions of tokenizer.json, which are written for Oniguruma, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// Half-open range of byte offsets.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

/// A compiled expression. Immutable: any number of threads may match with it at once.
class Regex {
 public:
  /// UNIMPLEMENTED for what PCRE2 cannot do as Oniguruma does it, see TranslatePattern;
  /// INVALID_ARGUMENT for what it cannot compile.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  /// The expression that matches just `literal`.
  static absl::StatusOr<Regex> Literal(std::string_view literal);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// All matches in `text` (valid UTF-8) from left to right, not overlapping. An empty match is
  /// reported, except where the match before it ended.
  absl::Status FindAll(std::string_view text, std::vector<ByteRange>* matches) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace ziggurat
