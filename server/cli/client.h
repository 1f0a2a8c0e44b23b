// What the commands that talk to a daemon share.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

constexpr char kDefaultServer[] = "127.0.0.1:50051";

std::unique_ptr<v1::Ziggurat::Stub> Connect(const std::string& server);

/// "INVALID_ARGUMENT: max_tokens is 0: ..."; where no daemon answers, how to start one.
std::string DescribeError(const grpc::Status& status, const std::string& server);

}  // namespace ziggurat
