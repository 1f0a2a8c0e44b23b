#include "server/daemon.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compression/registry.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"
#include "server/free_addresses.h"
#include "server/security/grpc_credentials.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

constexpr char kServiceName[] = "ziggurat.v1.Ziggurat";
// Once the engine is idle, how long clients may take to stop calling, and to read the ends of their
// streams where the time to drain is over.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);
// For how long nobody must have called before the port is closed. A call that is on its way then
// ends with CANCELLED, which few clients retry; before, it is told UNAVAILABLE. Clients who have
// just been answered are the ones who call again.
constexpr std::chrono::milliseconds kQuietTime(250);

// Both of these are process-wide switches of gRPC.
void EnableStandardServices() {
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const ServeConfig& config) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon(config));
  auto security = PortSecurity::Start(config.security);
  if (!security.ok()) return security.status();
  daemon->security_ = *std::move(security);
  if (!config.security.has_tls() &&
      !(IsLoopback(config.grpc.host) && IsLoopback(config.http.host))) {
    spdlog::warn("plain text on an address that other machines reach, as --allow-plain-text says");
  }
  if (config.page) daemon->page_ = std::make_unique<PageData>(&daemon->metrics_);
  absl::StatusOr<std::unique_ptr<HttpEndpoint>> http =
      HttpEndpoint::Start(config.http, daemon->security_, &daemon->metrics_, daemon->page_.get());
  if (!http.ok()) return http.status();
  daemon->http_ = *std::move(http);
  return daemon;
}

Daemon::~Daemon() {
  if (server_ && !has_drained_) Drain(absl::ZeroDuration());
  if (page_) page_->Detach();
  // The engine ends first: its last outputs let the delivery thread return.
  if (engine_) engine_->Stop();
  delivery_.reset();
}

absl::Status Daemon::Serve(std::unique_ptr<ModelRunner> runner, ServedModel model) {
  size_t kv_cache_bytes = config_.kv_cache_bytes;
  if (config_.kv_cache_share > 0) {
    const absl::StatusOr<size_t> free = runner->FreePoolBytes();
    if (!free.ok()) return free.status();
    kv_cache_bytes = static_cast<size_t>(config_.kv_cache_share * static_cast<double>(*free));
    const ModelShape& shape = runner->shape();
    const std::string text = absl::StrCat(100 * config_.kv_cache_share, "% of ", *free,
                                          " bytes that are free: ", kv_cache_bytes, " bytes");
    if (absl::Status status =
            CheckPoolBytes(text, kv_cache_bytes, shape.num_layers,
                           CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim));
        !status.ok()) {
      return status;
    }
  }
  const EngineOptions options{.kv_cache_bytes = kv_cache_bytes,
                              .max_running = config_.max_running,
                              .max_queue = config_.max_queue,
                              .max_queue_time = config_.max_queue_time,
                              .max_prompt_tokens = config_.max_prompt_tokens,
                              .prefill_tokens = config_.PrefillTokens(!runner->is_asynchronous()),
                              .prefill_slice = config_.prefill_slice,
                              .check_every_step = config_.check_integrity};
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(options, std::move(runner), &metrics_);
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  absl::StatusOr<std::shared_ptr<const Policy>> default_policy = DefaultPolicy();
  if (!default_policy.ok()) return default_policy.status();
  if (config_.metrics_compat == "vllm") metrics_.ExportVllmNames(model.name);
  if (page_) {
    page_->Attach(engine_.get(), {.name = model.name,
                                  .architecture = model.architecture,
                                  .backend = model.backend,
                                  .default_compression = config_.compression});
  }
  delivery_ = std::make_unique<Delivery>(engine_.get(), model.tokenizer.get(), &metrics_);
  service_ = std::make_unique<ZigguratService>(
      engine_.get(), delivery_.get(), &metrics_, std::move(model),
      MakeRules(engine_->model_shape(), *std::move(default_policy)), config_.StreamLimit(),
      config_.max_message_bytes);
  if (absl::Status status = StartGrpc(); !status.ok()) return status;
  http_->SetReadiness(Readiness::kServing);
  return absl::OkStatus();
}

/// It must suit the model, and its plans the rules, so that not every request is refused.
absl::StatusOr<std::shared_ptr<const Policy>> Daemon::DefaultPolicy() const {
  absl::StatusOr<std::shared_ptr<const Policy>> policy =
      ParsePolicy(config_.compression, config_.resources);
  if (!policy.ok()) return policy.status();
  const absl::Status status = engine_->CheckServes(**policy);
  if (status.ok()) return policy;
  return absl::InvalidArgumentError(
      absl::StrCat("--compression '", config_.compression, "': ", status.message()));
}

RequestRules Daemon::MakeRules(const ModelShape& shape,
                               std::shared_ptr<const Policy> default_policy) const {
  RequestRules rules{.vocab_size = shape.vocab_size,
                     .max_context_tokens = shape.max_context_tokens,
                     .max_prompt_tokens = engine_->options().max_prompt_tokens,
                     .default_max_tokens = config_.default_max_tokens,
                     .default_policy = std::move(default_policy),
                     .allowed_policies = config_.allow_compression,
                     .resources = config_.resources};
  if (rules.allowed_policies.empty()) rules.allowed_policies = PolicyNames();
  return rules;
}

absl::Status Daemon::StartGrpc() {
  if (absl::Status status = CheckAddressesAreFree("", config_.grpc); !status.ok()) return status;
  EnableStandardServices();
  grpc::ServerBuilder builder;
  const std::string address = FormatEndpoint(config_.grpc);
  const auto count_refused = [this] { metrics_.CountRefused(Refusal::kUnauthenticated); };
  builder.AddListeningPort(address, MakeServerCredentials(security_, count_refused), &grpc_port_);
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(config_.max_message_bytes);
  // A message would be inflated, to a thousand times its bytes, before anybody looks at its size.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // More than that waits in the client; less is for the service to refuse, with a reason.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2 * config_.StreamLimit());
  // Who connects and then says nothing holds a socket no longer than this.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20'000);
  // A client that vanished without a word is noticed within a minute.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || grpc_port_ == 0) {
    server_.reset();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": gRPC cannot, though the system lets it"));
  }
  server_->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  return absl::OkStatus();
}

void Daemon::Drain(absl::Duration timeout) {
  has_drained_ = true;
  if (timeout <= absl::ZeroDuration()) is_hurried_ = true;
  const absl::Time deadline = absl::Now() + timeout;
  http_->SetReadiness(Readiness::kDraining);
  server_->GetHealthCheckService()->SetServingStatus(false);  // of every service, "" too
  engine_->Drain(deadline);
  // The engine ends what is left at the deadline, or when hurried, so this wait is bounded.
  while (!engine_->WaitIdle(absl::Seconds(1))) {
  }
  WaitForStreams(deadline);
  // Streams of others (health watches, reflection) are cut off.
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  engine_->Stop();
}

void Daemon::HurryDrain() {
  is_hurried_ = true;
  engine_->Drain(absl::Now());
}

void Daemon::WaitForStreams(absl::Time deadline) {
  const OpenCalls& calls = service_->open_calls();
  const absl::Time flushed = absl::Now() + kFlushTimeout;
  // Whoever reads slowly has as long as the requests had that took long.
  const auto may_read = [&] {
    return absl::Now() < (is_hurried_ ? flushed : std::max(flushed, deadline));
  };
  while (calls.accepted() > 0 && may_read()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (const int left = calls.accepted(); left > 0) {
    spdlog::warn(
        "{} not over when the time was, and cut off: clients that read slowly, or long texts",
        left == 1 ? "1 call was" : absl::StrCat(left, " calls were"));
    return;
  }
  const auto are_quiet = [&] {
    return calls.HaveBeenNoneFor(is_hurried_ ? std::chrono::milliseconds(0) : kQuietTime);
  };
  const absl::Time quiet_by = is_hurried_ ? flushed : absl::Now() + kFlushTimeout;
  while (!are_quiet() && absl::Now() < quiet_by) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace ziggurat
