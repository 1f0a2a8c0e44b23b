// Calls to gRPC's standard services by their bytes, since their stubs are not among Debian's
// packages.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"

namespace ziggurat {

/// grpc.health.v1.Health/Check of `service`: "SERVING", "NOT_SERVING", or the name of the error.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

/// The bytes that server reflection answers when asked for the list of services.
std::string ListServices(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace ziggurat
