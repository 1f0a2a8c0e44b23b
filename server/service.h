// The gRPC service ziggurat.v1.Ziggurat.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "scheduler/engine.h"
#include "server/byte_budget.h"
#include "server/delivery.h"
#include "server/generate_call.h"
#include "server/generate_request.h"
#include "server/text_thread.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

/// All calls come as bytes (wire.h), so that what is no message is answered with a reason.
using ZigguratServiceBase =
    v1::Ziggurat::WithRawCallbackMethod_Generate<v1::Ziggurat::WithRawCallbackMethod_Tokenize<
        v1::Ziggurat::WithRawCallbackMethod_Detokenize<v1::Ziggurat::WithRawCallbackMethod_GetModel<
            v1::Ziggurat::WithRawCallbackMethod_GetCache<v1::Ziggurat::Service>>>>>;

/// Called by gRPC's threads, any number at once. Holds no state but the count of open calls, the
/// long messages that wait, and the bytes of answers that clients have not taken.
class ZigguratService : public ZigguratServiceBase {
 public:
  /// Engine, delivery and metrics must outlive the service, and the service every call.
  ZigguratService(Engine* engine, Delivery* delivery, Metrics* metrics, ServedModel model,
                  RequestRules rules, int max_open_calls, int max_message_bytes);

  /// Generate calls that gRPC has not finished yet.
  const OpenCalls& open_calls() const { return open_calls_; }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetCache(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  absl::StatusOr<v1::TokenizeResponse> Run(const v1::TokenizeRequest& request) const;
  absl::StatusOr<v1::DetokenizeResponse> Run(const v1::DetokenizeRequest& request) const;
  absl::StatusOr<v1::GetModelResponse> Run(const v1::GetModelRequest& request) const;
  absl::StatusOr<v1::GetCacheResponse> Run(const v1::GetCacheRequest& request) const;
  class UnaryCall;
  /// Parses, runs and answers one of these.
  template <class Request>
  grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& request, grpc::ByteBuffer* response);
  /// Whether one more call may be made at all. Before anything is done for it: a daemon that is
  /// full has better things to do.
  absl::Status Admit() const;
  /// Whether a long message, of so many bytes, may wait to be looked at; from then on it counts as
  /// waiting.
  absl::Status LetWait(size_t bytes);
  struct NamedRequest {
    std::string name;  ///< its id, for the log; "-" where that cannot be read
    absl::StatusOr<DeliveryRequest> request;
  };
  /// Parses a message, if `admit` has nothing against what is no wrong message.
  NamedRequest Read(const grpc::ByteBuffer& bytes, SteadyTime arrived,
                    std::optional<SteadyTime> deadline,
                    absl::FunctionRef<absl::Status()> admit) const;
  /// Submits on behalf of `call`, or ends it.
  void Submit(NamedRequest read, SteadyTime arrived, std::optional<SteadyTime> deadline,
              const std::shared_ptr<GenerateCall>& call);
  absl::StatusOr<DeliveryRequest> Parse(const v1::GenerateRequest& message) const;

  Engine* const engine_;
  Delivery* const delivery_;
  Metrics* const metrics_;
  const ServedModel model_;
  const RequestRules rules_;
  const int max_open_calls_;
  OpenCalls open_calls_;
  ByteBudget waiting_prompts_, waiting_calls_;  ///< of Generate, and of calls with one answer
  ByteBudget unread_answers_;                   ///< of the latter
  TextThread texts_;
};

}  // namespace ziggurat
