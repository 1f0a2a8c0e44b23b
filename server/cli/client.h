// What the commands that talk to a daemon share: which daemon, and how it is spoken to.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "server/cli/command.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

constexpr char kDefaultServer[] = "127.0.0.1:50051";

struct ServerFlags {
  std::string address = kDefaultServer;
  std::string tls_ca;  ///< empty: plain text
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;  ///< empty: the host of the address
  std::string token_file;       ///< empty: the token in $ZIGGURAT_TOKEN, if any
  bool allow_plain_text = false;
};

/// The same flags for every command. `flags` outlives the command.
void AddServerFlags(CLI::App& command, ServerFlags& flags);

/// What a daemon is shown, out of the files and the variable that the flags name.
struct ServerAccess {
  std::string token;                               ///< empty: none
  std::optional<grpc::SslCredentialsOptions> tls;  ///< none: plain text
};

/// A file may keep it waiting (a pipe, a share that hangs), and it starts no thread: to be called
/// before a command takes signals for events. The error names the flag and what is wrong with its
/// file; FAILED_PRECONDITION where a token would go to another machine in plain text.
absl::StatusOr<ServerAccess> ReadServerAccess(const ServerFlags& flags);

/// A connection whose every call carries the token, if there is one.
std::shared_ptr<grpc::Channel> OpenChannel(const ServerFlags& flags, const ServerAccess& access);
std::unique_ptr<v1::Ziggurat::Stub> Connect(const ServerFlags& flags, const ServerAccess& access);

/// kExitUsage where we asked for what is never given (IsAskedWrongly), else kExitFailure.
int ExitCodeOf(const grpc::Status& status);

/// "INVALID_ARGUMENT: max_tokens is 0: ..."; where no daemon can be connected to, or it does not
/// let us in, what to do about it.
std::string DescribeError(const grpc::Status& status, const ServerFlags& flags);

}  // namespace ziggurat
