// Start, drain and end of the daemon, and of the clients that it serves.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/testing.h"
#include "tests/support/raw_calls.h"

namespace ziggurat::e2e {
namespace {

constexpr char kService[] = "ziggurat.v1.Ziggurat";

/// A Generate call on a thread of its own, which can be watched and given up.
class BackgroundCall {
 public:
  BackgroundCall(std::shared_ptr<grpc::Channel> channel, v1::GenerateRequest request,
                 std::optional<absl::Duration> deadline = std::nullopt)
      : stub_(v1::Ziggurat::NewStub(channel)) {
    thread_ = std::thread([this, request = std::move(request), deadline] {
      generation_ = Generate(*stub_, request,
                             {.deadline = deadline, .on_message = [this](const Generation& so_far) {
                                tokens_ = static_cast<int>(so_far.token_ids.size());
                                return !is_cancelled_;
                              }});
    });
  }
  ~BackgroundCall() {
    is_cancelled_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int tokens() const { return tokens_; }
  void Cancel() { is_cancelled_ = true; }
  /// Waits for the end.
  const Generation& Get() {
    if (thread_.joinable()) thread_.join();
    return generation_;
  }

 private:
  std::unique_ptr<v1::Ziggurat::Stub> stub_;
  std::atomic<int> tokens_ = 0;
  std::atomic<bool> is_cancelled_ = false;
  Generation generation_;
  std::thread thread_;
};

/// Waits until the call has had its first tokens.
#define ASSERT_UNDER_WAY(call) \
  ASSERT_TRUE(PollUntil(absl::Seconds(30), [&] { return (call).tokens() > 0; }))

v1::GenerateRequest LongRequest(int max_tokens, const std::string& id = "") {
  v1::GenerateRequest request =
      TextRequest(" The old house stood near the", max_tokens, AtEos::kGoOn);
  request.set_request_id(id);
  return request;
}

/// Blocks are free again so soon after a client has gone. A step takes milliseconds; the rest is
/// for a busy machine.
constexpr absl::Duration kSoon = absl::Seconds(2);

/// Whether it comes to say that it takes no more.
bool WaitUntilDraining(const Daemon& daemon) {
  return PollUntil(absl::Seconds(5),
                   [&] { return CheckHealth(daemon.channel(), "") == "NOT_SERVING"; });
}

TEST(Lifecycle, SigtermFinishesWhatRunsAndRefusesTheRest) {
  START_DAEMON(daemon, {});
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
  EXPECT_EQ(daemon.HttpGet("/readyz").first, 200);
  constexpr int kTokens = 2000;
  BackgroundCall first(daemon.NewChannel(), LongRequest(kTokens));
  BackgroundCall second(daemon.NewChannel(), LongRequest(kTokens));
  ASSERT_UNDER_WAY(first);
  ASSERT_UNDER_WAY(second);

  daemon.process().Signal(SIGTERM);
  EXPECT_TRUE(WaitUntilDraining(daemon));
  EXPECT_EQ(CheckHealth(daemon.channel(), kService), "NOT_SERVING");
  EXPECT_EQ(daemon.HttpGet("/readyz").first, 503);
  EXPECT_EQ(daemon.HttpGet("/healthz").first, 200);
  const Generation refused = Generate(daemon, LongRequest(1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.Describe();
  EXPECT_LT(first.tokens(), kTokens) << "it had ended before; nothing was proven";

  EXPECT_TRUE(first.Get().ok()) << first.Get().Describe();
  EXPECT_TRUE(second.Get().ok()) << second.Get().Describe();
  EXPECT_EQ(first.Get().token_ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(first.Get().result->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(daemon.process().Wait(absl::Seconds(20)), std::optional<int>(0)) << daemon.log();
  EXPECT_THAT(daemon.LoggedErrors(), testing::IsEmpty());
}

// Its shell and the kernel both say so.
TEST(Lifecycle, ATerminalThatIsClosedDrainsToo) {
  std::signal(SIGHUP, SIG_DFL);  // as the daemon inherits it
  START_DAEMON(daemon, {});
  BackgroundCall call(daemon.NewChannel(), LongRequest(500));
  ASSERT_UNDER_WAY(call);
  daemon.process().Signal(SIGHUP);
  ASSERT_TRUE(WaitUntilDraining(daemon));
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(call.Get().ok()) << call.Get().Describe();
  EXPECT_EQ(call.Get().token_ids.size(), 500u);
  EXPECT_EQ(daemon.process().Wait(absl::Seconds(20)), std::optional<int>(0)) << daemon.log();
}

TEST(Lifecycle, UnderNohupATerminalThatIsClosedChangesNothing) {
  std::signal(SIGHUP, SIG_IGN);
  START_DAEMON(daemon, {});
  std::signal(SIGHUP, SIG_DFL);
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(Generate(daemon, LongRequest(50)).ok());
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
}

TEST(Lifecycle, TheDrainTimeoutEndsWhatStillRuns) {
  START_DAEMON(daemon, {.flags = {"--drain-timeout", "0.3"}});
  BackgroundCall call(daemon.NewChannel(), LongRequest(4000));
  ASSERT_UNDER_WAY(call);
  const absl::Time start = absl::Now();
  EXPECT_EQ(daemon.Stop(absl::Seconds(20)), std::optional<int>(0)) << daemon.log();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(call.Get().status.error_code(), grpc::StatusCode::UNAVAILABLE) << call.Get().Describe();
  EXPECT_GT(call.Get().token_ids.size(), 0u);
}

TEST(Lifecycle, ASecondSignalEndsWhatStillRuns) {
  START_DAEMON(daemon, {});
  BackgroundCall call(daemon.NewChannel(), LongRequest(4000));
  ASSERT_UNDER_WAY(call);
  daemon.process().Signal(SIGINT);
  ASSERT_TRUE(WaitUntilDraining(daemon));
  const absl::Time start = absl::Now();
  EXPECT_EQ(daemon.Stop(absl::Seconds(20)), std::optional<int>(0)) << daemon.log();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_EQ(call.Get().status.error_code(), grpc::StatusCode::UNAVAILABLE) << call.Get().Describe();
}

TEST(Lifecycle, AnIdleDaemonEndsAtOnce) {
  for (const int signal : {SIGTERM, SIGINT}) {
    START_DAEMON(daemon, {});
    const absl::Time start = absl::Now();
    daemon.process().Signal(signal);
    EXPECT_EQ(daemon.process().Wait(absl::Seconds(10)), std::optional<int>(0));
    EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  }
}

TEST(Lifecycle, WhoseReadyLineIsLostServesAndEndsAsUsual) {
  auto daemon = ChildProcess::Start(
      {"/bin/sh", "-c",
       R"(exec "$0" serve --model "$1" --listen 127.0.0.1:0 --http 127.0.0.1:0 > /dev/full)",
       Binary(), NeedleLlama()});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return absl::StrContains((*daemon)->stderr_text(), "could not be written to stdout");
  }));
  (*daemon)->Signal(SIGTERM);
  EXPECT_EQ((*daemon)->Wait(absl::Seconds(30)), 0) << (*daemon)->stderr_text();
}

// The signal may come while the model is loaded, while it is said what is wrong with it, or late.
TEST(Lifecycle, ASignalIsNoExcuseForAModelThatCannotBeLoaded) {
  const TemporaryFolder folder;
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(NeedleLlama(), model, std::filesystem::copy_options::recursive);
  std::filesystem::permissions(model / "tokenizer.json", std::filesystem::perms::owner_all);
  WriteFile(model / "tokenizer.json", "{}");
  for (int delay = 0; delay < 300; delay += 15) {
    auto daemon = ChildProcess::Start(
        {Binary(), "serve", "--model", model, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    absl::SleepFor(absl::Milliseconds(delay));
    (*daemon)->Signal(SIGTERM);
    const std::optional<int> exit_code = (*daemon)->Wait(absl::Seconds(30));
    const bool said = absl::StrContains((*daemon)->stderr_text(), "ziggurat serve: ");
    EXPECT_TRUE(said ? exit_code == 1 : exit_code == 0 || exit_code == 128 + SIGTERM)
        << delay << " ms: " << exit_code.value_or(-1) << "; " << (*daemon)->stderr_text();
  }
}

TEST(Lifecycle, MayOpenAsManyFilesAsTheSystemAllows) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit few = {std::min<rlim_t>(512, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  START_DAEMON(daemon, {});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit limit = {};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(Lifecycle, ShortPromptsHaveAWorkspaceOfTheirOwnUnlessToldOtherwise) {
  START_DAEMON(daemon, {});
  START_DAEMON(without, {.flags = {"--short-prefill-tokens", "0"}});
  EXPECT_GT(daemon.GetCache().workspace_capacity_bytes(),
            without.GetCache().workspace_capacity_bytes());
}

TEST(Lifecycle, MoreThreadsThanCpusAreWarnedOf) {
  START_DAEMON(daemon,
               {.flags = {"--threads", absl::StrCat(std::thread::hardware_concurrency() + 1)}});
  EXPECT_THAT(daemon.log(), testing::HasSubstr("they will wait for each other"));
  START_DAEMON(other, {});
  EXPECT_THAT(other.log(), testing::Not(testing::HasSubstr("wait for each other")));
}

// gRPC never takes another connection then.
TEST(Lifecycle, ADaemonThatCanTakeNoMoreConnectionsEnds) {
  START_DAEMON(daemon, {});
  BackgroundCall call(daemon.NewChannel(), LongRequest(400));
  ASSERT_UNDER_WAY(call);
  const struct rlimit limit = {64, 64};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<int> sockets;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(daemon.grpc_port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 100; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
    connect(sockets.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  EXPECT_EQ(daemon.process().Wait(absl::Seconds(60)), std::optional<int>(1)) << daemon.log();
  for (const int opened : sockets) close(opened);
  EXPECT_THAT(daemon.log(), testing::HasSubstr("ulimit -n"));
  EXPECT_TRUE(call.Get().status.ok()) << "what runs is finished: " << call.Get().Describe();
}

/// How long blocks stayed in use after `leave`.
template <typename Leave>
absl::Duration TimeUntilFree(Daemon& daemon, Leave leave) {
  const absl::Time start = absl::Now();
  leave();
  PollUntil(absl::Seconds(20), [&] {
    const v1::GetCacheResponse cache = daemon.GetCache();
    return cache.used_blocks() == 0 && cache.running() == 0;
  });
  return absl::Now() - start;
}

TEST(Lifecycle, ACancelledCallFreesItsBlocks) {
  START_DAEMON(daemon, {});
  BackgroundCall call(daemon.NewChannel(), LongRequest(4000));
  ASSERT_UNDER_WAY(call);
  EXPECT_TRUE(PollUntil(absl::Seconds(30), [&] { return daemon.GetCache().used_blocks() > 0; }));
  EXPECT_LT(TimeUntilFree(daemon, [&] { call.Cancel(); }), kSoon);
  EXPECT_EQ(call.Get().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Metrics()["ziggurat_requests_finished_total{reason=\"cancelled\"}"], 1);
}

TEST(Lifecycle, AClientThatIsKilledFreesItsBlocks) {
  START_DAEMON(daemon, {});
  auto client = ChildProcess::Start({Binary(), "generate", "--server", daemon.grpc_address(),
                                     "--max-tokens", "4000", "--ignore-eos", " The old house"});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  ASSERT_TRUE(PollUntil(absl::Seconds(30), [&] { return !(*client)->stdout_text().empty(); }))
      << (*client)->stderr_text();
  EXPECT_TRUE(PollUntil(absl::Seconds(30), [&] { return daemon.GetCache().running() == 1; }));
  EXPECT_LT(TimeUntilFree(daemon, [&] { (*client)->Signal(SIGKILL); }), kSoon);
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Metrics()["ziggurat_requests_finished_total{reason=\"cancelled\"}"], 1);
}

/// Cancels calls as soon as all are there and the first is seen in prefill, with blocks.
///   was_in_time  whether the device had not got through a single prompt by then
void CancelDuringPrefill(const Daemon::Options& options, bool* was_in_time) {
  START_DAEMON(daemon, options);
  std::mt19937 random(1);
  constexpr int kCalls = 6;  // batches of two, and the pool holds four
  std::vector<std::shared_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> clients;
  std::vector<Generation> generations(kCalls);
  std::atomic<int> ended = 0;
  for (int i = 0; i < kCalls; ++i) {
    std::vector<int32_t> prompt(4000);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 256);
    contexts.push_back(std::make_shared<grpc::ClientContext>());
    clients.emplace_back(
        [&, i, context = contexts.back(), request = IdRequest(prompt, 10, AtEos::kGoOn)] {
          generations[i] = Generate(daemon, request, {.context = context});
          ++ended;
        });
  }
  bool was_seen = false;
  const bool saw_them = PollUntil(absl::Minutes(2), [&] {
    const v1::GetCacheResponse cache = daemon.GetCache();
    was_seen = cache.requests_size() == kCalls && cache.requests(0).state() == "prefilling" &&
               cache.requests(0).blocks() > 0;
    return was_seen || ended == kCalls;
  });
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  EXPECT_EMPTY_CACHE(daemon);
  MetricSamples metrics = daemon.Metrics();
  ASSERT_TRUE(saw_them) << "the calls neither waited together nor ended";
  *was_in_time = was_seen && metrics["ziggurat_generated_tokens_total"] == 0;
  if (!*was_in_time) return;
  EXPECT_EQ(metrics["ziggurat_requests_finished_total{reason=\"cancelled\"}"], kCalls);
  for (const Generation& generation : generations) {
    EXPECT_EQ(generation.status.error_code(), grpc::StatusCode::CANCELLED) << generation.Describe();
  }
}

TEST(Lifecycle, CancelledCallsFreeTheirBlocksDuringPrefill) {
  bool was_in_time = false;
  CancelDuringPrefill({}, &was_in_time);
  // A GPU is through with that model before anybody can cancel: deeper ones give time.
  for (int layers = 64; layers <= 512 && !was_in_time && !HasFatalFailure(); layers *= 2) {
    TemporaryFolder folder;
    const CommandResult made =
        RunZiggurat({"make-model", "--out", folder / "model", "--layers", absl::StrCat(layers),
                     "--heads", "16", "--kv-heads", "1", "--head-dim", "32", "--context", "4096"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    CancelDuringPrefill(
        {.model = folder / "model", .kv_cache_memory = absl::StrCat(4 * layers, "MiB")},
        &was_in_time);
  }
  EXPECT_TRUE(was_in_time) << "no prompt was still under way when its call was cancelled";
}

TEST(Lifecycle, ADeadlineFreesItsBlocks) {
  START_DAEMON(daemon, {});
  BackgroundCall call(daemon.NewChannel(), LongRequest(4000), absl::Seconds(1));
  ASSERT_UNDER_WAY(call);
  EXPECT_EQ(call.Get().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << call.Get().Describe();
  EXPECT_GT(call.Get().token_ids.size(), 0u);
  EXPECT_LT(TimeUntilFree(daemon, [] {}), kSoon);
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Metrics()["ziggurat_requests_finished_total{reason=\"deadline\"}"], 1);
}

TEST(Lifecycle, ACallThatWaitsCanBeCancelledAndRunOutOfTime) {
  START_DAEMON(daemon, {.flags = {"--max-running", "1"}});
  BackgroundCall running(daemon.NewChannel(), LongRequest(4000));
  ASSERT_UNDER_WAY(running);
  BackgroundCall late(daemon.NewChannel(), LongRequest(10), absl::Milliseconds(300));
  EXPECT_EQ(late.Get().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(late.Get().token_ids.empty());
  EXPECT_TRUE(PollUntil(absl::Seconds(30), [&] {
    const v1::GetCacheResponse cache = daemon.GetCache();
    return cache.running() == 1 && cache.waiting() == 0;
  }));
}

TEST(Lifecycle, StandardServicesAnswer) {
  START_DAEMON(daemon, {});
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
  EXPECT_EQ(CheckHealth(daemon.channel(), kService), "SERVING");
  EXPECT_EQ(CheckHealth(daemon.channel(), "no.such.Service"), "NOT_FOUND");
  const std::string services = ListServices(daemon.channel());
  EXPECT_THAT(services, testing::HasSubstr(kService));
  EXPECT_THAT(services, testing::HasSubstr("grpc.health.v1.Health"));
  EXPECT_EQ(daemon.HttpGet("/healthz"), std::make_pair(200, std::string("ok\n")));
  EXPECT_EQ(daemon.HttpGet("/readyz"), std::make_pair(200, std::string("ok\n")));
  EXPECT_EQ(daemon.HttpGet("/metrics").first, 200);
}

TEST(Lifecycle, GetModelSaysWhatIsServed) {
  START_DAEMON(daemon, {.flags = {"--compression", "snapkv(budget=256)"}});
  const v1::GetModelResponse model = daemon.GetModel();
  EXPECT_EQ(model.name(), "needle-llama");
  EXPECT_EQ(model.architecture(), "LlamaForCausalLM");
  EXPECT_EQ(model.num_layers(), 8u);
  EXPECT_EQ(model.num_kv_heads(), 2u);
  EXPECT_EQ(model.vocab_size(), 1024u);
  EXPECT_EQ(model.max_context_tokens(), 4096u);
  EXPECT_EQ(model.dtype(), "f32");
  EXPECT_THAT(model.default_compression(), testing::StartsWith("snapkv(budget=256,"));
  std::vector<std::string> policies;
  for (const v1::PolicyInfo& policy : model.policies()) policies.push_back(policy.name());
  EXPECT_THAT(policies, testing::IsSupersetOf({"full", "pyramidkv", "snapkv", "streaming"}));
}

TEST(Lifecycle, LogLinesCarryTheRequestId) {
  START_DAEMON(daemon, {});
  ASSERT_TRUE(Generate(daemon, LongRequest(3, "ask-4711")).ok());
  v1::GenerateRequest wrong = LongRequest(3, "ask-4712");
  wrong.mutable_sampling()->set_temperature(-1);
  EXPECT_FALSE(Generate(daemon, wrong).ok());
  EXPECT_TRUE(PollUntil(absl::Seconds(5), [&] {
    const std::string log = daemon.log();
    return log.find("ask-4711") != std::string::npos && log.find("ask-4712") != std::string::npos;
  })) << daemon.log();
}

/// The variables that a process was started with.
std::vector<std::string> EnvironmentOf(pid_t pid) {
  return absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/environ")), '\0');
}

// A daemon that shares its cores must not burn them waiting.
TEST(Lifecycle, ThreadsWaitAwakeForAShortTimeUnlessToldOtherwise) {
  {
    START_DAEMON(daemon, {});
    EXPECT_THAT(EnvironmentOf(daemon.pid()),
                testing::Contains(testing::MatchesRegex("GOMP_SPINCOUNT=[0-9]{3,5}")));
    // It starts itself anew for that, under the name by which people look for it.
    EXPECT_EQ(ReadFile(absl::StrCat("/proc/", daemon.pid(), "/comm")),
              Binary().filename().string().substr(0, 15) + "\n");
  }
  setenv("OMP_WAIT_POLICY", "passive", 1);
  START_DAEMON(told, {});
  unsetenv("OMP_WAIT_POLICY");
  EXPECT_THAT(EnvironmentOf(told.pid()),
              testing::Not(testing::Contains(testing::StartsWith("GOMP_SPINCOUNT="))));
  EXPECT_TRUE(Generate(told, LongRequest(3)).ok());
}

TEST(Lifecycle, ABindingOfThreadsByOpenMpChangesNotHowManyThereAre) {
  const auto threads = [](const Daemon& daemon) {
    const std::string log = daemon.log();
    const size_t end = log.find(" threads, ");
    return log.substr(log.rfind(' ', end - 1), end - log.rfind(' ', end - 1));
  };
  START_DAEMON(daemon, {});
  setenv("OMP_PROC_BIND", "true", 1);
  START_DAEMON(bound, {});
  unsetenv("OMP_PROC_BIND");
  EXPECT_EQ(threads(bound), threads(daemon)) << bound.log();
}

TEST(Lifecycle, StopStringsAndSeedsHold) {
  START_DAEMON(daemon, {});
  v1::GenerateRequest request = TextRequest(" The old house stood near the", 60, AtEos::kGoOn);
  const Generation whole = Generate(daemon, request);
  ASSERT_TRUE(whole.ok());
  // Two words out of the middle of the text: they span several tokens.
  const std::string stop = whole.text.substr(whole.text.size() / 2, 9);
  request.add_stop(stop);
  const Generation stopped = Generate(daemon, request);
  ASSERT_TRUE(stopped.ok()) << stopped.Describe();
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(stopped.result->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.result->stop_string(), stop);

  v1::GenerateRequest drawn = TextRequest(" The old house stood near the", 40, AtEos::kGoOn);
  drawn.mutable_sampling()->set_temperature(1.5f);
  drawn.mutable_sampling()->set_seed(42);
  const Generation once = Generate(daemon, drawn);
  const Generation again = Generate(daemon, drawn);
  drawn.mutable_sampling()->set_seed(43);
  const Generation other = Generate(daemon, drawn);
  ASSERT_TRUE(once.ok() && again.ok() && other.ok());
  EXPECT_EQ(once.text, again.text);
  EXPECT_NE(once.text, other.text);
}

}  // namespace
}  // namespace ziggurat::e2e
