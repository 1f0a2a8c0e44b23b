// gRPC's standard services, called with bytes, so that no generated code of theirs is needed.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

namespace ziggurat::e2e {

enum class Health { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3, kNoAnswer };

/// grpc.health.v1.Health/Check of `service` ("": the whole server).
Health CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

/// Sends `bytes` as the one message of a call and awaits its end; good for unary and streaming
/// methods. The first message that comes back goes to `response`.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes, std::string* response);

/// The serialized answer of the server reflection to "list services"; empty where there is none.
std::string ListServices(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace ziggurat::e2e
