// `ziggurat bench scheduler`: what a step costs outside the model.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "block_manager/sequence_cache.h"
#include "compression/registry.h"
#include "model/cuda/sequence_tables.h"
#include "scheduler/null_model.h"
#include "server/cli/bench/engine_bench.h"
#include "server/cli/bench/subcommands.h"
#include "server/cli/failure.h"
#include "server/cli/validators.h"
#include "server/log.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat bench scheduler
  ziggurat bench scheduler --sequences 256 --layers 32 --compression full --compression kivi

The real scheduler and block manager plan decode steps of a model that computes nothing. "schedule"
is one step's time in them: the place of every new token in every layer of every sequence, blocks
taken from the pool, what is passed on to clients. Sampling is not in it, nor are steps in which
requests begin or end: what each request's beginning and end take beyond that stands under "begin,
end". With --gpu-table it is as in a daemon on a GPU, here without one: "GPU's table" is the time to
find what the device must be told of all block tables. What can be made ready while the device
computes stands under "prepared" alone; the device "waits" for everything else, "longest" is the
mean of the longest sixteenth.)";

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
  bool gpu_table = false;
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

/// What a daemon with a GPU does with the block tables of steps, and when; no device is needed for
/// it. Timed are steps of all sequences from the third in a row on: in the first most are new, and
/// GatedModel holds up the second.
class DeviceTables {
 public:
  DeviceTables(const ModelShape& shape, int sequences, size_t num_blocks)
      : sequences_(sequences),
        tables_({shape.num_q_heads, shape.num_kv_heads, shape.head_dim, 1}, shape.element,
                shape.num_layers, sequences,
                cuda::SequenceTables::WordsFor(shape.num_layers, sequences, num_blocks), {}) {}

  /// The device is at work from the end of this to AwaitTokens.
  void DecodeTokens(absl::Span<const DecodeInput> inputs) {
    const Clock::time_point start = Clock::now();
    status_.Update(tables_.Update(inputs));
    tables_.table().Sent();
    launched_ = Clock::now();
    const bool is_whole = static_cast<int>(inputs.size()) == sequences_;
    whole_steps_ = is_whole ? whole_steps_ + 1 : 0;
    if (whole_steps_ > 2) {
      table_.push_back(Microseconds(launched_ - start));
      prepared_.push_back(prepared_for_it_);
      waits_.push_back(Microseconds(launched_ - done_));
    }
  }
  void PrepareDecode(absl::Span<const DecodeInput> inputs) { tables_.Prepare(inputs); }
  void AwaitTokens() {
    done_ = Clock::now();
    prepared_for_it_ = Microseconds(done_ - launched_);
  }

  const absl::Status& status() const { return status_; }
  double table_us() const { return Mean(table_); }
  double prepared_us() const { return Mean(prepared_); }
  double waits_us() const { return Mean(waits_); }
  /// Of the longest sixteenth: as many take a block where all sequences are equally long.
  double longest_us() const {
    std::vector<double> longest = waits_;
    std::sort(longest.begin(), longest.end(), std::greater<>());
    longest.resize((longest.size() + 15) / 16);
    return Mean(longest);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double Microseconds(Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  }
  static double Mean(const std::vector<double>& values) {
    if (values.empty()) return 0;
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }

  const int sequences_;
  cuda::SequenceTables tables_;
  absl::Status status_;
  int whole_steps_ = 0;  ///< one after the other
  Clock::time_point launched_, done_;
  double prepared_for_it_ = 0;
  std::vector<double> table_, prepared_, waits_;  ///< of each timed step
};

/// Holds the engine up, so that the requests of a case begin together and none of the timed steps
/// is over before anybody looks.
class GatedModel final : public NullModel {
 public:
  /// With `tables`, which outlive it, decode steps are a device's.
  GatedModel(const ModelShape& shape, int sequences, DeviceTables* tables)
      : NullModel(shape), sequences_(sequences), tables_(tables) {}

  /// Until then the first prefill waits, so that no request decodes while others are on their way.
  void Start() { may_start_.store(true); }
  /// Until then the second step that decodes all sequences waits.
  void Continue() { may_continue_.store(true); }

  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) override {
    Await(may_start_);
    return NullModel::BeginPrefill(lane, prompts);
  }
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens) override {
    const bool is_whole = static_cast<int>(inputs.size()) == sequences_;
    if (is_whole && ++whole_steps_ == 2) Await(may_continue_);
    if (tables_ == nullptr) return NullModel::DecodeTokens(inputs, draws, tokens);
    tables_->DecodeTokens(inputs);
    return absl::OkStatus();
  }
  bool is_asynchronous() const override { return tables_ != nullptr; }
  void PrepareDecode(absl::Span<const DecodeInput> inputs) override {
    tables_->PrepareDecode(inputs);
  }
  absl::Status AwaitTokens() override {
    if (tables_ != nullptr) tables_->AwaitTokens();
    return absl::OkStatus();
  }

 private:
  static void Await(const std::atomic<bool>& permission) {
    while (!permission.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  const int sequences_;
  DeviceTables* const tables_;
  int whole_steps_ = 0;
  std::atomic<bool> may_start_ = false;
  std::atomic<bool> may_continue_ = false;
};

int Fail(const absl::Status& status) {
  return SayFailure("bench scheduler", status, ExitCodeOf(status));
}

void PrintRow(const std::string& text, int sequences, int layers,
              const bench::EngineFigures& figures, const std::optional<DeviceTables>& tables) {
  const double step = 1e6 / static_cast<double>(figures.decode_parts.steps);
  absl::PrintF("| %-24s | %9d | %6d | %8.1f us | %6.1f ns | %8.1f us | %8.1f us |",
               absl::StrCat("`", text, "`"), sequences, layers,
               figures.decode_parts.schedule * step,
               1e3 * figures.decode_parts.schedule * step / sequences / layers,
               figures.decode_parts.sample * step, 1e6 * figures.edges_seconds / sequences);
  if (tables) {
    absl::PrintF(" %8.1f us | %8.1f us | %8.1f us | %8.1f us |", tables->table_us(),
                 tables->prepared_us(), tables->waits_us(), tables->longest_us());
  }
  std::putchar('\n');
  std::fflush(stdout);
}

absl::Status RunRow(const std::string& text, std::shared_ptr<const Policy> policy, int sequences,
                    int layers, const SchedulerFlags& flags) {
  // The first prompt is prefilled alone, while the others are still on their way; it decodes on.
  const int context = kContext + flags.steps + 5 * (layers + 1);
  const ModelShape shape = ShapeOf(layers, context);
  const size_t token_bytes = size_t{4} * kKvHeads * kHeadDim;
  const size_t cache_bytes = token_bytes * layers * sequences * (context + size_t{64});
  std::optional<DeviceTables> tables;
  if (flags.gpu_table) {
    tables.emplace(shape, sequences,
                   cache_bytes / CacheGeometry::DefaultBlockBytes(kKvHeads, kHeadDim));
  }
  auto model = std::make_unique<GatedModel>(shape, sequences, tables ? &*tables : nullptr);
  GatedModel* const gates = model.get();
  auto bench =
      bench::EngineBench::CreateWith(std::move(model), {.kv_cache_bytes = cache_bytes,
                                                        .max_running = sequences,
                                                        .max_queue = sequences,
                                                        .prefill_tokens = sequences * kContext,
                                                        .prefill_slice = absl::Hours(1),
                                                        .device_slice_token_layers = INT_MAX});
  if (!bench.ok()) return bench.status();
  const auto figures = (*bench)->Run({.policy = std::move(policy),
                                      .batch = sequences,
                                      .context = kContext,
                                      .decode_tokens = flags.steps,
                                      .after_submit = [gates] { gates->Start(); },
                                      .after_start = [gates] { gates->Continue(); }});
  if (!figures.ok()) return figures.status();
  if (tables && !tables->status().ok()) return tables->status();
  if (figures->decode_parts.steps == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--steps ", flags.steps, " is too few for ", sequences,
                     " sequences: the first one ended before all of them decoded"));
  }
  PrintRow(text, sequences, layers, *figures, tables);
  return absl::OkStatus();
}

int RunSchedulerBench(const SchedulerFlags& flags) {
  SetUpLogging(spdlog::level::warn);
  std::vector<std::pair<std::string, std::shared_ptr<const Policy>>> policies;
  for (const std::string& text :
       flags.policies.empty() ? std::vector<std::string>{"full"} : flags.policies) {
    const auto policy = ParsePolicy(text, {});
    if (!policy.ok()) return Fail(policy.status());
    policies.emplace_back(text, *policy);
  }
  absl::PrintF(
      "| %-24s | sequences | layers | schedule    | a layer   | sampling    | begin, end  |%s\n",
      "policy", flags.gpu_table ? " GPU's table | prepared    | waits       | longest     |" : "");
  absl::PrintF("| --- | ---: | ---: | ---: | ---: | ---: | ---: |%s\n",
               flags.gpu_table ? " ---: | ---: | ---: | ---: |" : "");
  for (const auto& [text, policy] : policies) {
    for (const int layers : flags.layers) {
      for (const int sequences : flags.sequences) {
        absl::Status status = RunRow(text, policy, sequences, layers, flags);
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
      ->check(IntegerBetween(1, 65536))
      ->capture_default_str();
  app->add_option("--layers", flags->layers, "Layers of the model, separated by commas")
      ->delimiter(',')
      ->check(IntegerBetween(1, 1024))
      ->capture_default_str();
  app->add_option("--compression", flags->policies, "Policy; may be given several times")
      ->type_name("POLICY")
      ->allow_extra_args(false);
  app->add_option("--steps", flags->steps, "Decode steps that are timed")
      ->check(IntegerBetween(1, 1000000))
      ->capture_default_str();
  app->add_flag("--gpu-table", flags->gpu_table, "Keep the table of a GPU too, and time that");
  app->footer(kExamples);
  return {app, [flags] { return RunSchedulerBench(*flags); }};
}

}  // namespace ziggurat
