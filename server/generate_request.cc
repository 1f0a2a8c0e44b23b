#include "server/generate_request.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "compression/plan_check.h"
#include "compression/task_classifier.h"
#include "scheduler/request_limits.h"
#include "server/printable.h"

namespace ziggurat {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr int kMaxStopTokens = 256;
// Of a text, on average: longer ones are not tokenized, only to be refused.
constexpr size_t kMostBytesPerToken = 128;
// Of all that a message has besides its prompt.
constexpr size_t kMostOtherBytes = 64 << 10;

std::string MakeRequestId() {
  thread_local std::mt19937_64 random(std::random_device{}());
  char id[32];
  std::snprintf(id, sizeof(id), "req-%016" PRIx64, static_cast<uint64_t>(random()));
  return id;
}

absl::StatusOr<std::vector<int32_t>> ParsePrompt(const v1::GenerateRequest& message,
                                                 const ServedModel& model,
                                                 const RequestRules& rules) {
  switch (message.input_case()) {
    case v1::GenerateRequest::kText: {
      absl::Status status = CheckTextBytes(message.text(), rules);
      if (!status.ok()) return status;
      absl::StatusOr<std::vector<int32_t>> ids =
          model.tokenizer->Encode(message.text(), {.parse_special = !message.plain_text()});
      if (!ids.ok()) return InvalidParameter("text", std::string(ids.status().message()));
      status = CheckPromptTokens("text", ids->size(), rules.max_prompt_tokens);
      if (!status.ok()) return status;
      return ids;
    }
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = message.token_ids().ids();
      absl::Status status = CheckPromptTokens("token_ids", ids.size(), rules.max_prompt_tokens);
      if (status.ok()) status = CheckTokenIds("token_ids", ids, rules.vocab_size);
      if (!status.ok()) return status;
      return std::vector<int32_t>(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("either text or token_ids must be given");
}

absl::StatusOr<SamplingParameters> ParseSampling(const v1::GenerateRequest& message) {
  const v1::SamplingParameters& from = message.sampling();
  SamplingParameters to;
  if (from.has_temperature()) to.temperature = from.temperature();
  if (from.has_top_k()) to.top_k = from.top_k();
  if (from.has_top_p()) to.top_p = from.top_p();
  if (from.has_min_p()) to.min_p = from.min_p();
  if (from.has_repetition_penalty()) to.repetition_penalty = from.repetition_penalty();
  if (from.has_presence_penalty()) to.presence_penalty = from.presence_penalty();
  if (from.has_frequency_penalty()) to.frequency_penalty = from.frequency_penalty();
  if (from.has_seed()) to.seed = from.seed();
  if (message.has_logprobs()) {
    if (message.logprobs() < 0) {
      return InvalidParameter("logprobs",
                              absl::StrCat("is ", message.logprobs(), ": must be from 0 to ",
                                           SamplingParameters::kMostLogprobs));
    }
    to.logprobs = message.logprobs();
  }
  if (absl::Status status = Validate(to); !status.ok()) return status;
  return to;
}

absl::Status CheckStopStrings(const v1::GenerateRequest& message) {
  if (message.stop_size() > kMaxStopStrings) {
    return InvalidParameter("stop", absl::StrCat("has ", message.stop_size(), " strings: at most ",
                                                 kMaxStopStrings, " are allowed"));
  }
  for (const std::string& stop : message.stop()) {
    if (stop.empty()) {
      return InvalidParameter("stop", absl::StrCat("holds an empty string: must be of 1 to ",
                                                   kMaxStopStringBytes, " bytes"));
    }
    if (stop.size() > kMaxStopStringBytes) {
      return InvalidParameter("stop",
                              absl::StrCat("holds a string of ", stop.size(), " bytes: at most ",
                                           kMaxStopStringBytes, " are allowed"));
    }
  }
  return absl::OkStatus();
}

// The first part of a composed policy that may not be asked for; "" where all may.
std::string PartNotAllowed(const Policy& policy, const RequestRules& rules) {
  for (const absl::string_view name : absl::StrSplit(std::string(policy.name()), '+')) {
    if (!absl::c_linear_search(rules.allowed_policies, name)) return std::string(name);
  }
  return "";
}

absl::StatusOr<std::shared_ptr<const Policy>> ChoosePolicy(const std::string& text,
                                                           const RequestRules& rules) {
  const Policy& by_default = *rules.default_policy;
  if (text.empty()) return rules.default_policy;
  absl::StatusOr<std::shared_ptr<const Policy>> policy = ParsePolicy(text, rules.resources);
  if (!policy.ok()) return policy.status();  // "compression policy, column 8: ..."
  if ((*policy)->ToString() == by_default.ToString()) return policy;
  const std::string name = PartNotAllowed(**policy, rules);
  if (name.empty()) return policy;
  return absl::PermissionDeniedError(
      absl::StrCat("compression '", name, "' is not allowed here: allowed are ",
                   absl::StrJoin(rules.allowed_policies, ", "),
                   PartNotAllowed(by_default, rules).empty()
                       ? ""
                       : absl::StrCat(", and the default, ", by_default.ToString())));
}

// As much of the beginning and the end of a prompt as policies look at, or all of it. Ids that the
// tokenizer does not know are left out: a guess is no reason to refuse a request.
std::string EndsOfPrompt(absl::Span<const int32_t> prompt, const Tokenizer& tokenizer) {
  const auto bytes_of = [&](int32_t id) {
    const absl::StatusOr<std::string> text = tokenizer.Decode({id});
    return text.ok() ? text->size() : 0;
  };
  size_t head = 0, tail = prompt.size();
  for (size_t bytes = 0; head < tail && bytes < kTaskHeadBytes; ++head) {
    bytes += bytes_of(prompt[head]);
  }
  for (size_t bytes = 0; head < tail && bytes < kTaskTailBytes; --tail) {
    bytes += bytes_of(prompt[tail - 1]);
  }
  std::vector<int32_t> known;
  for (const absl::Span<const int32_t> end : {prompt.first(head), prompt.subspan(tail)}) {
    for (const int32_t id : end) {
      if (tokenizer.IdToPiece(id).ok()) known.push_back(id);
    }
  }
  return tokenizer.Decode(known).value_or("");
}

// A policy that depends on the text of the prompt becomes the one for this prompt.
absl::Status SuitPolicyToPrompt(const v1::GenerateRequest& message, const ServedModel& model,
                                EngineRequest* request) {
  if (!request->policy->wants_prompt_text()) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const Policy>> policy =
      message.input_case() == v1::GenerateRequest::kText
          ? AskForPrompt(*request->policy, message.text())
          : AskForPrompt(*request->policy, EndsOfPrompt(request->prompt, *model.tokenizer));
  if (policy.ok() && *policy != nullptr) request->policy = *std::move(policy);
  return policy.status();
}

absl::Status ParseLengths(const v1::GenerateRequest& message, const RequestRules& rules,
                          EngineRequest* request) {
  const int room = rules.max_context_tokens - static_cast<int>(request->prompt.size());
  request->max_new_tokens =
      message.has_max_tokens() ? message.max_tokens() : std::min(rules.default_max_tokens, room);
  request->min_new_tokens = message.min_tokens();
  return CheckLengths(*request, rules.max_context_tokens);
}

}  // namespace

absl::StatusOr<std::string> ParseRequestId(const std::string& id) {
  if (id.empty()) return MakeRequestId();
  const bool is_printable =
      std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_printable || id.size() > kMaxRequestIdBytes) {
    return InvalidParameter("request_id",
                            absl::StrCat("is '", Printable(id.substr(0, kMaxRequestIdBytes)), "' (",
                                         id.size(), " bytes): must be at most ", kMaxRequestIdBytes,
                                         " printable ASCII characters without spaces"));
  }
  return id;
}

absl::Status CheckMessageBytes(size_t bytes, const RequestRules& rules) {
  const size_t most_bytes =
      kMostBytesPerToken * static_cast<size_t>(rules.max_prompt_tokens) + kMostOtherBytes;
  if (bytes <= most_bytes) return absl::OkStatus();
  return InvalidParameter(
      "the request", absl::StrCat("has ", bytes, " bytes: at most ", most_bytes, " are allowed, ",
                                  kMostBytesPerToken, " for each of ", rules.max_prompt_tokens,
                                  " tokens of a prompt and ", kMostOtherBytes, " for all else"));
}

absl::Status CheckTextBytes(std::string_view text, const RequestRules& rules) {
  const size_t most_bytes = kMostBytesPerToken * static_cast<size_t>(rules.max_prompt_tokens);
  if (text.size() <= most_bytes) return absl::OkStatus();
  return InvalidParameter(
      "text",
      absl::StrCat("has ", text.size(), " bytes: at most ", most_bytes, " are allowed, ",
                   kMostBytesPerToken, " for each of ", rules.max_prompt_tokens, " tokens"));
}

absl::StatusOr<DeliveryRequest> ParseGenerateRequest(const v1::GenerateRequest& message,
                                                     const ServedModel& model,
                                                     const RequestRules& rules) {
  DeliveryRequest request;
  EngineRequest& engine = request.engine;
  absl::StatusOr<SamplingParameters> sampling = ParseSampling(message);
  if (!sampling.ok()) return sampling.status();
  engine.sampling = *sampling;

  absl::StatusOr<std::shared_ptr<const Policy>> policy = ChoosePolicy(message.compression(), rules);
  if (!policy.ok()) return policy.status();
  engine.policy = *std::move(policy);

  absl::StatusOr<std::vector<int32_t>> prompt = ParsePrompt(message, model, rules);
  if (!prompt.ok()) return prompt.status();
  engine.prompt = *std::move(prompt);
  if (message.has_token_ids()) {  // a text is whole
    const size_t last = std::min(engine.prompt.size(), StreamingDetokenizer::kLastTokens);
    request.text.prompt_end.assign(engine.prompt.end() - last, engine.prompt.end());
  }

  if (absl::Status status = SuitPolicyToPrompt(message, model, &engine); !status.ok()) {
    return status;
  }
  engine.report_attention_recall = message.report_attention_recall();

  if (absl::Status status = ParseLengths(message, rules, &engine); !status.ok()) return status;
  if (absl::Status status = CheckStopStrings(message); !status.ok()) return status;
  if (message.stop_token_ids_size() > kMaxStopTokens) {
    return InvalidParameter("stop_token_ids",
                            absl::StrCat("has ", message.stop_token_ids_size(), " ids: at most ",
                                         kMaxStopTokens, " are allowed"));
  }
  if (absl::Status status =
          CheckTokenIds("stop_token_ids", message.stop_token_ids(), rules.vocab_size);
      !status.ok()) {
    return status;
  }
  engine.stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  if (!message.ignore_eos()) {
    engine.stop_token_ids.insert(engine.stop_token_ids.end(), model.eos_token_ids.begin(),
                                 model.eos_token_ids.end());
  }
  const std::set<int32_t> stops(engine.stop_token_ids.begin(), engine.stop_token_ids.end());
  if (message.min_tokens() > 0 && static_cast<int>(stops.size()) >= rules.vocab_size) {
    return InvalidParameter("min_tokens", "leaves nothing to draw: every token is a stop token");
  }

  request.text.stop_strings.assign(message.stop().begin(), message.stop().end());
  engine.may_end_by_text = !request.text.stop_strings.empty();
  request.text.min_tokens = message.min_tokens();
  request.text.include_special_tokens = message.include_special_tokens();
  request.with_logprobs = message.has_logprobs();
  request.echo_prompt = message.echo_prompt_token_ids();
  return request;
}

}  // namespace ziggurat
