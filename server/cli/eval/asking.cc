#include "server/cli/eval/asking.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "server/cli/call_status.h"

namespace ziggurat::eval {
namespace {

constexpr auto kTokenizeDeadline = std::chrono::seconds(60);
constexpr auto kCheckDeadline = std::chrono::seconds(60);

grpc::Status Tokenize(v1::Ziggurat::StubInterface& stub, const std::string& text,
                      std::vector<int32_t>& ids) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTokenizeDeadline);
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(true);
  v1::TokenizeResponse response;
  grpc::Status status = stub.Tokenize(&context, request, &response);
  ids.assign(response.token_ids().begin(), response.token_ids().end());
  return status;
}

grpc::Status Detokenize(v1::Ziggurat::StubInterface& stub, const std::vector<int32_t>& ids,
                        std::string& text) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTokenizeDeadline);
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  v1::DetokenizeResponse response;
  grpc::Status status = stub.Detokenize(&context, request, &response);
  text = response.text();
  return status;
}

// Ends the prompt `tokens` earlier, or more: where a character begins, so that the model's text can
// be compared.
grpc::Status HoldBack(v1::Ziggurat::StubInterface& stub, int tokens, std::vector<int32_t> ids,
                      Asking& asking) {
  std::string whole;
  grpc::Status status = Detokenize(stub, ids, whole);
  if (!status.ok()) return status;
  const int all = static_cast<int>(ids.size());
  int left = std::max(1, all - tokens);  // something must be left to send
  std::string sent;
  for (;; --left) {
    ids.resize(static_cast<size_t>(left));
    status = Detokenize(stub, ids, sent);
    if (!status.ok()) return status;
    if (absl::StartsWith(whole, sent)) break;
    if (left == 1) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              "no token at the end of the prompt can be held back: its text is one character"};
    }
  }
  asking.held_back = all - left;
  // What the last tokens add to the text, which is not always the text of these tokens alone.
  asking.held_back_text = whole.substr(sent.size());
  asking.prompt_token_ids = std::move(ids);
  return status;
}

}  // namespace

grpc::Status CheckPolicy(v1::Ziggurat::StubInterface& stub, const std::string& text,
                         const AskingOptions& options, std::string& canonical) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCheckDeadline);
  v1::GenerateRequest request;
  request.set_text("1");
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(1);
  request.mutable_stop()->Add(options.stop.begin(), options.stop.end());
  request.set_compression(text);
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_result()) canonical = response.result().cache().compression();
  }
  if (std::string any = TextOfAnyPrompt(text); !any.empty()) canonical = std::move(any);
  return WithRefusalReason(stream->Finish(), context);
}

grpc::Status PrepareAsking(v1::Ziggurat::StubInterface& stub, const AskingOptions& options,
                           Asking& asking) {
  const std::string& answer = asking.question().answer;
  std::vector<int32_t> prompt, with_answer;
  grpc::Status status = Tokenize(stub, asking.question().prompt, prompt);
  if (status.ok()) status = Tokenize(stub, asking.question().prompt + answer, with_answer);
  if (!status.ok()) return status;
  // Behind the prompt: alone, SentencePiece puts a space before it.
  asking.answer_tokens =
      std::max(1, static_cast<int>(with_answer.size()) - static_cast<int>(prompt.size()));
  const int hold_back = options.hold_back.value_or(asking.answer_tokens == 1 ? 1 : 0);
  if (hold_back > 0 && prompt.size() > 1) {
    status = HoldBack(stub, hold_back, std::move(prompt), asking);
    if (!status.ok()) return status;
  }
  asking.max_tokens = options.max_tokens.value_or(asking.answer_tokens + asking.held_back);
  for (const std::string& stop : options.stop) {
    const bool is_in_text = answer.find(stop) != std::string::npos ||
                            asking.held_back_text.find(stop) != std::string::npos;
    if (!is_in_text) asking.stop.push_back(stop);
  }
  return grpc::Status::OK;
}

v1::GenerateRequest MakeRequest(const Asking& asking, const EvalPolicy& policy,
                                bool attention_recall) {
  v1::GenerateRequest request;
  if (asking.held_back > 0) {
    request.mutable_token_ids()->mutable_ids()->Add(asking.prompt_token_ids.begin(),
                                                    asking.prompt_token_ids.end());
  } else {
    request.set_text(asking.question().prompt);
  }
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(asking.max_tokens);
  request.mutable_stop()->Add(asking.stop.begin(), asking.stop.end());
  request.set_compression(policy.canonical);
  request.set_report_attention_recall(attention_recall);
  return request;
}

ResultKey MakeKey(const v1::GetModelResponse& model, const Asking& asking,
                  const EvalPolicy& policy) {
  return {.model = model.name(),
          .dtype = model.dtype(),
          .policy = policy.canonical,
          .tasks = asking.file->hash,
          .index = static_cast<int64_t>(asking.index),
          .max_tokens = asking.max_tokens,
          .held_back = asking.held_back,
          .stop = asking.stop};
}

bool IsSettled(const Result& result, bool attention_recall) {
  return !result.failed() && (result.recall_asked || !attention_recall);
}

}  // namespace ziggurat::eval
