#include "server/delivery.h"

#include <utility>

#include "server/messages.h"
#include "spdlog/spdlog.h"

namespace ziggurat {

Delivery::Delivery(Engine* engine, const Tokenizer* tokenizer, Metrics* metrics)
    : engine_(engine), tokenizer_(tokenizer), metrics_(metrics), thread_([this] { Run(); }) {}

Delivery::~Delivery() { thread_.join(); }

absl::StatusOr<RequestId> Delivery::Submit(DeliveryRequest request,
                                           std::shared_ptr<ResponseSink> sink) {
  auto stream = std::make_unique<Stream>(tokenizer_, request.text);
  stream->sink = std::move(sink);
  stream->name = request.engine.name;
  stream->with_logprobs = request.with_logprobs;
  stream->may_end_by_text = request.engine.may_end_by_text;
  if (request.echo_prompt) stream->echo = request.engine.prompt;
  // The first output may come before Submit returns, so the stream is in the table before.
  const RequestId id = engine_->NewId();
  {
    std::lock_guard lock(mutex_);
    streams_.emplace(id, std::move(stream));
  }
  absl::Status status = engine_->Submit(id, std::move(request.engine));
  if (status.ok()) return id;
  std::lock_guard lock(mutex_);
  streams_.erase(id);
  return status;
}

void Delivery::Run() {
  std::vector<EngineOutput> outputs;
  while (engine_->NextOutputs(&outputs)) {
    for (const EngineOutput& output : outputs) Deliver(output);
    outputs.clear();
  }
}

void Delivery::Deliver(const EngineOutput& output) {
  Stream* stream = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(output.id);
    if (found == streams_.end()) return;
    stream = found->second.get();
  }
  SendNew(output, *stream);
  if (output.result == nullptr) return;
  SendResult(*output.result, *stream);
  std::lock_guard lock(mutex_);
  streams_.erase(output.id);
}

void Delivery::SendNew(const EngineOutput& output, Stream& stream) {
  if (stream.text.is_stopped()) return;  // these tokens come after the stop string
  v1::GenerateResponse response;
  v1::GenerateChunk& chunk = *response.mutable_chunk();
  for (const SampledToken& token : output.tokens) {
    ++stream.completion_tokens;
    chunk.add_token_ids(token.token_id);
    if (stream.with_logprobs) *chunk.add_logprobs() = ToMessage(token);
    chunk.mutable_text()->append(stream.text.Append(token.token_id));
    if (stream.text.is_stopped()) {
      engine_->Cancel(output.id, FinishReason::kStop);
      break;
    }
  }
  if (output.result != nullptr) chunk.mutable_text()->append(stream.text.Flush());
  // A call that fails with nothing sent can be tried elsewhere, by gRPC itself too.
  if (output.result == nullptr || output.result->status.ok()) {
    chunk.mutable_prompt_token_ids()->Add(stream.echo.begin(), stream.echo.end());
  }
  const bool has_news =
      chunk.token_ids_size() > 0 || !chunk.text().empty() || chunk.prompt_token_ids_size() > 0;
  if (!has_news) return;
  stream.echo.clear();
  stream.sink->Send(std::move(response));
}

void Delivery::SendResult(const EngineResult& ended, Stream& stream) {
  const FinishReason reason = stream.text.is_stopped() ? FinishReason::kStop : ended.reason;
  if (stream.may_end_by_text) {
    metrics_->CountFinished(reason);
    metrics_->ObserveTokens(ended.usage.prompt_tokens, stream.completion_tokens);
  }
  // A request that has reached its stop string is complete, whatever ended it in the engine.
  if (!ended.status.ok() && !stream.text.is_stopped()) {
    spdlog::info("[{}] ended after {} tokens: {}", stream.name, stream.completion_tokens,
                 ended.status.ToString(absl::StatusToStringMode::kWithNoExtraData));
    stream.sink->Finish(ended.status);
    return;
  }
  v1::GenerateResponse response;
  *response.mutable_result() = MakeResult(ended, stream);
  spdlog::info("[{}] {} after {} + {} tokens, {:.3f} s; cache {} blocks, 1/{:.2f} of full",
               stream.name, FinishReasonName(reason), ended.usage.prompt_tokens,
               stream.completion_tokens, ended.total_seconds, ended.cache.blocks,
               ended.cache.compression_ratio);
  stream.sink->Send(std::move(response));
  stream.sink->Finish(absl::OkStatus());
}

v1::GenerateResult Delivery::MakeResult(const EngineResult& ended, const Stream& stream) const {
  v1::GenerateResult result;
  result.set_request_id(stream.name);
  if (stream.text.is_stopped()) {
    result.set_finish_reason(v1::FINISH_REASON_STOP);
    result.set_stop_string(stream.text.matched());
  } else if (ended.reason == FinishReason::kStop) {
    result.set_finish_reason(v1::FINISH_REASON_STOP);
    if (ended.stop_token_id) result.set_stop_token_id(*ended.stop_token_id);
  } else {
    result.set_finish_reason(v1::FINISH_REASON_LENGTH);
  }
  result.mutable_usage()->set_prompt_tokens(ended.usage.prompt_tokens);
  result.mutable_usage()->set_completion_tokens(stream.completion_tokens);
  result.mutable_timings()->set_queue_seconds(ended.queue_seconds);
  result.mutable_timings()->set_first_token_seconds(ended.first_token_seconds);
  result.mutable_timings()->set_total_seconds(ended.total_seconds);
  *result.mutable_cache() = ToMessage(ended.cache);
  return result;
}

}  // namespace ziggurat
