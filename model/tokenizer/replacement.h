// The component Replace, which normalizers and decoders share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/regex.h"

namespace ziggurat {

/// The member "pattern" of a component, {"String": s} or {"Regex": r}, compiled. An empty pattern
/// is refused.
absl::StatusOr<Regex> ParsePattern(const nlohmann::json& component, absl::string_view where);

/// Replaces all matches of a pattern by a fixed text. Immutable; thread-safe.
class Replacement {
 public:
  /// From {"pattern": ..., "content": ...}.
  static absl::StatusOr<Replacement> Parse(const nlohmann::json& component);

  absl::Status Apply(std::string* text) const;

  /// Whether the pattern is one fixed character, so that it makes no difference how text is cut.
  bool is_single_character() const { return is_single_character_; }

 private:
  Replacement(Regex pattern, std::string content, bool is_single_character);

  Regex pattern_;
  std::string content_;
  bool is_single_character_;
};

}  // namespace ziggurat
