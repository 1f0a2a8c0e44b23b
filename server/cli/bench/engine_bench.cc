#include "server/cli/bench/engine_bench.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/backend.h"
#include "model/decoder/llama_decoder.h"

namespace ziggurat::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

StepParts operator-(const StepParts& a, const StepParts& b) {
  return {a.model - b.model, a.attention - b.attention, a.sample - b.sample,
          a.schedule - b.schedule};
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

  /// An error where a request ended otherwise than by its length or by being cancelled.
  absl::Status Add(const EngineOutput& output) {
    int& tokens = tokens_[output.id];
    if (tokens == 0 && !output.tokens.empty()) ++started_;
    tokens += static_cast<int>(output.tokens.size());
    if (!output.finished) return absl::OkStatus();
    ++finished_;
    return output.reason == FinishReason::kError ? output.status : absl::OkStatus();
  }
  bool all_started() const { return started_ == batch_; }
  int finished() const { return finished_; }
  bool all_finished() const { return finished_ == batch_; }

 private:
  int batch_;
  int started_ = 0;
  int finished_ = 0;
  std::unordered_map<RequestId, int> tokens_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineBench>> EngineBench::Create(
    const EngineBenchOptions& options) {
  auto bench = std::unique_ptr<EngineBench>(new EngineBench);
  absl::StatusOr<ModelConfig> model = LoadModelConfig(options.model);
  if (!model.ok()) return model.status();
  bench->model_ = *std::move(model);
  absl::StatusOr<CpuLevel> level = DetectCpuLevel();
  if (!level.ok()) return level.status();
  bench->threads_ = options.threads > 0
                        ? options.threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  absl::StatusOr<std::unique_ptr<AttentionBackend>> backend =
      MakeCpuBackend(*level, bench->threads_);
  if (!backend.ok()) return backend.status();
  bench->backend_ = std::string((*backend)->name());
  DecoderOptions decoder;
  decoder.element =
      options.dtype.value_or(IsFastAtBf16(*level) ? ElementType::kBf16 : ElementType::kF32);
  decoder.threads = bench->threads_;
  decoder.max_prefill_tokens = std::max(options.prefill_tokens, options.max_prompt_tokens);
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
      LoadLlamaDecoder(options.model, decoder, *std::move(backend));
  if (!runner.ok()) return runner.status();
  absl::Status started =
      bench->Start(*std::move(runner), {.kv_cache_bytes = options.kv_cache_bytes,
                                        .max_running = std::max(options.max_batch, 1),
                                        .max_queue = std::max(options.max_batch, 1),
                                        .prefill_tokens = options.prefill_tokens});
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
  for (const prometheus::MetricFamily& family : metrics_.registry().Collect()) {
    if (family.name != "ziggurat_step_seconds") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const std::string& part = metric.label.front().value;
      double* const sums[] = {&parts.model, &parts.attention, &parts.sample, &parts.schedule};
      const char* const names[] = {"model", "attention", "sample", "schedule"};
      for (int i = 0; i < 4; ++i) {
        if (part == names[i]) *sums[i] = metric.histogram.sample_sum;
      }
    }
  }
  return parts;
}

absl::StatusOr<EngineFigures> EngineBench::Run(const EngineCase& which) {
  EngineFigures figures;
  Progress progress(which.batch);
  std::vector<RequestId> ids;
  // Those that are prefilled first decode on while the others are prefilled, a step for at most
  // every layer of every batch of prompts; the first prompt may be a batch of its own.
  const int64_t tokens = static_cast<int64_t>(which.batch) * which.context;
  const int per_batch = std::max(engine_->options().prefill_tokens, which.context);
  const int batches = 2 + static_cast<int>(2 * tokens / per_batch);
  const int spare = which.decode_tokens == 0 ? 0 : batches * (shape().num_layers + 1);
  const StepParts at_start = PartsSoFar();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < which.batch; ++i) {
    EngineRequest request;
    request.name = absl::StrCat("bench-", i);
    request.prompt = RandomPrompt(which.context, shape().vocab_size, next_seed_++);
    request.policy = which.policy;
    request.max_new_tokens = 1 + which.decode_tokens + spare;
    request.max_new_tokens =
        std::min(request.max_new_tokens, shape().max_context_tokens - which.context);
    absl::StatusOr<RequestId> id = engine_->Submit(std::move(request));
    if (!id.ok()) {
      for (const RequestId other : ids) engine_->Cancel(other, FinishReason::kCancelled);
      ids.clear();
      return id.status();
    }
    ids.push_back(*id);
  }

  absl::Status failure;
  Clock::time_point decode_start;
  StepParts decode_from;
  bool is_measured = which.decode_tokens == 0;
  std::vector<EngineOutput> outputs;
  while (!progress.all_finished() && engine_->NextOutputs(&outputs)) {
    const bool had_started = progress.all_started();
    for (const EngineOutput& output : outputs) {
      failure.Update(progress.Add(output));
      if (output.finished) figures.cache_bytes += output.cache.bytes;
    }
    if (!had_started && progress.all_started()) {
      figures.prefill_seconds = SecondsSince(start);
      decode_from = PartsSoFar();
      figures.prefill_parts = decode_from - at_start;
      decode_start = Clock::now();
    } else if (had_started && !is_measured && !outputs.empty()) {
      ++figures.steps;
      if (figures.steps == which.decode_tokens || progress.finished() > 0) {
        figures.decode_seconds = SecondsSince(decode_start);
        figures.decode_parts = PartsSoFar() - decode_from;
        is_measured = true;
      }
    }
    if (!failure.ok() || (is_measured && progress.all_started())) {
      for (const RequestId id : ids) engine_->Cancel(id, FinishReason::kCancelled);
    }
    outputs.clear();
  }
  if (!failure.ok()) return failure;
  if (which.decode_tokens > 0 && figures.steps < which.decode_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(which.batch, " requests of ", which.context,
                                                     " tokens were together for only ",
                                                     figures.steps, " of ", which.decode_tokens,
                                                     " steps; a larger pool, a smaller batch or "
                                                     "fewer tokens help"));
  }
  figures.prefill_tokens_per_second =
      static_cast<double>(which.batch) * which.context / figures.prefill_seconds;
  if (which.decode_tokens == 0) return figures;
  const double step = figures.decode_seconds / figures.steps;
  figures.decode_tokens_per_second = which.batch / step;
  figures.bytes_per_second = static_cast<double>(weight_bytes() + figures.cache_bytes) / step;
  return figures;
}

}  // namespace ziggurat::bench
