// SentencePiece's way to write spaces: a visible character stands for each. The component is both a
// pre-tokenizer and a decoder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace ziggurat {

struct Metaspace {
  enum class Prepend {
    kAlways,  ///< before every section of the text
    kFirst,   ///< only at the beginning of the input
    kNever,
  };
  std::string replacement = "\u2581";  ///< one character
  Prepend prepend = Prepend::kAlways;
};

absl::StatusOr<Metaspace> ParseMetaspace(const nlohmann::json& component);

}  // namespace ziggurat
