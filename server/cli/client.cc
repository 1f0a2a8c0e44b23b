#include "server/cli/client.h"

#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/support/log.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_interceptor.h"
#include "server/cli/call_status.h"
#include "server/config.h"
#include "server/printable.h"
#include "server/security/named_file.h"
#include "server/security/security_config.h"
#include "server/security/tls_identity.h"
#include "server/security/tokens.h"

namespace ziggurat {
namespace {

constexpr char kTokenVariable[] = "ZIGGURAT_TOKEN";

// Adds the token to each call, over TLS and plain text alike; gRPC's call credentials would not
// have the latter, not even on this machine.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& value) : value_(value) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token) : value_("Bearer " + token) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(value_);  // gRPC's
  }

 private:
  const std::string value_;
};

// Empty: none is given.
absl::StatusOr<std::string> ReadToken(const ServerFlags& flags) {
  if (!flags.token_file.empty()) {
    const absl::StatusOr<NamedFile> file = ReadNamedFile("--token-file", flags.token_file);
    if (!file.ok()) return file.status();
    absl::StatusOr<std::vector<std::string>> tokens = ParseTokens(*file);
    if (!tokens.ok()) return tokens.status();
    return tokens->front();
  }
  const char* variable = std::getenv(kTokenVariable);
  std::string token = variable != nullptr ? variable : "";
  const std::string wrong = token.empty() ? "" : WhyNoToken(token);
  if (wrong.empty()) return token;
  return absl::InvalidArgumentError(absl::StrCat("the token in $", kTokenVariable, " ", wrong));
}

// What TLS needs of files.
absl::StatusOr<grpc::SslCredentialsOptions> ReadTlsFiles(const ServerFlags& flags) {
  const absl::StatusOr<NamedFile> ca = ReadNamedFile("--tls-ca", flags.tls_ca);
  if (!ca.ok()) return ca.status();
  if (absl::Status status = CheckCertificates(*ca); !status.ok()) return status;
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ca->text;
  if (!flags.tls_cert.empty()) {
    const absl::StatusOr<NamedFile> cert = ReadNamedFile("--tls-cert", flags.tls_cert);
    if (!cert.ok()) return cert.status();
    const absl::StatusOr<NamedFile> key = ReadNamedFile("--tls-key", flags.tls_key);
    if (!key.ok()) return key.status();
    const auto pair = TlsIdentity::Parse(*cert, *key, std::nullopt, absl::Now());
    if (!pair.ok()) return pair.status();
    options.pem_cert_chain = cert->text;
    options.pem_private_key = key->text;
  }
  return options;
}

bool IsOnThisMachine(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(address);
  return endpoint.ok() && IsLoopback(endpoint->host);
}

// What is wrong with an address, or nothing. gRPC takes a port modulo 65536, and 443 for none.
// Other addresses are its own business: unix:, dns:, names of ports.
std::string WhyNoAddress(const std::string& address) {
  if (address.empty() || absl::StartsWith(address, "unix:")) return "";
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || absl::EndsWith(address, "]")) {
    return absl::StrCat("'", address, "' has no port: must be HOST:PORT, such as ", address,
                        ":50051");
  }
  const std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (host.empty() || absl::StartsWith(host, "[") != absl::EndsWith(host, "]")) {
    return absl::StrCat("'", address, "' has no host: must be HOST:PORT, such as localhost:50051");
  }
  const bool is_number = !port.empty() && absl::c_all_of(port, absl::ascii_isdigit);
  int value = 0;
  if (!is_number || (absl::SimpleAtoi(port, &value) && value >= 1 && value <= 65535)) return "";
  return absl::StrCat("'", address, "': the port must be from 1 to 65535, not ", port);
}

// What to do about a daemon that does not answer; empty: who knows.
std::string UnavailableHint(const std::string& message, const ServerFlags& flags) {
  const auto says = [&](const char* text) { return absl::StrContains(message, text); };
  // Of a connection that broke later, and of what a daemon said itself, there is no more to say.
  if (!says("failed to connect")) return "";
  if (!flags.tls_ca.empty()) {
    if (says("CERTIFICATE_VERIFY_FAILED") || says("certificate verify failed")) {
      return absl::StrCat("The daemon's certificate has expired, or no authority in ", flags.tls_ca,
                          " (--tls-ca) has signed it.");
    }
    if (says("is not in peer certificate") || says("Hostname Verification Check failed")) {
      return "The daemon's certificate is for another name: --tls-server-name says which to "
             "expect.";
    }
    if (says("WRONG_VERSION_NUMBER") || says("wrong version number")) {
      return "The daemon speaks plain text there: leave --tls-ca out.";
    }
    if (!says("Connection refused")) {
      return flags.tls_cert.empty()
                 ? "It may ask for a client certificate: --tls-cert and --tls-key show one."
                 : "It may not accept the client certificate that --tls-cert shows.";
    }
  } else if (!says("Connection refused")) {
    return absl::StrCat("Is it a daemon that serves at ", flags.address,
                        "? If it speaks TLS, --tls-ca FILE does too.");
  }
  return absl::StrCat("Is a daemon serving at ", flags.address,
                      "? `ziggurat serve --model DIR` starts one.");
}

}  // namespace

void AddServerFlags(CLI::App& command, ServerFlags& flags) {
  const auto file = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("FILE");
  };
  // Probes that were written for `health` say --address.
  command.add_option("--server,--address", flags.address, "The daemon")
      ->type_name("HOST:PORT")
      ->check(CLI::Validator(WhyNoAddress, ""))
      ->capture_default_str();
  CLI::Option* ca = file("--tls-ca", flags.tls_ca,
                         "Speak TLS, with a server whose certificate one of this file has signed");
  CLI::Option* cert =
      file("--tls-cert", flags.tls_cert, "Certificate to show, where one is asked")->needs(ca);
  CLI::Option* key = file("--tls-key", flags.tls_key, "Key of that certificate")->needs(cert);
  cert->needs(key);
  command
      .add_option("--tls-server-name", flags.tls_server_name,
                  "Name that the server's certificate must bear (default: the host)")
      ->type_name("NAME")
      ->needs(ca);
  file("--token-file", flags.token_file,
       "The first token in it goes with each call (default: the token in $ZIGGURAT_TOKEN)");
  command.add_flag("--allow-plain-text", flags.allow_plain_text,
                   "Without --tls-ca, send the token even to another machine");
}

absl::StatusOr<ServerAccess> ReadServerAccess(const ServerFlags& flags) {
  ServerAccess access;
  absl::StatusOr<std::string> token = ReadToken(flags);
  if (!token.ok()) return token.status();
  access.token = *std::move(token);
  if (!flags.tls_ca.empty()) {
    absl::StatusOr<grpc::SslCredentialsOptions> tls = ReadTlsFiles(flags);
    if (!tls.ok()) return tls.status();
    access.tls = *std::move(tls);
  }
  if (!access.token.empty() && !access.tls && !flags.allow_plain_text &&
      !IsOnThisMachine(flags.address)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the token would go to ", flags.address,
        " in plain text, to be read on its way: give --tls-ca FILE, or say --allow-plain-text"));
  }
  return access;
}

std::shared_ptr<grpc::Channel> OpenChannel(const ServerFlags& flags, const ServerAccess& access) {
  // What gRPC logs of a connection that fails is in the status too; who debugs says so.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a daemon is asked directly
  // A daemon whose machine vanished without a word is noticed within a minute, however long an
  // answer is waited for. The daemon allows a ping every 10 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (!flags.tls_server_name.empty()) arguments.SetSslTargetNameOverride(flags.tls_server_name);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!access.token.empty()) {
    interceptors.push_back(std::make_unique<TokenInterceptorFactory>(access.token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      flags.address,
      access.tls ? grpc::SslCredentials(*access.tls) : grpc::InsecureChannelCredentials(),
      arguments, std::move(interceptors));
}

std::unique_ptr<v1::Ziggurat::Stub> Connect(const ServerFlags& flags, const ServerAccess& access) {
  return v1::Ziggurat::NewStub(OpenChannel(flags, access));
}

int ExitCodeOf(const grpc::Status& status) {
  return IsAskedWrongly(status.error_code()) ? kExitUsage : kExitFailure;
}

std::string DescribeError(const grpc::Status& status, const ServerFlags& flags) {
  const absl::Status readable(static_cast<absl::StatusCode>(status.error_code()),
                              PrintableMessage(status.error_message()));
  std::string text = readable.ToString();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    const std::string hint = UnavailableHint(status.error_message(), flags);
    if (!hint.empty()) absl::StrAppend(&text, "\n", hint);
  }
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    absl::StrAppend(&text, "\nThe token is the first one in the file that --token-file names, or $",
                    kTokenVariable, ".");
  }
  return text;
}

}  // namespace ziggurat
