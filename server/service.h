// The gRPC service ziggurat.v1.Ziggurat.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "scheduler/engine.h"
#include "server/delivery.h"
#include "server/generate_request.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

class GenerateCall;

/// Called by gRPC's threads, any number at once. Holds no state but the count of open calls.
class ZigguratService : public v1::Ziggurat::CallbackService {
 public:
  /// Engine and delivery must outlive the service, and the service every call.
  ZigguratService(Engine* engine, Delivery* delivery, ServedModel model, RequestRules rules,
                  int max_open_calls);

  /// Generate calls that gRPC has not finished yet.
  int open_calls() const { return open_calls_; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetCache(grpc::CallbackServerContext* context,
                                     const v1::GetCacheRequest* request,
                                     v1::GetCacheResponse* response) override;

 private:
  /// Parses and submits on behalf of `call`.
  absl::Status Submit(const grpc::CallbackServerContext& context,
                      const v1::GenerateRequest& message, const std::string& name,
                      const std::shared_ptr<GenerateCall>& call);

  Engine* const engine_;
  Delivery* const delivery_;
  const ServedModel model_;
  const RequestRules rules_;
  const int max_open_calls_;
  std::atomic<int> open_calls_ = 0;
};

}  // namespace ziggurat
