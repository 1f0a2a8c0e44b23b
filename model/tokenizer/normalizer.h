// Normalizers of tokenizer.json: what is done to text before it is split into words.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// Immutable; thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is valid UTF-8, before and after.
  virtual absl::Status Normalize(std::string* text) const = 0;
};

/// Null for JSON null. UNIMPLEMENTED names a normalizer that is not known.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const nlohmann::json& component,
                                                            int depth = 0);

}  // namespace ziggurat
