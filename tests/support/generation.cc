#include "tests/support/generation.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/support/sync_stream.h"

namespace ziggurat {
namespace {

void Append(const v1::GenerateChunk& chunk, Generation* generation) {
  ++generation->chunks;
  generation->text += chunk.text();
  generation->token_ids.insert(generation->token_ids.end(), chunk.token_ids().begin(),
                               chunk.token_ids().end());
  generation->prompt_token_ids.insert(generation->prompt_token_ids.end(),
                                      chunk.prompt_token_ids().begin(),
                                      chunk.prompt_token_ids().end());
  generation->logprobs.insert(generation->logprobs.end(), chunk.logprobs().begin(),
                              chunk.logprobs().end());
}

}  // namespace

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens, AtEos at_eos) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(at_eos == AtEos::kGoOn);
  return request;
}

v1::GenerateRequest IdRequest(absl::Span<const int32_t> prompt, int max_tokens, AtEos at_eos) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(at_eos == AtEos::kGoOn);
  return request;
}

std::string Generation::Describe() const {
  return absl::StrCat("code ", static_cast<int>(status.error_code()), " '", status.error_message(),
                      "', ", token_ids.size(), " tokens, ", result.has_value() ? "a" : "no",
                      " result");
}

Generation CallGenerate(v1::Ziggurat::StubInterface& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext& context,
                        const std::function<bool(const Generation&)>& on_message) {
  Generation generation;
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse message;
  while (stream->Read(&message)) {
    if (generation.result.has_value()) ++generation.messages_after_result;
    if (message.has_chunk()) Append(message.chunk(), &generation);
    if (message.has_result()) generation.result = message.result();
    if (on_message && !on_message(generation)) context.TryCancel();
  }
  generation.status = stream->Finish();
  return generation;
}

}  // namespace ziggurat
