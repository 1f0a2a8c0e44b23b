// `ziggurat bench scheduler`: what a step costs outside the model.
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compression/registry.h"
#include "scheduler/null_model.h"
#include "scheduler/sequence.h"
#include "server/cli/bench/engine_bench.h"
#include "server/cli/bench/subcommands.h"
#include "server/log.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat bench scheduler
  ziggurat bench scheduler --sequences 256 --layers 32 --compression full --compression kivi

The real scheduler and block manager plan decode steps of a model that computes nothing. "schedule"
is one step's time in them: the place of every new token in every layer of every sequence, blocks
taken from the pool, what is passed on to clients. Sampling is not in it.)";

/// Small heads: blocks are counted, never touched, so only their number matters.
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 32;
constexpr int kVocabulary = 16;
constexpr int kContext = 256;

struct SchedulerFlags {
  std::vector<int> sequences = {1, 64, 256, 1024};
  std::vector<int> layers = {16, 32, 80};
  std::vector<std::string> policies;
  int steps = 500;
};

ModelShape ShapeOf(int layers, int context) {
  ModelShape shape;
  shape.num_layers = layers;
  shape.num_q_heads = shape.num_kv_heads = kKvHeads;
  shape.head_dim = kHeadDim;
  shape.hidden_size = kKvHeads * kHeadDim;
  shape.vocab_size = kVocabulary;
  shape.max_context_tokens = context;
  shape.architecture = "none";
  return shape;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "ziggurat bench scheduler: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
}

absl::Status PrintRow(const std::string& text, std::shared_ptr<const Policy> policy, int sequences,
                      int layers, int steps) {
  // The first prompt is prefilled alone, while the others are still on their way; it decodes on.
  const int context = kContext + steps + 5 * (layers + 1);
  const ModelShape shape = ShapeOf(layers, context);
  if (absl::Status status = policy->Check(PolicyContextOf(shape)); !status.ok()) return status;
  const size_t token_bytes = size_t{4} * kKvHeads * kHeadDim;
  auto model = std::make_unique<NullModel>(shape, sequences);
  NullModel* const null_model = model.get();
  auto bench = bench::EngineBench::CreateWith(
      std::move(model),
      {.kv_cache_bytes = token_bytes * layers * sequences * (context + size_t{64}),
       .max_running = sequences,
       .max_queue = sequences,
       .prefill_tokens = sequences * kContext,
       .slice_token_layers = std::numeric_limits<int>::max()});
  if (!bench.ok()) return bench.status();
  const auto figures = (*bench)->Run({.policy = std::move(policy),
                                      .batch = sequences,
                                      .context = kContext,
                                      .decode_tokens = steps,
                                      .after_submit = [null_model] { null_model->Start(); },
                                      .after_start = [null_model] { null_model->Continue(); }});
  if (!figures.ok()) return figures.status();
  const double step = 1e6 / static_cast<double>(figures->decode_parts.steps);
  absl::PrintF("| %-24s | %9d | %6d | %8.1f us | %6.1f ns | %8.1f us |\n",
               absl::StrCat("`", text, "`"), sequences, layers,
               figures->decode_parts.schedule * step,
               1e3 * figures->decode_parts.schedule * step / sequences / layers,
               figures->decode_parts.sample * step);
  std::fflush(stdout);
  return absl::OkStatus();
}

int RunSchedulerBench(const SchedulerFlags& flags) {
  SetUpLogging(spdlog::level::warn);
  for (const int value : flags.sequences) {
    if (value < 1 || value > 65536) {
      return Fail(
          absl::InvalidArgumentError(absl::StrCat("--sequences: ", value, ", not 1 to 65536")));
    }
  }
  for (const int value : flags.layers) {
    if (value < 1 || value > 1024) {
      return Fail(absl::InvalidArgumentError(absl::StrCat("--layers: ", value, ", not 1 to 1024")));
    }
  }
  absl::PrintF("| %-24s | sequences | layers | schedule    | a layer   | sampling    |\n",
               "policy");
  std::puts("| --- | ---: | ---: | ---: | ---: | ---: |");
  const std::vector<std::string> policies =
      flags.policies.empty() ? std::vector<std::string>{"full"} : flags.policies;
  for (const std::string& text : policies) {
    const auto policy = ParsePolicy(text, {});
    if (!policy.ok()) return Fail(policy.status());
    for (const int layers : flags.layers) {
      for (const int sequences : flags.sequences) {
        absl::Status status = PrintRow(text, *policy, sequences, layers, flags.steps);
        if (!status.ok()) return Fail(status);
      }
    }
  }
  return kExitOk;
}

}  // namespace

Command AddBenchScheduler(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("scheduler", "Time planning a step, without a model");
  auto flags = std::make_shared<SchedulerFlags>();
  app->add_option("--sequences", flags->sequences, "Sequences that decode, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--layers", flags->layers, "Layers of the model, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--compression", flags->policies, "Policy; may be given several times")
      ->type_name("POLICY")
      ->allow_extra_args(false);
  app->add_option("--steps", flags->steps, "Decode steps that are timed")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->footer(kExamples);
  return {app, [flags] { return RunSchedulerBench(*flags); }};
}

}  // namespace ziggurat
