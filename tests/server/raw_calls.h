// Calls by their bytes: to gRPC's standard services, whose stubs are not among Debian's packages,
// and with requests that no stub would send.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

namespace ziggurat {

/// grpc.health.v1.Health/Check of `service`: "SERVING", "NOT_SERVING", or the name of the error.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

/// The bytes that server reflection answers when asked for the list of services.
std::string ListServices(const std::shared_ptr<grpc::Channel>& channel);

/// A method of ours, such as "Generate", with a request of these bytes, whatever they are.
grpc::Status CallFromBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& request);

/// Begins a call of it and cancels that before any request is sent.
void LeaveBeforeTheRequest(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method);

}  // namespace ziggurat
