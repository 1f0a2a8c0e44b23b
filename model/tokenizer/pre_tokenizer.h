// Pre-tokenizers of tokenizer.json: how text is split into words, which merges never cross.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

struct Word {
  std::string text;               ///< valid UTF-8
  bool begins_the_input = false;  ///< it stands at the very beginning of what the user gave
};

/// Immutable; thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits every word further, or rewrites it. Leaves no empty word.
  virtual absl::Status Split(std::vector<Word>* words) const = 0;
};

/// Null for JSON null. UNIMPLEMENTED names a pre-tokenizer, or an option, that is not known.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const nlohmann::json& component,
                                                                int depth = 0);

}  // namespace ziggurat
