// absl::Status to grpc::Status: the codes have the same numbers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace ziggurat {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

}  // namespace ziggurat
