#include "server/cli/client.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"

namespace ziggurat {

std::unique_ptr<v1::Ziggurat::Stub> Connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a daemon is asked directly
  return v1::Ziggurat::NewStub(
      grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments));
}

std::string DescribeError(const grpc::Status& status, const std::string& server) {
  const absl::Status readable(static_cast<absl::StatusCode>(status.error_code()),
                              status.error_message());
  std::string text = readable.ToString();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    absl::StrAppend(&text, "\nIs a daemon serving at ", server,
                    "? `ziggurat serve --model DIR` starts one.");
  }
  return text;
}

}  // namespace ziggurat
