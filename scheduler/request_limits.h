// What a request may ask for: the same rules where a client's message is read and at the border of
// the engine. INVALID_ARGUMENT names the parameter, its value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/request.h"

namespace ziggurat {

/// INVALID_ARGUMENT: "<parameter> <what>".
absl::Status InvalidParameter(absl::string_view parameter, absl::string_view what);

absl::Status CheckTokenIds(absl::string_view parameter, absl::Span<const int32_t> ids,
                           int vocab_size);

/// Of a prompt, which `parameter` holds.
absl::Status CheckPromptTokens(absl::string_view parameter, size_t tokens, int max_prompt_tokens);

/// max_new_tokens and min_new_tokens against each other and what the prompt leaves of the context.
absl::Status CheckLengths(const EngineRequest& request, int max_context_tokens);

}  // namespace ziggurat
