// Two daemons behind clients that retry as docs/operations.md says; one after the other is told to
// end and started again, under load. No request may be lost.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

/// The service configuration that we give to users.
json RetryPolicy() {
  return json::parse(
      ReadFile(std::filesystem::path(ZIGGURAT_SOURCE_DIR) / "deploy/client/retry-policy.json"));
}

/// The same for a client that neither retries nor asks for health: what that costs.
json WithoutRetry() {
  json config = RetryPolicy();
  config["methodConfig"][0].erase("retryPolicy");
  config.erase("healthCheckConfig");
  return config;
}

/// Retries and does not ask for health, so that it meets daemons that are draining.
json WithoutHealth() {
  json config = RetryPolicy();
  config.erase("healthCheckConfig");
  return config;
}

std::shared_ptr<grpc::Channel> ChannelTo(const std::vector<std::string>& addresses,
                                         const json& service_config) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON(service_config.dump());
  // A daemon that comes back is found at once, not after gRPC's usual seconds.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(absl::StrCat("ipv4:", absl::StrJoin(addresses, ",")),
                                   grpc::InsecureChannelCredentials(), arguments);
}

/// Clients that ask again as soon as they have their answer, until they are told to stop.
class Load {
 public:
  Load(const std::vector<std::string>& addresses, const json& service_config, int clients) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, i, channel = ChannelTo(addresses, service_config)] {
        Ask(*v1::Ziggurat::NewStub(channel), i);
      });
    }
  }
  ~Load() { Stop(); }
  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  int answered() const { return answered_; }
  int lost() const { return lost_; }

 private:
  void Ask(v1::Ziggurat::StubInterface& stub, int client) {
    std::mt19937 random(client);
    while (!stopping_) {
      const int tokens = 5 + static_cast<int>(random() % 300);
      const Generation generation =
          Generate(stub, TextRequest(PlainEnglish(random(), 10), tokens, AtEos::kGoOn),
                   {.deadline = absl::Seconds(120)});
      if (generation.ok() && generation.token_ids.size() == static_cast<size_t>(tokens)) {
        ++answered_;
      } else {
        ++lost_;
        if (lost_ <= 3) std::printf("lost: %s\n", generation.Describe().c_str());
        // What fails at once would fail a thousand times in a second.
        absl::SleepFor(absl::Milliseconds(50));
      }
    }
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<int> answered_ = 0;
  std::atomic<int> lost_ = 0;
  std::vector<std::thread> threads_;
};

/// The pair of daemons, and how many requests the ones that have ended had refused and answered.
class Fleet {
 public:
  void Start() {
    for (auto& daemon : daemons_) {
      auto started = Daemon::Start({});
      ASSERT_TRUE(started.ok()) << started.status();
      daemon = *std::move(started);
      addresses_.push_back(daemon->grpc_address());
    }
  }
  /// SIGTERM, and a new one at the same address once it has ended.
  void Restart(int index) {
    std::unique_ptr<Daemon>& daemon = daemons_[index];
    met_ += static_cast<int>(daemon->Metrics()["ziggurat_requests_running"]);
    daemon->process().Signal(SIGTERM);
    double refused = 0;
    const absl::Time start = absl::Now();
    while (daemon->is_running()) {
      // Its HTTP port answers until the end.
      const MetricSamples metrics = daemon->Metrics();
      const auto it = metrics.find("ziggurat_admissions_refused_total{reason=\"draining\"}");
      if (it != metrics.end()) refused = std::max(refused, it->second);
      ASSERT_LT(absl::Now() - start, absl::Seconds(60)) << "it does not end";
      absl::SleepFor(absl::Milliseconds(2));
    }
    EXPECT_EQ(daemon->process().Wait(absl::Seconds(5)), std::optional<int>(0)) << daemon->log();
    EXPECT_THAT(daemon->LoggedErrors(), testing::IsEmpty());
    refused_ += static_cast<int>(refused);
    auto started = Daemon::Start({.listen = addresses_[index]});
    ASSERT_TRUE(started.ok()) << started.status();
    daemon = *std::move(started);
  }
  /// Waits until the daemon has answered somebody.
  void AwaitTraffic(int index) {
    EXPECT_TRUE(PollUntil(
        absl::Seconds(60),
        [&] {
          return daemons_[index]->Metrics()["ziggurat_requests_finished_total{reason=\"length\"}"] >
                 2;
        }))
        << "nobody came back to " << addresses_[index];
  }

  const std::vector<std::string>& addresses() const { return addresses_; }
  int refused() const { return refused_; }
  /// Requests that ran in a daemon when it was told to end.
  int met() const { return met_; }

 private:
  std::unique_ptr<Daemon> daemons_[2];
  std::vector<std::string> addresses_;
  int refused_ = 0;
  int met_ = 0;
};

void RestartAll(Fleet& fleet, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (const int index : {0, 1}) {
      fleet.Restart(index);
      if (testing::Test::HasFatalFailure()) return;
      fleet.AwaitTraffic(index);
    }
  }
}

int Rounds() { return IsSoak() ? 10 : 1; }

TEST(RollingRestart, LosesNoRequestOfClientsThatRetry) {
  Fleet fleet;
  ASSERT_NO_FATAL_FAILURE(fleet.Start());
  Load load(fleet.addresses(), WithoutHealth(), 6);
  Load careless(fleet.addresses(), WithoutRetry(), 6);
  fleet.AwaitTraffic(0);
  fleet.AwaitTraffic(1);
  ASSERT_NO_FATAL_FAILURE(RestartAll(fleet, Rounds()));
  load.Stop();
  careless.Stop();
  std::printf(
      "%d restarts: %d requests answered, %d lost; %d refused by a daemon that was draining; of "
      "clients that do not retry %d answered, %d lost\n",
      2 * Rounds(), load.answered(), load.lost(), fleet.refused(), careless.answered(),
      careless.lost());
  EXPECT_EQ(load.lost(), 0);
  EXPECT_GT(load.answered(), 20);
  // Else nothing was proven: nobody had to retry.
  EXPECT_GT(fleet.refused(), 0);
  EXPECT_GT(careless.lost(), 0);
}

TEST(RollingRestart, LosesNoRequestOfClientsThatAskForHealthToo) {
  Fleet fleet;
  ASSERT_NO_FATAL_FAILURE(fleet.Start());
  Load load(fleet.addresses(), RetryPolicy(), 8);
  fleet.AwaitTraffic(0);
  fleet.AwaitTraffic(1);
  ASSERT_NO_FATAL_FAILURE(RestartAll(fleet, Rounds()));
  load.Stop();
  std::printf(
      "%d restarts: %d requests answered, %d lost; %d ran in a daemon when it was told to end, %d "
      "refused while draining\n",
      2 * Rounds(), load.answered(), load.lost(), fleet.met(), fleet.refused());
  EXPECT_EQ(load.lost(), 0);
  EXPECT_GT(load.answered(), 20);
  // Else nothing was proven: no request met a restart.
  EXPECT_GT(fleet.met(), 0);
}

// What the retry covers and what not, once a daemon's time is up: a call that waits in its queue is
// made again elsewhere; an answer that has begun ends with it.
TEST(RollingRestart, AnAnswerThatHasBegunIsNotRetriedAndOneThatWaitsIs) {
  START_DAEMON(other, {});
  START_DAEMON(hurried, {.flags = {"--drain-timeout", "0.2", "--max-running", "1"}});
  const auto channel = ChannelTo({hurried.grpc_address(), other.grpc_address()}, RetryPolicy());
  // A channel that has reached only one of them yet would send everything there.
  for (Daemon* daemon : {&hurried, &other}) {
    ASSERT_TRUE(PollUntil(
        absl::Seconds(60),
        [&] {
          EXPECT_TRUE(Generate(*v1::Ziggurat::NewStub(channel),
                               TextRequest(" The old house", 1, AtEos::kGoOn))
                          .ok());
          return daemon->Metrics()["ziggurat_requests_finished_total{reason=\"length\"}"] > 0;
        }))
        << "nothing came to " << daemon->grpc_address();
  }
  std::vector<Generation> generations(8);
  std::vector<std::thread> clients;
  for (Generation& generation : generations) {
    clients.emplace_back([&] {
      generation = Generate(*v1::Ziggurat::NewStub(channel),
                            TextRequest(" The old house stood near the", 2000, AtEos::kGoOn));
    });
  }
  uint32_t waiting = 0;
  EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
    waiting = hurried.GetCache().waiting();
    return waiting >= 2 && hurried.Metrics()["ziggurat_generated_tokens_total"] > 5;
  }));
  EXPECT_EQ(hurried.Stop(), std::optional<int>(0));
  for (std::thread& client : clients) client.join();
  int cut_off = 0;
  for (const Generation& generation : generations) {
    if (generation.ok()) continue;
    ++cut_off;
    EXPECT_EQ(generation.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_GT(generation.token_ids.size(), 0u) << generation.Describe();
  }
  // The one that ran; those behind it may have had their turn in what time was left.
  EXPECT_GE(cut_off, 1);
  EXPECT_LE(cut_off, 2);
  std::printf("%u waited when the daemon was told to end; %d of %zu answers were cut off\n",
              waiting, cut_off, generations.size());
}

}  // namespace
}  // namespace ziggurat::e2e
