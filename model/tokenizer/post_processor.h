// Post processors of tokenizer.json: the special tokens put around a text.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat {

struct PostProcessor {
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

/// Adds nothing for JSON null. UNIMPLEMENTED names a post processor that is not known, or one
/// template behind another. Of a template only the form for single texts is read.
absl::StatusOr<PostProcessor> ParsePostProcessor(const nlohmann::json& component);

}  // namespace ziggurat
