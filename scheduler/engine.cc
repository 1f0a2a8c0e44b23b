#include "scheduler/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "block_manager/block_pool.h"
#include "model/model_runner.h"
#include "scheduler/endings.h"
#include "scheduler/engine_loop.h"
#include "scheduler/refusal.h"
#include "scheduler/request_limits.h"

namespace ziggurat {
namespace {

absl::Status CheckOptions(const EngineOptions& options, const ModelRunner& model) {
  const ModelShape& shape = model.shape();
  const std::pair<const char*, int> positive[] = {
      {"max_running", options.max_running},
      {"max_queue", options.max_queue},
      {"max_prompt_tokens", options.max_prompt_tokens},
      {"prefill_tokens", options.prefill_tokens},
      {"device_slice_token_layers", options.device_slice_token_layers}};
  for (const auto& [name, value] : positive) {
    if (value < 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", must be at least 1"));
    }
  }
  const std::pair<const char*, absl::Duration> durations[] = {
      {"prefill_slice", options.prefill_slice}, {"max_queue_time", options.max_queue_time}};
  for (const auto& [name, value] : durations) {
    if (value < absl::ZeroDuration() || value > absl::Hours(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", absl::FormatDuration(value), ", must be from 0 to an hour"));
    }
  }
  if (options.max_prompt_tokens >= shape.max_context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_prompt_tokens is ", options.max_prompt_tokens,
                     ", must leave room for one new token in the model's context of ",
                     shape.max_context_tokens));
  }
  if (const int most = model.lanes().front().max_tokens; options.max_prompt_tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("max_prompt_tokens is ",
                                                   options.max_prompt_tokens,
                                                   ", the model's prefill takes at most ", most));
  }
  const size_t needed = options.block_bytes * static_cast<size_t>(shape.num_layers);
  if (options.kv_cache_bytes < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_cache_bytes is ", options.kv_cache_bytes,
                     " bytes, less than one block of ", options.block_bytes, " bytes for each of ",
                     shape.num_layers, " layers (", needed, " bytes)"));
  }
  if (options.kv_cache_bytes / options.block_bytes > std::numeric_limits<BlockId>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("kv_cache_bytes is ", options.kv_cache_bytes,
                                                   " bytes, more than 2^32 - 1 blocks of ",
                                                   options.block_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, const CacheGeometry& geometry, std::unique_ptr<BlockPool> pool,
       std::unique_ptr<ModelRunner> model, Metrics* metrics)
      : options_(options),
        geometry_(geometry),
        metrics_(metrics),
        model_(std::move(model)),
        pool_(std::move(pool)),
        gate_(options_.max_queue, metrics_),
        loop_(options_, geometry_, pool_.get(), model_.get(), metrics_, &inbox_, &outbox_, &gate_,
              &snapshot_),
        thread_([this] { loop_.Run(); }) {}

  ~Impl() { Stop(); }

  absl::Status Submit(RequestId id, EngineRequest request);
  absl::Status CheckWaited(SteadyTime arrived, std::optional<SteadyTime> deadline,
                           bool has_left) const;
  absl::Status CheckServes(const Policy& policy) const;
  absl::Status CheckRequest(const EngineRequest& request) const;
  absl::Status CheckFits(const Sequence& sequence) const;

  void Stop() {
    std::call_once(stopped_, [this] {
      gate_.Close();
      inbox_.Send(StopMessage{});
      thread_.join();
    });
  }

  const EngineOptions options_;
  const CacheGeometry geometry_;
  Metrics* const metrics_;
  std::unique_ptr<ModelRunner> model_;
  std::unique_ptr<BlockPool> pool_;  // its memory may be the model's
  Mailbox<EngineMessage> inbox_;
  Mailbox<EngineOutput> outbox_;
  AdmissionGate gate_;
  LatestSnapshot snapshot_;
  std::atomic<RequestId> next_id_ = 1;
  EngineLoop loop_;
  std::once_flag stopped_;
  std::thread thread_;
};

absl::Status Engine::Impl::CheckRequest(const EngineRequest& request) const {
  const ModelShape& shape = model_->shape();
  if (request.policy == nullptr) return absl::InvalidArgumentError("no compression policy given");
  for (const absl::Status& check :
       {CheckPromptTokens("the prompt", request.prompt.size(), options_.max_prompt_tokens),
        CheckTokenIds("the prompt", request.prompt, shape.vocab_size),
        CheckLengths(request, shape.max_context_tokens)}) {
    if (!check.ok()) return check;
  }
  return Validate(request.sampling);
}

absl::Status Engine::Impl::CheckFits(const Sequence& sequence) const {
  const BlockPlan& plan = sequence.block_plan;
  if (plan.total_blocks > pool_->num_blocks()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request can never fit: ", sequence.policy_text, " with ", sequence.prompt_tokens(),
        " prompt and ", sequence.request.max_new_tokens, " new tokens needs ", plan.total_blocks,
        " blocks, the pool has ", pool_->num_blocks()));
  }
  const size_t workspace = model_->WorkspaceBytes(sequence.prompt_tokens()) +
                           model_->PromptNeedsBytes(sequence.prompt_tokens(), plan.plan.needs);
  const size_t capacity = model_->lanes().front().capacity_bytes;
  if (workspace > capacity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request can never fit: its prefill needs a workspace of ", workspace,
                     " bytes, there are ", capacity));
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckWaited(SteadyTime arrived, std::optional<SteadyTime> deadline,
                                       bool has_left) const {
  const SteadyTime now = std::chrono::steady_clock::now();
  const absl::Duration waited = absl::FromChrono(now - arrived);
  const absl::Duration most = options_.max_queue_time;
  std::optional<Ending> ending;
  if (has_left) {
    ending = WhyLeft(deadline, now);
  } else if (deadline.has_value() && *deadline <= now) {
    ending = PastDeadline();
  } else if (most > absl::ZeroDuration() && waited >= most) {
    ending = PastQueueTime(absl::ToDoubleSeconds(most), metrics_);
  }
  if (!ending.has_value()) return gate_.CheckOpen(/*before=*/0);
  metrics_->CountFinished(ending->reason);
  metrics_->ObserveEndToEnd(absl::ToDoubleSeconds(waited));
  metrics_->ObserveQueueTime(absl::ToDoubleSeconds(waited));
  return ending->status;
}

absl::Status Engine::Impl::CheckServes(const Policy& policy) const {
  const ModelShape& shape = model_->shape();
  return ziggurat::CheckServes(policy, shape, geometry_,
                               std::min(options_.max_prompt_tokens, shape.max_context_tokens - 2));
}

absl::Status Engine::Impl::Submit(RequestId id, EngineRequest request) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    return RefuseInvalid(metrics_, std::move(status));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->submitted = request.arrived.value_or(std::chrono::steady_clock::now());
  if (options_.max_queue_time > absl::ZeroDuration()) {
    sequence->begin_by = sequence->submitted + absl::ToChronoNanoseconds(options_.max_queue_time);
  }
  absl::StatusOr<BlockPlan> plan =
      PlanBlocks(*request.policy, model_->shape(), geometry_,
                 {static_cast<int>(request.prompt.size()), request.max_new_tokens});
  if (!plan.ok()) return RefuseInvalid(metrics_, plan.status());
  sequence->block_plan = *std::move(plan);
  if (request.report_attention_recall) {
    PrefillNeeds& needs = sequence->block_plan.plan.needs;
    needs.recall = true;
    if (needs.window_rows >= 0) needs.window_rows = std::max(needs.window_rows, kRecallRows);
  }
  sequence->policy_text = request.policy->ToString();
  sequence->request = std::move(request);
  if (absl::Status status = CheckFits(*sequence); !status.ok()) {
    return Refuse(metrics_, Refusal::kNeverFits, status);
  }
  return gate_.Enter(sequence->block_plan.total_blocks, [&](Places promised) {
    inbox_.Send(SubmitMessage{std::move(sequence), promised});
  });
}

std::string_view RequestStateName(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kPrefilling:
      return "prefilling";
    case RequestState::kDecoding:
      return "decoding";
  }
  return "unknown";
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<ModelRunner> model,
                                                       Metrics* metrics) {
  const ModelShape& shape = model->shape();
  EngineOptions filled = options;
  if (filled.block_bytes == 0) {
    filled.block_bytes = CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim);
  }
  const int most_tokens = model->lanes().front().max_tokens;
  if (filled.max_prompt_tokens == 0) {
    filled.max_prompt_tokens = std::min(shape.max_context_tokens - 1, most_tokens);
  }
  filled.prefill_tokens = std::min(filled.prefill_tokens, most_tokens);
#if !defined(NDEBUG) || defined(ZIGGURAT_CHECK_EVERY_STEP)
  filled.check_every_step = true;
#endif
  if (absl::Status status = CheckOptions(filled, *model); !status.ok()) return status;
  const CacheGeometry geometry{shape.num_layers, shape.num_kv_heads, shape.head_dim,
                               filled.block_bytes};
  if (absl::Status status = geometry.Validate(); !status.ok()) return status;
  const size_t blocks = filled.kv_cache_bytes / filled.block_bytes;
  absl::StatusOr<std::byte*> memory = model->AllocatePool(blocks, filled.block_bytes);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<std::unique_ptr<BlockPool>> pool =
      BlockPool::Create(blocks, filled.block_bytes, *memory);
  if (!pool.ok()) return pool.status();
  model->AttachPool((*pool)->view());
  metrics->DeclareLayers(shape.num_layers);
  return std::unique_ptr<Engine>(new Engine(
      std::make_unique<Impl>(filled, geometry, *std::move(pool), std::move(model), metrics)));
}

absl::Status Engine::CheckServes(const Policy& policy) const { return impl_->CheckServes(policy); }

absl::Status Engine::CheckOpen(int before) const { return impl_->gate_.CheckOpen(before); }

absl::Status Engine::CheckWaited(SteadyTime arrived, std::optional<SteadyTime> deadline,
                                 bool has_left) const {
  return impl_->CheckWaited(arrived, deadline, has_left);
}

RequestId Engine::NewId() { return impl_->next_id_++; }

absl::Status Engine::Submit(RequestId id, EngineRequest request) {
  return impl_->Submit(id, std::move(request));
}

absl::StatusOr<RequestId> Engine::Submit(EngineRequest request) {
  const RequestId id = NewId();
  if (absl::Status status = Submit(id, std::move(request)); !status.ok()) return status;
  return id;
}

void Engine::Cancel(RequestId id, FinishReason reason) {
  impl_->inbox_.Send(CancelMessage{id, reason});
}

void Engine::Drain(absl::Time deadline) {
  impl_->gate_.Close();
  const auto left = std::max(absl::ZeroDuration(), deadline - absl::Now());
  impl_->inbox_.Send(DrainMessage{std::chrono::steady_clock::now() +
                                  absl::ToChronoNanoseconds(std::min(left, absl::Hours(24)))});
}

bool Engine::WaitIdle(absl::Duration timeout) const { return impl_->gate_.AwaitEmpty(timeout); }

std::shared_ptr<const EngineSnapshot> Engine::Snapshot() const { return impl_->snapshot_.Get(); }

const ModelShape& Engine::model_shape() const { return impl_->model_->shape(); }
const EngineOptions& Engine::options() const { return impl_->options_; }
size_t Engine::total_blocks() const { return impl_->pool_->num_blocks(); }

bool Engine::NextOutputs(std::vector<EngineOutput>* outputs) {
  return impl_->outbox_.Take(outputs);
}

void Engine::Stop() { impl_->Stop(); }

}  // namespace ziggurat
