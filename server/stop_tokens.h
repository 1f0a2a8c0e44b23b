// What ends an answer where the request does not say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace ziggurat {

struct StopTokens {
  std::vector<int32_t> ids;  ///< may be empty: then only the limit of tokens ends an answer
  std::string source;        ///< for the log: where they come from
};

/// The stop tokens that the model's files name (`of_model`, see LoadModelConfig). Where they name
/// none, the one that the tokenizer calls EOS: a model that was trained with it ends its answers
/// so.
StopTokens ChooseStopTokens(const std::vector<int32_t>& of_model, const Tokenizer& tokenizer);

}  // namespace ziggurat
