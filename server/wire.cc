#include "server/wire.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace ziggurat {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status FromBytes(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (!bytes.Valid()) {
    return absl::CancelledError("the client went away before its request was whole");
  }
  grpc::ByteBuffer copy(bytes);  // shares the slices; the reader wants it mutable
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the request is no valid ", message->GetTypeName(),
                   ": cut short, garbled, or with text that is not UTF-8"));
}

}  // namespace ziggurat
