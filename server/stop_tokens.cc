#include "server/stop_tokens.h"

#include <optional>

namespace ziggurat {

StopTokens ChooseStopTokens(const std::vector<int32_t>& of_model, const Tokenizer& tokenizer) {
  if (!of_model.empty()) return {of_model, "generation_config.json or config.json"};
  if (const std::optional<int32_t> eos = tokenizer.eos_id()) {
    return {{*eos}, "EOS of the tokenizer, as config.json names none"};
  }
  return {{},
          "neither does config.json name any that the vocabulary has, nor has the tokenizer one "
          "with an id"};
}

}  // namespace ziggurat
