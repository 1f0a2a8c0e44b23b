// `ziggurat bench serve`: load against a running daemon, as its clients see it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/cli/bench/load/load_report.h"
#include "server/cli/bench/load/load_runner.h"
#include "server/cli/bench/serve_flags.h"
#include "server/cli/bench/subcommands.h"
#include "server/cli/call_status.h"
#include "server/cli/client.h"
#include "server/cli/command_line.h"
#include "server/cli/failure.h"
#include "server/cli/on_signal.h"
#include "server/cli/policy_check.h"
#include "server/cli/progress.h"
#include "server/cli/terminal.h"
#include "server/printable.h"
#include "server/signals.h"

namespace ziggurat {
namespace {

using namespace ziggurat::bench;  // NOLINT(google-build-using-namespace): this is its command

constexpr size_t kDefaultRequests = 100;
constexpr int kWarmupClients = 4;
constexpr char kNothingMeasured[] = "stopped; nothing was measured yet";
constexpr std::chrono::milliseconds kSamplePeriod{250};

int Fail(const auto& what, int exit_code = kExitFailure) {
  return SayFailure("bench serve", what, exit_code);
}

absl::StatusOr<WorkloadOptions> MakeWorkload(const ServeFlags& flags) {
  WorkloadOptions options{.rate = flags.rate.value_or(0),
                          .seed = flags.seed,
                          .time_scale = flags.time_scale.value_or(1),
                          .length_scale = flags.length_scale.value_or(1),
                          .requests = flags.requests,
                          .limits = {}};
  if (!flags.trace.empty()) {
    absl::StatusOr<std::vector<TraceEntry>> trace = ReadTrace(flags.trace);
    if (!trace.ok()) return trace.status();
    const double last = options.time_scale * trace->back().arrival_seconds;
    if (last > kLongestTraceSeconds) {
      return absl::InvalidArgumentError(
          absl::StrCat("--time-scale: the last request of ", flags.trace, " would arrive after ",
                       last, " seconds, at most ", kLongestTraceSeconds, " are allowed"));
    }
    options.trace = *std::move(trace);
    return options;
  }
  for (const auto& [text, side, target] :
       {std::tuple{flags.input_tokens.value_or(kDefaultInput), LengthSide::kInput, &options.input},
        std::tuple{flags.output_tokens.value_or(kDefaultOutput), LengthSide::kOutput,
                   &options.output}}) {
    const absl::StatusOr<LengthDistribution> lengths = LengthDistribution::Parse(text, side);
    if (!lengths.ok()) return lengths.status();
    *target = *lengths;
  }
  if (!flags.requests && !flags.duration) options.requests = kDefaultRequests;
  return options;
}

LoadSetting MakeSetting(const ServeFlags& flags, std::string command) {
  LoadSetting setting{.command = std::move(command),
                      .server = flags.server.address,
                      .time = absl::Now(),
                      .model = {},
                      .kind = flags.clients ? "closed"
                              : flags.rate  ? "poisson"
                                            : "trace",
                      .clients = flags.clients.value_or(0),
                      .rate = flags.rate.value_or(0),
                      .trace = flags.trace,
                      .time_scale = flags.time_scale.value_or(1),
                      .length_scale = flags.length_scale.value_or(1),
                      .input_tokens = flags.input_tokens.value_or(kDefaultInput),
                      .output_tokens = flags.output_tokens.value_or(kDefaultOutput),
                      .seed = flags.seed,
                      .warmup = flags.warmup,
                      .goals = flags.goals};
  return setting;
}

// Until the run is over, by the count of requests or by the time, whichever is further; in both
// cases those under way are still to be done.
RunProgress Progress(const LoadProgress& load, std::optional<size_t> total,
                     std::optional<double> duration, double elapsed, bool is_over) {
  constexpr double kWhole = 1e6;
  const auto ended = static_cast<double>(load.ended);
  double share = is_over ? 1 : 0;
  if (total) share = ended / static_cast<double>(*total);
  if (duration && load.sent > 0) {
    const double ended_of_sent = ended / static_cast<double>(load.sent);
    share = std::max(share, std::min(1.0, elapsed / *duration) * ended_of_sent);
  }
  // How many there will be in a time is not known.
  return {.done = static_cast<size_t>(load.ended),
          .total = duration ? 0 : total.value_or(0),
          .failed = static_cast<size_t>(load.ended - load.done),
          .failed_word = "not answered",
          .done_weight = static_cast<size_t>(kWhole * share),
          .total_weight = static_cast<size_t>(kWhole)};
}

// Shows how far it is until the run is over, which a signal hastens.
absl::Status Watch(LoadRunner& runner, std::optional<size_t> total, std::optional<double> duration,
                   TerminationSignals& signals) {
  ProgressLine line(stderr, isatty(STDERR_FILENO) == 1, TerminalColumns(STDERR_FILENO));
  const auto progress = [&](bool is_over) {
    const double elapsed =
        std::chrono::duration<double>(LoadRunner::Clock::now() - runner.start()).count();
    return Progress(runner.progress(), total, duration, elapsed, is_over);
  };
  while (!runner.finished()) {
    if (signals.Wait(absl::Milliseconds(100)) != 0) runner.Stop();
    line.Update(progress(false));
  }
  absl::Status ended = runner.Wait();
  line.Finish(progress(ended.ok()));
  return ended;
}

absl::Status WarmUp(v1::Ziggurat::StubInterface& stub, const ServeFlags& flags,
                    WorkloadOptions workload, const PromptMaker& prompts,
                    TerminationSignals& signals) {
  workload.requests = static_cast<size_t>(flags.warmup);
  const LoadOptions options{
      .clients = std::min(flags.warmup, flags.clients.value_or(kWarmupClients)),
      .duration_seconds = {},
      .timeout_seconds = flags.timeout,
      .compression = flags.compression};
  LoadRunner runner(stub, Workload(std::move(workload)), prompts, options);
  while (!runner.finished()) {
    if (signals.Wait(absl::Milliseconds(20)) != 0) runner.Stop();
  }
  return runner.Wait();
}

std::string WhyItEnded(const absl::Status& status, const ServerFlags& server) {
  if (absl::IsCancelled(status)) return "stopped; the figures are those of what was done";
  return absl::StrCat(
      "the run ended early: ",
      DescribeError({grpc::StatusCode::UNAVAILABLE, std::string(status.message())}, server));
}

int Serve(const ServeFlags& flags, std::string command) {
  if (const std::string wrong = WrongFlags(flags); !wrong.empty()) return Fail(wrong, kExitUsage);
  absl::StatusOr<WorkloadOptions> workload = MakeWorkload(flags);
  if (!workload.ok()) {
    return Fail(workload.status(), ExitCodeOf(workload.status()));
  }
  if (!flags.out.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags.out, error);
    if (error) return Fail(absl::StrCat(flags.out, ": ", error.message()));
    if (absl::Status status = CheckLoadReport(flags.out); !status.ok()) {
      return Fail(status, ExitCodeOf(status));
    }
  }

  LoadResult result{
      .setting = MakeSetting(flags, std::move(command)), .summary = {}, .records = {}, .cache = {}};
  v1::GetModelResponse& model = result.setting.model;
  const absl::StatusOr<ServerAccess> access = ReadServerAccess(flags.server);
  if (!access.ok()) return Fail(access.status());
  TerminationSignals signals;  // before gRPC starts threads
  const std::unique_ptr<v1::Ziggurat::Stub> connected = Connect(flags.server, *access);
  v1::Ziggurat::Stub& stub = *connected;
  std::optional<OnSignal> preparing(std::in_place, signals,
                                    [] { std::_Exit(Fail(kNothingMeasured)); });
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(30));
  grpc::Status status = stub.GetModel(&context, {}, &model);
  std::string canonical;
  if (status.ok()) status = CheckPolicy(stub, flags.compression, {}, canonical);
  if (!status.ok()) {
    return Fail(DescribeError(status, flags.server), ExitCodeOf(status));
  }
  preparing.reset();
  workload->limits = {.context_tokens = model.max_context_tokens(),
                      .prompt_tokens = model.max_prompt_tokens()};
  const PromptMaker prompts(
      model.vocab_size(), {model.eos_token_ids().begin(), model.eos_token_ids().end()}, flags.seed);
  if (flags.warmup > 0) {
    const PromptMaker other_prompts(model.vocab_size(),
                                    {model.eos_token_ids().begin(), model.eos_token_ids().end()},
                                    flags.seed + 1);
    const absl::Status warm = WarmUp(stub, flags, *workload, other_prompts, signals);
    if (absl::IsCancelled(warm)) return Fail(kNothingMeasured);
    if (!warm.ok()) return Fail(WhyItEnded(warm, flags.server));
  }

  Workload requests(*std::move(workload));
  const std::optional<size_t> total = requests.size();
  std::fprintf(stderr, "%s (%s): %s\n", Printable(model.name()).c_str(),
               Printable(model.dtype()).c_str(), Printable(DescribeLoad(result.setting)).c_str());
  LoadRunner runner(stub, std::move(requests), prompts,
                    {.clients = flags.clients.value_or(0),
                     .duration_seconds = flags.duration,
                     .timeout_seconds = flags.timeout,
                     .compression = flags.compression});
  CacheSampler sampler(stub, runner.start(), kSamplePeriod);
  const absl::Status ended = Watch(runner, total, flags.duration, signals);
  result.cache = sampler.Stop();
  result.records = runner.TakeRecords();
  result.setting.broken_off = !ended.ok();
  result.summary = Summarize(result.records, result.cache, flags.goals);
  const std::string& policy =
      flags.compression.empty() ? model.default_compression() : flags.compression;
  if (std::string any = TextOfAnyPrompt(policy); !any.empty()) {
    result.summary.compression = std::move(any);
  } else if (result.summary.compression.empty()) {
    result.summary.compression = policy;  // nothing was done, so no answer said it
  }

  std::printf("%s", LoadText(result).c_str());
  if (!flags.out.empty()) {
    if (absl::Status written = WriteLoadReport(flags.out, result); !written.ok()) {
      return Fail(written);
    }
    std::printf("\nreport: %s/result.json\n", flags.out.c_str());
  }
  if (!ended.ok()) return Fail(WhyItEnded(ended, flags.server));
  return result.summary.done > 0 ? kExitOk : Fail("no request was done");
}

}  // namespace

Command AddBenchServe(CLI::App& bench) {
  CLI::App* serve = bench.add_subcommand(
      "serve", "Put a running daemon under load: throughput, latency, goodput, cache");
  auto flags = std::make_shared<ServeFlags>();
  AddServeFlags(*serve, *flags);
  return {serve, [flags, serve] { return Serve(*flags, CommandLineOf(*serve)); }};
}

}  // namespace ziggurat
