#include "tests/e2e/raw_grpc.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <vector>

namespace ziggurat::e2e {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

/// A protobuf field of type string or message.
std::string Field(int number, const std::string& value) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(value.size())) + value;
}

}  // namespace

grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  wait();
  stream->WriteLast(ToBuffer(bytes), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer buffer;
  stream->Read(&buffer, nullptr);
  if (wait()) *response = ToString(buffer);
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  return status;
}

Health CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  std::string response;
  const grpc::Status status =
      CallRaw(channel, "/grpc.health.v1.Health/Check", Field(1, service), &response);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return Health::kServiceUnknown;
  if (!status.ok()) return Health::kNoAnswer;
  if (response.empty()) return Health::kUnknown;  // the default value is not written
  if (response.size() != 2 || response[0] != 0x08) return Health::kNoAnswer;
  return static_cast<Health>(response[1]);
}

std::string ListServices(const std::shared_ptr<grpc::Channel>& channel) {
  std::string response;
  CallRaw(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Field(7, "*"),
          &response);
  return response;
}

}  // namespace ziggurat::e2e
