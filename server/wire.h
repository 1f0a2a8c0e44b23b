// Between our types and gRPC's: statuses, and messages as bytes.
//
// All calls are registered with raw bytes and parsed here: gRPC itself would answer a request that
// cannot be parsed (text that is not UTF-8) with an empty UNIMPLEMENTED.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace ziggurat {

/// The codes have the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);

/// Trailing metadata of a call that was refused: why, in a word (scheduler/refusal.h).
inline constexpr char kRefusalReasonKey[] = "ziggurat-refusal-reason";

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message);

/// INVALID_ARGUMENT where `bytes` are no such message; CANCELLED where there are none, since the
/// client went away before it had sent them.
absl::Status FromBytes(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

}  // namespace ziggurat
