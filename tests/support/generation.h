// Requests for Generate, and all that such a call brings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

/// What a request does where the model ends its text.
enum class AtEos { kStop, kGoOn };

/// Greedy.
v1::GenerateRequest TextRequest(const std::string& text, int max_tokens,
                                AtEos at_eos = AtEos::kStop);
v1::GenerateRequest IdRequest(absl::Span<const int32_t> prompt, int max_tokens,
                              AtEos at_eos = AtEos::kStop);

/// Everything that one Generate stream brought.
struct Generation {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> prompt_token_ids;  ///< where asked for
  std::vector<int32_t> token_ids;
  std::vector<v1::TokenLogprobs> logprobs;
  int chunks = 0;
  int messages_after_result = 0;
  std::optional<v1::GenerateResult> result;

  bool ok() const { return status.ok() && result.has_value(); }
  std::string Describe() const;  ///< status and counts, for failures
};

/// Calls Generate and reads all of it. `on_message` is called after every message; where it says
/// false the call is cancelled.
Generation CallGenerate(v1::Ziggurat::StubInterface& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext& context,
                        const std::function<bool(const Generation&)>& on_message = {});

}  // namespace ziggurat
