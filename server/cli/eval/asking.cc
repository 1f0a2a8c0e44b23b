#include "server/cli/eval/asking.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cli/call_status.h"

namespace ziggurat::eval {
namespace {

constexpr absl::Duration kTokenizeDeadline = absl::Seconds(60);

grpc::Status Tokenize(v1::Ziggurat::StubInterface& stub, const std::string& text,
                      bool add_special_tokens, std::vector<int32_t>& ids) {
  grpc::ClientContext context;
  SetDeadline(context, kTokenizeDeadline);
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  v1::TokenizeResponse response;
  grpc::Status status = stub.Tokenize(&context, request, &response);
  ids.assign(response.token_ids().begin(), response.token_ids().end());
  return status;
}

grpc::Status Detokenize(v1::Ziggurat::StubInterface& stub, const std::vector<int32_t>& ids,
                        std::string& text) {
  grpc::ClientContext context;
  SetDeadline(context, kTokenizeDeadline);
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  v1::DetokenizeResponse response;
  grpc::Status status = stub.Detokenize(&context, request, &response);
  text = response.text();
  return status;
}

// Of the answer behind its prompt. Alone it may be more: SentencePiece puts a space before it.
// Where a token spans both, the model has to write the answer without that one.
grpc::Status CountAnswerTokens(v1::Ziggurat::StubInterface& stub, const Question& question,
                               int& count) {
  std::vector<int32_t> prompt, with_answer, alone;
  grpc::Status status = Tokenize(stub, question.prompt, false, prompt);
  if (status.ok()) status = Tokenize(stub, question.prompt + question.answer, false, with_answer);
  if (status.ok()) status = Tokenize(stub, question.answer, false, alone);
  if (!status.ok()) return status;
  const bool goes_on = with_answer.size() >= prompt.size() &&
                       std::equal(prompt.begin(), prompt.end(), with_answer.begin());
  const size_t tokens = goes_on ? with_answer.size() - prompt.size() : alone.size();
  count = std::max(1, static_cast<int>(tokens));
  return status;
}

// Ends the prompt `tokens` earlier, or more: where a character begins, so that the model's text can
// be compared.
grpc::Status HoldBack(v1::Ziggurat::StubInterface& stub, int tokens, Asking& asking) {
  constexpr int kMostBytes = 4;  // of a character, each a token at most
  std::vector<int32_t>& ids = asking.prompt_token_ids;
  grpc::Status status = Tokenize(stub, asking.question().prompt, true, ids);
  if (!status.ok()) return status;
  const int all = static_cast<int>(ids.size());
  if (all <= 1) return status;  // something must be left to send
  std::string whole;
  status = Detokenize(stub, ids, whole);
  for (int left = std::max(1, all - tokens); status.ok(); --left) {
    if (left == 0 || left < all - tokens - kMostBytes) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("the last ", tokens,
                           " tokens of the prompt cannot be held back: no character begins with "
                           "them, or just before")};
    }
    ids.resize(static_cast<size_t>(left));
    std::string sent;
    status = Detokenize(stub, ids, sent);
    if (!absl::StartsWith(whole, sent)) continue;
    asking.held_back = all - left;
    // What the last tokens add to the text, which is not always the text of these tokens alone.
    asking.held_back_text = whole.substr(sent.size());
    break;
  }
  return status;
}

}  // namespace

grpc::Status PrepareAsking(v1::Ziggurat::StubInterface& stub, const AskingOptions& options,
                           Asking& asking) {
  const std::string& answer = asking.question().answer;
  grpc::Status status = CountAnswerTokens(stub, asking.question(), asking.answer_tokens);
  if (!status.ok()) return status;
  const int hold_back = options.hold_back.value_or(asking.answer_tokens == 1 ? 1 : 0);
  if (hold_back > 0) {
    status = HoldBack(stub, hold_back, asking);
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
