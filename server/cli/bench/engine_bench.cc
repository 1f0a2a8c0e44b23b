#include "server/cli/bench/engine_bench.h"

#include <algorithm>
#include <climits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/cli/device.h"

namespace ziggurat::bench {
namespace {

std::vector<int32_t> RandomPrompt(int tokens, int vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> id(0, vocabulary - 1);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = id(random);
  return prompt;
}

/// At least so many are asked for, that `decode_tokens` of them are timed.
int GeneratedTokens(int decode_tokens) { return decode_tokens == 0 ? 1 : decode_tokens + 3; }

/// RESOURCE_EXHAUSTED where fewer steps were timed than were asked for.
absl::Status CheckSteps(const EngineCase& which, const EngineFigures& figures) {
  if (figures.steps >= which.decode_tokens) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(which.batch == 1 ? "a request" : absl::StrCat(which.batch, " requests"), " of ",
                   which.context, " tokens ", which.batch == 1 ? "ran" : "were together",
                   " for only ", figures.steps, " of ", which.decode_tokens,
                   " steps; a larger pool, a smaller batch or a shorter context helps"));
}

}  // namespace

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
  const size_t heads = 2 * (model_.num_q_heads + model_.num_kv_heads);  // of q and o, of k and v
  const size_t attention = hidden * heads * model_.padded_head_dim();
  const size_t layer = attention + 3 * hidden * model_.intermediate_size;
  return ElementBytes(element()) * (layer * model_.num_layers + hidden * model_.vocab_size);
}

StepParts EngineBench::PartsOnceIdle() const {
  StepParts before, parts = PartsSoFar(metrics_);
  do {
    absl::SleepFor(absl::Milliseconds(5));
    before = std::exchange(parts, PartsSoFar(metrics_));
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
  CaseTimer timer(which, metrics_);
  absl::StatusOr<std::vector<RequestId>> ids = SubmitAll(which);
  if (!ids.ok()) return ids.status();
  std::vector<EngineOutput> outputs;
  while (!timer.all_finished() && engine_->NextOutputs(&outputs)) {
    timer.Add(outputs);
    if (timer.is_over()) {
      for (const RequestId id : *ids) engine_->Cancel(id, FinishReason::kCancelled);
    }
    outputs.clear();
  }
  if (!timer.failure().ok()) return timer.failure();

  EngineFigures figures = timer.figures();
  figures.prefill_tokens_per_second =
      static_cast<double>(figures.batch) * which.context / figures.prefill_seconds;
  if (which.decode_tokens == 0) {
    figures.prefill_parts = PartsOnceIdle() - timer.parts_at_start();
    return figures;
  }
  if (absl::Status status = CheckSteps(which, figures); !status.ok()) return status;
  const double step = figures.decode_seconds / figures.steps;
  figures.decode_tokens_per_second = figures.batch / step;
  figures.bytes_per_second = static_cast<double>(weight_bytes() + figures.cache_bytes) / step;
  return figures;
}

}  // namespace ziggurat::bench
