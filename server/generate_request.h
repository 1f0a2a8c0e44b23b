// From the client's message to what engine and delivery are given: every check of a parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/policy.h"
#include "model/tokenizer/tokenizer.h"
#include "server/delivery.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// What the daemon serves. Immutable while it serves; any thread.
struct ServedModel {
  std::string name;          ///< of the model's folder
  std::string architecture;  ///< "LlamaForCausalLM"
  std::string backend;       ///< "cpu-avx512bf16"
  std::vector<int32_t> eos_token_ids;
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// The limits that requests are held against. Immutable; any thread.
struct RequestRules {
  int vocab_size = 0;
  int max_context_tokens = 0;
  int max_prompt_tokens = 0;
  int default_max_tokens = 0;
  std::shared_ptr<const Policy> default_policy;
  std::vector<std::string> allowed_policies;  ///< names; the default policy is always allowed
  PolicyResources resources;                  ///< what policy texts may name
};

/// The client's id, or a new one where it is empty. INVALID_ARGUMENT for an id that would break a
/// log line.
absl::StatusOr<std::string> ParseRequestId(const std::string& id);

/// INVALID_ARGUMENT for a message of so many bytes that they are not all needed: known before it is
/// parsed.
absl::Status CheckMessageBytes(size_t bytes, const RequestRules& rules);
/// INVALID_ARGUMENT for a text of so many bytes that it can be no prompt: known before it is
/// tokenized.
absl::Status CheckTextBytes(std::string_view text, const RequestRules& rules);

/// Everything but the request's id. INVALID_ARGUMENT names the parameter, its value and what is
/// allowed; PERMISSION_DENIED names the policy.
absl::StatusOr<DeliveryRequest> ParseGenerateRequest(const v1::GenerateRequest& message,
                                                     const ServedModel& model,
                                                     const RequestRules& rules);

}  // namespace ziggurat
