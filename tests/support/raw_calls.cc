#include "tests/support/raw_calls.h"

#include <chrono>
#include <vector>

#include "absl/status/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace ziggurat {
namespace {

using grpc::health::v1::HealthCheckResponse;

void SetTimeout(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

/// A call under way, step by step.
class GenericCall {
 public:
  GenericCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
              grpc::ClientContext* context)
      : stream_(grpc::GenericStub(channel).PrepareCall(context, method, &queue_)) {
    stream_->StartCall(nullptr);
    Wait();
  }

  void WriteLast(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    stream_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    Wait();
  }
  /// Empty where there is no message.
  std::string Read() {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, nullptr);
    return Wait() ? Flatten(buffer) : std::string();
  }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Wait();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
    return status;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

}  // namespace

std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::ClientContext context;
  SetTimeout(context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  if (status.ok()) return HealthCheckResponse::ServingStatus_Name(response.status());
  // The codes of gRPC and of Abseil are the same.
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
}

std::string ListServices(const std::shared_ptr<grpc::Channel>& channel) {
  // `list_services`, field 7, is "*".
  const std::string request = {7 << 3 | 2, 1, '*'};
  return CallFromBytes(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                       request)
      .bytes;
}

RawAnswer CallFromBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& request) {
  grpc::ClientContext context;
  SetTimeout(context);
  GenericCall call(channel, method, &context);
  call.WriteLast(request);
  RawAnswer answer;
  answer.bytes = call.Read();
  answer.status = call.Finish();
  return answer;
}

std::string OurMethod(const std::string& name) { return "/ziggurat.v1.Ziggurat/" + name; }

void LeaveBeforeTheRequest(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method) {
  grpc::ClientContext context;
  GenericCall call(channel, method, &context);
  context.TryCancel();
  (void)call.Finish();
}

}  // namespace ziggurat
