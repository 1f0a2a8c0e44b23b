// Calls to gRPC's standard services, and calls by their bytes, with requests that no stub would
// send.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

namespace ziggurat {

/// grpc.health.v1.Health/Check of `service` ("": the whole server): "SERVING", "NOT_SERVING", or
/// the name of the error, such as "NOT_FOUND" where the server does not know the service.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

/// The bytes that server reflection answers when asked for the list of services; empty where there
/// is none.
std::string ListServices(const std::shared_ptr<grpc::Channel>& channel);

struct RawAnswer {
  grpc::Status status;
  std::string bytes;  ///< of the first message; empty where none came
};

/// A call of the method of this full name with one message of these bytes, whatever they are. Good
/// for streams too: one of one message looks the same on the wire.
RawAnswer CallFromBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& request);

/// The full name of a method of ours, such as "Generate".
std::string OurMethod(const std::string& name);

/// Begins a call of the method and cancels that before any request is sent.
void LeaveBeforeTheRequest(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method);

}  // namespace ziggurat
