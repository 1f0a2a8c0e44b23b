#include "scheduler/request_limits.h"

#include "absl/strings/str_cat.h"

namespace ziggurat {

absl::Status InvalidParameter(absl::string_view parameter, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(parameter, " ", what));
}

absl::Status CheckTokenIds(absl::string_view parameter, absl::Span<const int32_t> ids,
                           int vocab_size) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return InvalidParameter(
        parameter, absl::StrCat("holds ", id, ": token ids are from 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckPromptTokens(absl::string_view parameter, size_t tokens, int max_prompt_tokens) {
  if (tokens == 0) {
    return InvalidParameter(parameter, "is empty: a prompt has at least one token");
  }
  if (tokens > static_cast<size_t>(max_prompt_tokens)) {
    return InvalidParameter(parameter, absl::StrCat("has ", tokens, " tokens: at most ",
                                                    max_prompt_tokens, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const EngineRequest& request, int max_context_tokens) {
  const int room = max_context_tokens - static_cast<int>(request.prompt.size());
  if (request.max_new_tokens < 1 || request.max_new_tokens > room) {
    return InvalidParameter(
        "max_tokens", absl::StrCat("is ", request.max_new_tokens, ": must be from 1 to ", room,
                                   ", what a context of ", max_context_tokens,
                                   " tokens leaves beside a prompt of ", request.prompt.size()));
  }
  if (request.min_new_tokens < 0 || request.min_new_tokens > request.max_new_tokens) {
    return InvalidParameter("min_tokens",
                            absl::StrCat("is ", request.min_new_tokens, ": must be from 0 to ",
                                         request.max_new_tokens, " (max_tokens)"));
  }
  return absl::OkStatus();
}

}  // namespace ziggurat
