#include "server/service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compression/registry.h"
#include "scheduler/refusal.h"
#include "scheduler/request_limits.h"
#include "server/messages.h"
#include "server/version.h"
#include "server/wire.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

// Calls of a kind that wait may hold as many bytes as so many of the largest messages.
constexpr size_t kMostWaiting = 4;
// Of answers to calls with one that clients have not taken yet; no single one is as large.
constexpr size_t kMostUnreadBytes = size_t{256} << 20;

absl::Status TooManyBytes(const ByteBudget& waiting, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("too many texts wait to become tokens, or tokens text: with the ", bytes,
                   " bytes of this call more than ", waiting.most_bytes(), " (", kMostWaiting,
                   " times --max-message-bytes)"));
}

// Of a request that was refused, or has ended before anything was done for it.
void End(const std::string& name, absl::Status status, GenerateCall& call) {
  spdlog::info("[{}] {}: {}", name, RefusalReason(status).empty() ? "ended" : "refused",
               status.ToString(absl::StatusToStringMode::kWithNoExtraData));
  call.Finish(std::move(status));
}

// gRPC's deadlines are of the system clock; none is its maximum.
std::optional<SteadyTime> DeadlineOf(const grpc::CallbackServerContext& context) {
  // Not context.deadline(): those of centuries, as clients send them that mean none, do not fit
  // into a time_point.
  constexpr int64_t kYear = 365 * 24 * 3600;
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec > kYear) return std::nullopt;
  return std::chrono::steady_clock::now() +
         std::chrono::seconds(std::max<int64_t>(left.tv_sec, -1)) +  // or overdue
         std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace

ZigguratService::ZigguratService(Engine* engine, Delivery* delivery, Metrics* metrics,
                                 ServedModel model, RequestRules rules, int max_open_calls,
                                 int max_message_bytes)
    : engine_(engine),
      delivery_(delivery),
      metrics_(metrics),
      model_(std::move(model)),
      rules_(std::move(rules)),
      max_open_calls_(max_open_calls),
      waiting_prompts_(kMostWaiting * max_message_bytes),
      waiting_calls_(kMostWaiting * max_message_bytes),
      unread_answers_(kMostUnreadBytes) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ZigguratService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const SteadyTime arrived = std::chrono::steady_clock::now();
  const std::optional<SteadyTime> deadline = DeadlineOf(*context);
  const std::shared_ptr<GenerateCall> call = GenerateCall::Make(engine_, &open_calls_, context);
  const size_t bytes = request->Length();
  if (TextThread::IsShort(bytes)) {
    Submit(Read(*request, arrived, deadline,
                [&] {
                  absl::Status status = Admit();
                  if (status.ok()) call->Accept();
                  return status;
                }),
           arrived, deadline, call);
    return call.get();
  }
  if (absl::Status status = LetWait(bytes); !status.ok()) {
    End("-", std::move(status), *call);
    return call.get();
  }
  call->Accept();
  texts_.Run(bytes, [this, bytes, message = *request, arrived, deadline, call] {
    NamedRequest read = Read(message, arrived, deadline, [&] {
      return engine_->CheckWaited(arrived, deadline, call->is_broken());
    });
    metrics_->CountWaitingTexts(-1);
    Submit(std::move(read), arrived, deadline, call);
    waiting_prompts_.Leave(bytes);  // until then its place in the queue is kept
  });
  return call.get();
}

ZigguratService::NamedRequest ZigguratService::Read(const grpc::ByteBuffer& bytes,
                                                    SteadyTime arrived,
                                                    std::optional<SteadyTime> deadline,
                                                    absl::FunctionRef<absl::Status()> admit) const {
  v1::GenerateRequest message;
  absl::Status status = FromBytes(bytes, &message);
  if (absl::IsCancelled(status)) {
    status = engine_->CheckWaited(arrived, deadline, /*has_left=*/true);
  }
  const absl::StatusOr<std::string> name = ParseRequestId(message.request_id());
  if (status.ok()) status = name.status();
  if (absl::IsInvalidArgument(status)) {
    status = Refuse(metrics_, Refusal::kInvalid, std::move(status));
  }
  if (status.ok()) status = admit();
  if (!status.ok()) return {name.value_or("-"), std::move(status)};
  return {*name, Parse(message)};
}

absl::Status ZigguratService::Admit() const {
  if (open_calls_.count() > max_open_calls_) {
    return Refuse(metrics_, Refusal::kTooManyStreams,
                  absl::ResourceExhaustedError(absl::StrCat("too many streams: ", max_open_calls_,
                                                            " are open, and no more may be")));
  }
  return engine_->CheckOpen(waiting_prompts_.count());
}

absl::Status ZigguratService::LetWait(size_t bytes) {
  if (absl::Status status = Admit(); !status.ok()) return status;
  if (absl::Status status = CheckMessageBytes(bytes, rules_); !status.ok()) {
    return Refuse(metrics_, Refusal::kInvalid, std::move(status));
  }
  if (!waiting_prompts_.Enter(bytes)) {
    return Refuse(metrics_, Refusal::kQueueFull, TooManyBytes(waiting_prompts_, bytes));
  }
  metrics_->CountWaitingTexts(1);
  return absl::OkStatus();
}

void ZigguratService::Submit(NamedRequest read, SteadyTime arrived,
                             std::optional<SteadyTime> deadline,
                             const std::shared_ptr<GenerateCall>& call) {
  auto& [name, request] = read;
  if (!request.ok()) return End(name, request.status(), *call);
  request->engine.name = name;
  request->engine.arrived = arrived;
  request->engine.deadline = deadline;
  spdlog::info("[{}] {} prompt tokens, at most {} new ones, {}", name,
               request->engine.prompt.size(), request->engine.max_new_tokens,
               request->engine.policy->ToString());
  const absl::StatusOr<RequestId> id = delivery_->Submit(*std::move(request), call);
  if (!id.ok()) return End(name, id.status(), *call);
  call->SetRequest(*id);
}

absl::StatusOr<DeliveryRequest> ZigguratService::Parse(const v1::GenerateRequest& message) const {
  absl::StatusOr<DeliveryRequest> request = ParseGenerateRequest(message, model_, rules_);
  if (!request.ok()) {
    return absl::IsPermissionDenied(request.status())
               ? Refuse(metrics_, Refusal::kNotAllowed, request.status())
               : RefuseInvalid(metrics_, request.status());
  }
  return request;
}

// ---- Calls with one answer ---------------------------------------------------------------------

/// Holds what it has answered until the client has taken it.
class ZigguratService::UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryCall(ByteBudget* unread) : unread_(unread) {}

  void Answer(const google::protobuf::Message& message, grpc::ByteBuffer* response) {
    *response = ToBytes(message);
    const size_t bytes = response->Length();
    if (!unread_->Enter(bytes)) {
      response->Clear();
      return Finish(ToGrpcStatus(absl::ResourceExhaustedError(absl::StrCat(
          "clients have not taken the answers of other calls yet: with the ", bytes,
          " bytes of this one more than ", unread_->most_bytes(), " would wait for them"))));
    }
    bytes_ = bytes;
    Finish(grpc::Status::OK);
  }

  void OnDone() override {
    if (bytes_) unread_->Leave(*bytes_);
    delete this;
  }

 private:
  ByteBudget* const unread_;
  std::optional<size_t> bytes_;
};

template <class Request>
grpc::ServerUnaryReactor* ZigguratService::RunUnary(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer& request,
                                                    grpc::ByteBuffer* response) {
  auto* const call = new UnaryCall(&unread_answers_);  // its own, until OnDone
  const size_t bytes = request.Length();
  const bool waits = !TextThread::IsShort(bytes);
  absl::Status admitted = CheckMessageBytes(bytes, rules_);
  if (admitted.ok() && waits && !waiting_calls_.Enter(bytes)) {
    admitted = TooManyBytes(waiting_calls_, bytes);
  }
  if (!admitted.ok()) {
    call->Finish(ToGrpcStatus(admitted));
    return call;
  }
  texts_.Run(bytes, [this, bytes, waits, request, context, call, response] {
    Request message;
    absl::Status status = context->IsCancelled() ? absl::CancelledError("the client went away")
                                                 : FromBytes(request, &message);
    if (status.ok()) {
      const auto answer = Run(message);
      status = answer.status();
      if (status.ok()) call->Answer(*answer, response);
    }
    if (waits) waiting_calls_.Leave(bytes);
    if (!status.ok()) call->Finish(ToGrpcStatus(status));
  });
  return call;
}

grpc::ServerUnaryReactor* ZigguratService::Tokenize(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return RunUnary<v1::TokenizeRequest>(context, *request, response);
}

grpc::ServerUnaryReactor* ZigguratService::Detokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return RunUnary<v1::DetokenizeRequest>(context, *request, response);
}

grpc::ServerUnaryReactor* ZigguratService::GetModel(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return RunUnary<v1::GetModelRequest>(context, *request, response);
}

grpc::ServerUnaryReactor* ZigguratService::GetCache(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return RunUnary<v1::GetCacheRequest>(context, *request, response);
}

absl::StatusOr<v1::TokenizeResponse> ZigguratService::Run(
    const v1::TokenizeRequest& request) const {
  if (absl::Status status = CheckTextBytes(request.text(), rules_); !status.ok()) return status;
  absl::StatusOr<std::vector<int32_t>> ids = model_.tokenizer->Encode(
      request.text(),
      {.add_special_tokens = request.add_special_tokens(), .parse_special = !request.plain_text()});
  if (!ids.ok()) return ids.status();
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids->begin(), ids->end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> ZigguratService::Run(
    const v1::DetokenizeRequest& request) const {
  const int most = engine_->model_shape().max_context_tokens;
  if (request.token_ids_size() > most) {
    return InvalidParameter(
        "token_ids", absl::StrCat("has ", request.token_ids_size(), " tokens: at most ", most,
                                  " are allowed, the model's context"));
  }
  const absl::StatusOr<std::string> text =
      model_.tokenizer->Decode(request.token_ids(), !request.include_special_tokens());
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("token_ids: ", text.status().message()));
  }
  v1::DetokenizeResponse response;
  response.set_text(*text);
  return response;
}

absl::StatusOr<v1::GetModelResponse> ZigguratService::Run(
    const v1::GetModelRequest& /*request*/) const {
  v1::GetModelResponse response;
  const ModelShape& shape = engine_->model_shape();
  response.set_name(model_.name);
  response.set_architecture(model_.architecture);
  response.set_num_layers(shape.num_layers);
  response.set_num_q_heads(shape.num_q_heads);
  response.set_num_kv_heads(shape.num_kv_heads);
  response.set_head_dim(shape.head_dim);
  response.set_hidden_size(shape.hidden_size);
  response.set_vocab_size(shape.vocab_size);
  response.set_max_context_tokens(shape.max_context_tokens);
  response.set_max_prompt_tokens(rules_.max_prompt_tokens);
  response.set_default_max_tokens(rules_.default_max_tokens);
  response.set_dtype(std::string(ElementTypeName(shape.element)));
  response.set_backend(model_.backend);
  response.mutable_eos_token_ids()->Add(model_.eos_token_ids.begin(), model_.eos_token_ids.end());
  response.set_default_compression(rules_.default_policy->ToString());
  for (const std::string& name : rules_.allowed_policies) {
    const PolicyDescriptor* policy = FindPolicy(name);
    if (policy == nullptr) continue;
    v1::PolicyInfo* info = response.add_policies();
    info->set_name(name);
    info->set_help(absl::StrCat(DescribeUsage(*policy), ": ", std::string(policy->summary)));
  }
  response.set_version(VersionText());
  return response;
}

absl::StatusOr<v1::GetCacheResponse> ZigguratService::Run(
    const v1::GetCacheRequest& request) const {
  return ToMessage(*engine_->Snapshot(),
                   request.totals_only() ? CacheDetail::kTotals : CacheDetail::kRequestsInFull);
}

}  // namespace ziggurat
