#include "tests/server/raw_calls.h"

#include <vector>

#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace ziggurat {
namespace {

struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  (void)buffer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// One message there and one back; a stream of one message looks the same on the wire.
RawAnswer Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
               const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  const auto wait = [&] {
    queue.Next(&tag, &ok);
    return ok;
  };
  RawAnswer answer;
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice slice(request);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer buffer;
  stream->Read(&buffer, nullptr);
  if (wait()) answer.bytes = Flatten(buffer);
  stream->Finish(&answer.status, nullptr);
  wait();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return answer;
}

// A protobuf field of kind "length and bytes", shorter than 128 bytes.
std::string BytesField(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

}  // namespace

std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  const RawAnswer answer = Call(channel, "/grpc.health.v1.Health/Check", BytesField(1, service));
  if (!answer.status.ok()) return std::to_string(answer.status.error_code());
  if (answer.bytes == std::string("\x08\x01")) return "SERVING";
  if (answer.bytes == std::string("\x08\x02")) return "NOT_SERVING";
  return "UNKNOWN";
}

std::string ListServices(const std::shared_ptr<grpc::Channel>& channel) {
  return Call(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              BytesField(7, ""))
      .bytes;
}

grpc::Status CallFromBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& request) {
  return Call(channel, "/ziggurat.v1.Ziggurat/" + method, request).status;
}

void LeaveBeforeTheRequest(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, "/ziggurat.v1.Ziggurat/" + method, &queue);
  void* tag = nullptr;
  bool ok = false;
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

}  // namespace ziggurat
