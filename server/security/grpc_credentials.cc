#include "server/security/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

// Probes carry no token, and learn no more than whether the daemon serves.
constexpr std::string_view kHealthMethods = "/grpc.health.v1.Health/";
// Does not say whether a token was there at all, or how wrong it was.
constexpr char kRefusal[] =
    "a valid token is needed: metadata 'authorization' with the value 'Bearer TOKEN'";
// For a thread that was told "unchanged" to make its handshake. gRPC frees the certificate that it
// had when it is given another, and holds no lock then that would keep that thread from using it
// (github.com/grpc/grpc/issues/36693); but it asks only one thread at a time.
constexpr std::chrono::milliseconds kTimeForHandshakes{50};

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// What gRPC's callbacks get; it lives as long as gRPC's own object, which connections keep alive.
struct State {
  std::shared_ptr<const PortSecurity> security;
  std::function<void()> on_refused;
  std::mutex mutex;
  std::shared_ptr<const TlsIdentity> handed_out;  // guarded by mutex
};

bool MayCall(const PortSecurity& security, const grpc_metadata* metadata, size_t count) {
  std::string_view authorization;
  int authorizations = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view key = View(metadata[i].key);
    if (key == ":path" && View(metadata[i].value).starts_with(kHealthMethods)) return true;
    if (key != "authorization") continue;
    authorization = View(metadata[i].value);
    ++authorizations;
  }
  return authorizations == 1 && security.AcceptsToken(BearerToken(authorization));
}

void CheckCall(void* data, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
               grpc_process_auth_metadata_done_cb done, void* done_data) {
  const State& state = *static_cast<State*>(data);
  const bool may = !state.security->asks_for_token() || MayCall(*state.security, metadata, count);
  if (!may) state.on_refused();
  done(done_data, nullptr, 0, nullptr, 0, may ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED,
       may ? nullptr : kRefusal);
}

// Asked by gRPC for every new connection. Where it cannot use what it gets, it goes on with what it
// had.
grpc_ssl_certificate_config_reload_status HandOutIdentity(
    void* data, grpc_ssl_server_certificate_config** config) {
  State& state = *static_cast<State*>(data);
  std::shared_ptr<const TlsIdentity> identity = state.security->Identity();
  const std::lock_guard lock(state.mutex);
  if (identity == state.handed_out) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {identity->key_pem().c_str(),
                                           identity->certificate_pem().c_str()};
  // gRPC wants authorities even where it asks no client for a certificate, and then does nothing
  // with them.
  const std::string& client_ca =
      identity->client_ca_pem().empty() ? identity->certificate_pem() : identity->client_ca_pem();
  *config = grpc_ssl_server_certificate_config_create(client_ca.c_str(), &pair, 1);
  if (state.handed_out != nullptr) std::this_thread::sleep_for(kTimeForHandshakes);
  state.handed_out = std::move(identity);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials* MakeCoreCredentials(State& state) {
  if (!state.security->has_tls()) return grpc_insecure_server_credentials_create();
  const auto request = state.security->asks_for_certificate()
                           ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                           : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(request, HandOutIdentity,
                                                                      &state));
}

// gRPC's C++ interface has neither plain text with a check of calls, nor certificates that are
// asked for anew; its C interface has both.
class CheckedCredentials final : public grpc::ServerCredentials {
 public:
  explicit CheckedCredentials(std::unique_ptr<State> state)
      : credentials_(MakeCoreCredentials(*state)) {
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_, {.process = CheckCall,
                       .destroy = [](void* data) { delete static_cast<State*>(data); },
                       .state = state.release()});
  }
  ~CheckedCredentials() override { grpc_server_credentials_release(credentials_); }
  CheckedCredentials(const CheckedCredentials&) = delete;
  CheckedCredentials& operator=(const CheckedCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    spdlog::error("the credentials have a check of calls of their own");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<const PortSecurity> security, std::function<void()> on_refused) {
  if (!security->has_tls() && !security->asks_for_token()) return grpc::InsecureServerCredentials();
  auto state = std::make_unique<State>();
  state->security = std::move(security);
  state->on_refused = std::move(on_refused);
  return std::make_shared<CheckedCredentials>(std::move(state));
}

}  // namespace ziggurat
