#include "server/cli/bench/engine_bench.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/cli/device.h"

namespace ziggurat::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What `parts` would be of so many steps.
StepParts Scaled(const StepParts& parts, int steps) {
  if (parts.steps == 0) return parts;
  const double scale = static_cast<double>(steps) / static_cast<double>(parts.steps);
  return {static_cast<uint64_t>(steps), parts.device * scale, parts.model * scale,
          parts.attention * scale,      parts.sample * scale, parts.schedule * scale};
}

StepParts operator-(const StepParts& a, const StepParts& b) {
  return {a.steps - b.steps,         a.device - b.device, a.model - b.model,
          a.attention - b.attention, a.sample - b.sample, a.schedule - b.schedule};
}

std::vector<int32_t> RandomPrompt(int tokens, int vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> id(0, vocabulary - 1);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = id(random);
  return prompt;
}

/// How far the requests of a case have come.
class Progress {
 public:
  explicit Progress(int batch) : batch_(batch) {}

  /// The status of a request that ended with an error.
  absl::Status Add(const EngineOutput& output) {
    int& tokens = tokens_[output.id];
    if (tokens == 0 && !output.tokens.empty()) {
      ++started_;
      last_ = output.id;
    }
    tokens += static_cast<int>(output.tokens.size());
    if (output.result == nullptr) return absl::OkStatus();
    ++(tokens == 0 ? never_started_ : finished_);
    const EngineResult& result = *output.result;
    return result.reason == FinishReason::kError ? result.status : absl::OkStatus();
  }
  int started() const { return started_; }
  bool all_started() const { return started_ == batch_; }
  /// Nothing has started for some steps, so the pool has no room for another request: where it has,
  /// a prompt goes through between one step and the next.
  bool is_pool_full() const { return started_ > 0 && steps() >= kStepsUntilFull; }
  bool any_finished() const { return finished_ > 0; }
  bool all_finished() const { return finished_ + never_started_ == batch_; }
  /// Once all have started: steps since then, each of which brought every request a token. Outputs
  /// of several steps may arrive together.
  int steps() const { return tokens_.at(last_) - 1; }

 private:
  static constexpr int kStepsUntilFull = 4;
  int batch_;
  int started_ = 0;
  int finished_ = 0;  ///< of those that have started
  int never_started_ = 0;
  RequestId last_ = 0;  ///< the one that started last
  std::unordered_map<RequestId, int> tokens_;
};

/// At least so many are asked for, that `decode_tokens` of them are timed.
int GeneratedTokens(int decode_tokens) { return decode_tokens == 0 ? 1 : decode_tokens + 2; }

}  // namespace

absl::Status CheckNumbers(const char* flag, const std::vector<int>& values, int most) {
  for (const int value : values) {
    if (value >= 1 && value <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", value, ", must be from 1 to ", most));
  }
  return absl::OkStatus();
}

absl::Status CheckFits(int context, int decode_tokens, int max_context_tokens) {
  const int64_t generated = GeneratedTokens(decode_tokens);
  if (context + generated <= max_context_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("prompts of ", context, " tokens and ", generated,
                   " generated ones do not fit the model's context of ", max_context_tokens));
}

absl::StatusOr<std::unique_ptr<EngineBench>> EngineBench::Create(
    const EngineBenchOptions& options) {
  auto bench = std::unique_ptr<EngineBench>(new EngineBench);
  absl::StatusOr<ModelConfig> model = LoadModelConfig(options.model);
  if (!model.ok()) return model.status();
  bench->model_ = *std::move(model);
  DecoderOptions decoder;
  decoder.element = options.dtype;
  decoder.threads = options.threads;
  decoder.max_prefill_tokens = std::max(options.prefill_tokens, options.max_prompt_tokens);
  absl::StatusOr<DeviceRunner> runner =
      LoadOnDevice(options.model, decoder, options.device, options.max_batch);
  if (!runner.ok()) return runner.status();
  bench->backend_ = std::move(runner->backend);
  absl::Status started =
      bench->Start(std::move(runner->runner), {.kv_cache_bytes = options.kv_cache_bytes,
                                               .max_running = std::max(options.max_batch, 1),
                                               .max_queue = std::max(options.max_batch, 1),
                                               .prefill_tokens = options.prefill_tokens,
                                               .prefill_slice = absl::Hours(1),
                                               .device_slice_token_layers = INT_MAX});
  if (!started.ok()) return started;
  return bench;
}

absl::StatusOr<std::unique_ptr<EngineBench>> EngineBench::CreateWith(
    std::unique_ptr<ModelRunner> runner, const EngineOptions& options) {
  auto bench = std::unique_ptr<EngineBench>(new EngineBench);
  absl::Status started = bench->Start(std::move(runner), options);
  if (!started.ok()) return started;
  return bench;
}

absl::Status EngineBench::Start(std::unique_ptr<ModelRunner> runner, const EngineOptions& options) {
  metrics_.DeclareLayers(runner->shape().num_layers);
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(options, std::move(runner), &metrics_);
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  return absl::OkStatus();
}

EngineBench::~EngineBench() = default;

size_t EngineBench::weight_bytes() const {
  const size_t hidden = model_.hidden_size;
  const size_t attention =
      hidden * (model_.q_size() + 2 * model_.kv_size()) + hidden * model_.q_size();
  const size_t layer = attention + 3 * hidden * model_.intermediate_size;
  return ElementBytes(element()) * (layer * model_.num_layers + hidden * model_.vocab_size);
}

/// Read from the series that the daemon shows too.
StepParts EngineBench::PartsSoFar() {
  StepParts parts;
  for (const prometheus::MetricFamily& family : metrics_.Collect()) {
    if (family.name == "ziggurat_device_decode_seconds_total") {
      parts.device = family.metric.front().counter.value;
    }
    if (family.name != "ziggurat_step_seconds") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const std::string& part = metric.label.front().value;
      double* const sums[] = {&parts.model, &parts.attention, &parts.sample, &parts.schedule};
      const char* const names[] = {"model", "attention", "sample", "schedule"};
      for (int i = 0; i < 4; ++i) {
        if (part == names[i]) *sums[i] = metric.histogram.sample_sum;
      }
      parts.steps = metric.histogram.sample_count;  // each part is observed once in every step
    }
  }
  return parts;
}

StepParts EngineBench::PartsOnceIdle() {
  StepParts before, parts = PartsSoFar();
  do {
    absl::SleepFor(absl::Milliseconds(5));
    before = std::exchange(parts, PartsSoFar());
  } while (parts.steps != before.steps);
  return parts;
}

absl::StatusOr<std::vector<RequestId>> EngineBench::SubmitAll(const EngineCase& which) {
  // Those that are prefilled first decode on while the others are prefilled, a step for every batch
  // of prompts; the first prompt may be a batch of its own.
  const int64_t tokens = static_cast<int64_t>(which.batch) * which.context;
  const int64_t per_batch = std::max(engine_->options().prefill_tokens, which.context);
  // And a small model may take steps for a while before the reader of its outputs gets a turn.
  // What fills the pool should not depend on how many are sent.
  constexpr int64_t kLeast = 256;
  int64_t spare = std::max(kLeast, 2 + 2 * tokens / per_batch);
  if (which.fills_pool) spare = kLeast;
  if (which.after_start) spare = 0;
  absl::Status fits = CheckFits(which.context, which.decode_tokens, shape().max_context_tokens);
  if (!fits.ok()) return fits;
  const int room = shape().max_context_tokens - which.context;
  const int wanted = GeneratedTokens(which.decode_tokens);
  std::vector<RequestId> ids;
  for (int i = 0; i < which.batch; ++i) {
    EngineRequest request;
    request.name = absl::StrCat("bench-", i);
    request.prompt = RandomPrompt(which.context, shape().vocab_size, next_seed_++);
    request.policy = which.policy;
    request.max_new_tokens =
        static_cast<int>(std::min<int64_t>(room, which.decode_tokens == 0 ? 1 : wanted + spare));
    absl::StatusOr<RequestId> id = engine_->Submit(std::move(request));
    if (!id.ok()) {
      for (const RequestId other : ids) engine_->Cancel(other, FinishReason::kCancelled);
      return id.status();
    }
    ids.push_back(*id);
  }
  if (which.after_submit) which.after_submit();
  return ids;
}

absl::StatusOr<EngineFigures> EngineBench::Run(const EngineCase& which) {
  EngineFigures figures;
  Progress progress(which.batch);
  const StepParts at_start = PartsSoFar();
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::vector<RequestId>> ids = SubmitAll(which);
  if (!ids.ok()) return ids.status();

  enum class Stage : uint8_t { kPrefill, kFirstStep, kTimed, kToTheEnd, kDone };
  Stage stage = Stage::kPrefill;
  absl::Status failure;
  Clock::time_point decode_start;
  StepParts decode_from, steady_from, steady;
  int first_step = 0;
  std::vector<EngineOutput> outputs;
  while (!progress.all_finished() && engine_->NextOutputs(&outputs)) {
    for (const EngineOutput& output : outputs) {
      failure.Update(progress.Add(output));
      if (output.result != nullptr) figures.cache_bytes += output.result->cache.bytes;
    }
    if (stage == Stage::kPrefill &&
        (progress.all_started() || (which.fills_pool && progress.is_pool_full()))) {
      figures.prefill_seconds = SecondsSince(start);
      figures.batch = progress.started();
      stage = which.decode_tokens == 0 ? Stage::kDone : Stage::kFirstStep;
      if (which.after_start) {
        decode_start = Clock::now();
        decode_from = PartsSoFar();
        stage = Stage::kToTheEnd;
        which.after_start();
      }
    } else if (stage == Stage::kFirstStep && progress.steps() > 0) {
      // What a step took is noted after its tokens have gone out: that of prefill is now.
      decode_start = Clock::now();
      decode_from = PartsSoFar();
      first_step = progress.steps();
      stage = Stage::kTimed;
    } else if (stage == Stage::kTimed &&
               (progress.steps() - first_step >= which.decode_tokens || progress.any_finished())) {
      figures.decode_seconds = SecondsSince(decode_start);
      figures.steps = progress.steps() - first_step;
      // The engine may be some steps ahead of what its clients have been sent.
      figures.decode_parts = Scaled(PartsSoFar() - decode_from, figures.steps);
      stage = Stage::kDone;
    }
    if (stage == Stage::kToTheEnd && !progress.any_finished()) {
      const int step = progress.steps();
      // What a step took is noted after its tokens have gone out: that of prefill and of the first
      // step are by now.
      if (steady_from.steps == 0) {
        if (step > 2) steady_from = PartsSoFar();
      } else if (steady.steps == 0 && step >= which.decode_tokens - which.decode_tokens / 8) {
        steady = PartsSoFar() - steady_from;
      }
    }
    if (stage == Stage::kToTheEnd && progress.all_finished()) {
      figures.decode_seconds = SecondsSince(decode_start);
      figures.steps = progress.steps();
      const StepParts all = PartsSoFar() - decode_from;
      figures.decode_parts = Scaled(steady.steps == 0 ? all : steady, all.steps);
      const StepParts& steps = figures.decode_parts;
      figures.edges_seconds = all.schedule + all.sample - steps.schedule - steps.sample;
    }
    if (!failure.ok() || stage == Stage::kDone) {
      for (const RequestId id : *ids) engine_->Cancel(id, FinishReason::kCancelled);
    }
    outputs.clear();
  }
  if (!failure.ok()) return failure;
  if (which.decode_tokens == 0) figures.prefill_parts = PartsOnceIdle() - at_start;
  figures.prefill_tokens_per_second =
      static_cast<double>(figures.batch) * which.context / figures.prefill_seconds;
  if (which.decode_tokens == 0) return figures;
  if (figures.steps < which.decode_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat(which.batch, " requests of ", which.context, " tokens were together for only ",
                     figures.steps, " of ", which.decode_tokens,
                     " steps; a larger pool or a smaller batch helps"));
  }
  const double step = figures.decode_seconds / figures.steps;
  figures.decode_tokens_per_second = figures.batch / step;
  figures.bytes_per_second = static_cast<double>(weight_bytes() + figures.cache_bytes) / step;
  return figures;
}

}  // namespace ziggurat::bench
