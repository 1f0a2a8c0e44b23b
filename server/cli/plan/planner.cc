#include "server/cli/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compression/plan_check.h"
#include "model/checkpoint/model_config.h"
#include "model/decoder/decoder_memory.h"
#include "scheduler/block_plan.h"
#include "server/byte_size.h"
#include "server/cli/bench/load/trace.h"
#include "server/cli/failure.h"

namespace ziggurat::plan {
namespace {

using bench::LengthDistribution;
using bench::LengthSide;

/// Looked at where no policy is named.
constexpr const char* kUsualPolicies[] = {
    "full",
    "int8",
    "kivi(bits=4)",
    "streaming",
    "snapkv(budget=1024)",
    "pyramidkv(budget=1024)",
    "pyramidkv(budget=512)",
    "pyramidkv(budget=512)+kivi(bits=4)",
    "simlayerkv",
    "minicache",
};

absl::StatusOr<Traffic> MakeTraffic(const PlanOptions& flags, const bench::ContextLimits& limits) {
  Traffic traffic;
  traffic.max_tokens = flags.max_tokens;
  traffic.workload.seed = flags.seed;
  traffic.workload.limits = limits;
  traffic.workload.length_scale = flags.length_scale;
  if (!flags.trace.empty()) {
    auto trace = bench::ReadTrace(flags.trace);
    if (!trace.ok()) return Prefixed("--trace", trace.status());
    traffic.workload.trace = *std::move(trace);
    return traffic;
  }
  auto input = LengthDistribution::Parse(flags.input_tokens, LengthSide::kInput);
  if (!input.ok()) return Prefixed("--input-tokens", input.status());
  auto output = LengthDistribution::Parse(flags.output_tokens, LengthSide::kOutput);
  if (!output.ok()) return Prefixed("--output-tokens", output.status());
  traffic.workload.input = *input;
  traffic.workload.output = *output;
  return traffic;
}

/// Requests that are to run at once: as many as there are clients, or as arrive while one is
/// answered, with two standard deviations of arrivals at random (Little's law). 0: not said.
int ClientsOf(const PlanOptions& flags) {
  if (flags.clients) return *flags.clients;
  if (!flags.rate) return 0;
  const double mean = *flags.rate * *flags.request_seconds;
  const double clients = std::ceil(mean + 2 * std::sqrt(mean));
  return static_cast<int>(std::clamp(clients, 1.0, 1e9));
}

std::string WrongFlags(const PlanOptions& flags) {
  if (flags.rate.has_value() != flags.request_seconds.has_value()) {
    return "--rate and --request-seconds go together: how many come, and how long each takes";
  }
  if (flags.rate && flags.clients) return "name one of --clients and --rate";
  if (flags.rate && ClientsOf(flags) > kMostRunning) {
    return absl::StrCat("--rate times --request-seconds: ", ClientsOf(flags),
                        " requests at once; at most ", kMostRunning, " are planned for");
  }
  return "";
}

/// Of a prompt that no budget holds.
constexpr int kLongPrompt = 1000000;

struct PlannedPolicy {
  std::string text;
  std::shared_ptr<const Policy> policy;
  std::string refusal;
};

/// Those that are named must parse; one that does not suit the model is shown as such.
absl::StatusOr<std::vector<PlannedPolicy>> MakePolicies(const PlanOptions& flags,
                                                        const ModelShape& shape,
                                                        const CacheGeometry& geometry) {
  std::vector<std::string> texts = flags.policies;
  if (texts.empty()) texts.assign(std::begin(kUsualPolicies), std::end(kUsualPolicies));
  std::vector<PlannedPolicy> policies;
  for (const std::string& text : texts) {
    auto policy = ParsePolicy(text, flags.config.resources);
    if (!policy.ok()) return Prefixed("--compression", policy.status());
    // A policy in the making is shown with what is wrong with its plans, and the others without it.
    const absl::Status suits = CheckServes(**policy, shape, geometry, kLongPrompt);
    policies.push_back({text, *std::move(policy), std::string(suits.message())});
  }
  return policies;
}

/// Asked as CheckServes asks.
bool HasLazyTest(const Policy& policy, const ModelShape& shape) {
  const auto plan = AskForPlan(policy, PolicyContextOf(shape),
                               {.prompt_tokens = kLongPrompt, .max_new_tokens = 2});
  if (!plan.ok()) return false;
  return plan->importance == LayerImportance::kLazyMass ||
         std::any_of(plan->layers.begin(), plan->layers.end(),
                     [](const LayerPlan& layer) { return layer.lazy.has_value(); });
}

absl::Status FillRow(const PlannedPolicy& planned, const ModelShape& shape, const Traffic& traffic,
                     double lazy_share, const Plan& plan, PolicyRow* row) {
  const auto figures = [&](double share, RequestForecast* usual, AtOnce* at_once, size_t* pool) {
    Capacity capacity(planned.policy, shape, plan.geometry, share);
    const auto forecast = capacity.Usual(static_cast<int>(plan.usual.input),
                                         static_cast<int>(plan.usual.output), plan.usual_reserved);
    if (!forecast.ok()) return forecast.status();
    *usual = *forecast;
    const auto filled = capacity.Fill(traffic, plan.blocks, kMostRunning);
    if (!filled.ok()) return filled.status();
    *at_once = *filled;
    if (plan.clients == 0) return absl::OkStatus();
    const auto needed = capacity.PoolFor(traffic, plan.clients);
    if (needed.ok()) *pool = *needed;
    return needed.status();
  };
  absl::Status status = figures(lazy_share, &row->usual, &row->at_once, &row->pool_for_clients);
  if (!status.ok() || lazy_share >= 1 || !HasLazyTest(*planned.policy, shape)) return status;
  return figures(1, &row->usual_lazy.emplace(), &row->at_once_lazy.emplace(),
                 &row->pool_for_clients_lazy);
}

/// All but the KV cache.
std::string PartsText(const MemoryParts& parts) {
  return absl::StrCat("weights ", FormatByteSize(parts.weights), ", prefill workspace ",
                      FormatByteSize(parts.workspace), ", decode step (--max-running) ",
                      FormatByteSize(parts.decode), ", requests (--max-queue) ",
                      FormatByteSize(parts.requests), ", program ", FormatByteSize(parts.program),
                      ", block counts ", FormatByteSize(parts.block_counts), ", spare (--spare) ",
                      FormatByteSize(parts.spare));
}

/// Pool and spare out of what there is, and what the pool costs besides its blocks.
absl::Status DivideMemory(const PlanOptions& flags, Plan* plan) {
  MemoryParts& parts = plan->memory;
  const size_t block_bytes = plan->geometry.block_bytes;
  constexpr size_t kCountBytes = 2 * sizeof(uint32_t);  // of a block, in the pool
  if (!flags.memory.empty()) {
    const auto memory = ParseByteSize(flags.memory);
    if (!memory.ok()) return Prefixed("--memory", memory.status());
    if (*memory == 0) return absl::InvalidArgumentError("--memory: must be above 0");
    plan->memory_bytes = *memory;
    parts.spare = static_cast<size_t>(flags.spare_percent / 100 * static_cast<double>(*memory));
  }
  size_t pool = flags.config.kv_cache_bytes;
  if (!flags.kv_cache_memory.empty()) {
    const auto bytes = ParseByteSize(flags.kv_cache_memory);
    if (!bytes.ok()) return Prefixed("--kv-cache-memory", bytes.status());
    pool = *bytes;
  } else if (plan->memory_bytes > 0) {
    const size_t others = parts.besides_pool();
    pool = plan->memory_bytes > others ? plan->memory_bytes - others : 0;
    // No pool has more blocks (CheckPoolBytes).
    pool =
        std::min<size_t>(pool / (block_bytes + kCountBytes), std::numeric_limits<uint32_t>::max()) *
        block_bytes;
    plan->is_pool_what_is_left = true;
  }
  plan->blocks = pool / block_bytes;
  parts.pool = plan->blocks * block_bytes;
  parts.block_counts = plan->blocks * kCountBytes;
  if (!flags.kv_cache_memory.empty()) {
    absl::Status status = CheckPoolBytes(absl::StrCat("'", flags.kv_cache_memory, "'"), pool,
                                         plan->geometry.num_layers, block_bytes);
    if (!status.ok()) return status;
  }
  if (plan->blocks < static_cast<size_t>(plan->geometry.num_layers)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        FormatByteSize(pool),
        plan->memory_bytes > 0 ? absl::StrCat(" of ", FormatByteSize(plan->memory_bytes)) : "",
        " are left for the KV cache, less than a block of ", FormatByteSize(block_bytes),
        " for each of ", plan->geometry.num_layers, " layers: ", PartsText(parts)));
  }
  if (plan->memory_bytes > 0 && parts.total() > plan->memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "with --kv-cache-memory ", flags.kv_cache_memory, " it takes ",
        FormatByteSize(parts.total()), " in all, of ", FormatByteSize(plan->memory_bytes), ": ",
        PartsText(parts), ", KV cache ", FormatByteSize(parts.pool)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ElementType> DtypeOf(const PlanOptions& flags) {
  auto dtype = ParseElementType(flags.dtype);
  return dtype.ok() ? dtype : Prefixed("--dtype", dtype.status());
}

/// What is known of the model, and with it of blocks.
absl::Status DescribeModel(const ModelConfig& model, const ModelShape& shape, Plan* plan) {
  plan->shape = model.Describe();
  plan->dtype = std::string(ElementTypeName(shape.element));
  plan->geometry = {shape.num_layers, shape.num_kv_heads, shape.head_dim,
                    CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim)};
  if (absl::Status status = plan->geometry.Validate(); !status.ok()) return status;
  plan->block_tokens =
      plan->geometry.SlotsPerBlock(KeyValueFormat(shape.element), shape.num_kv_heads);
  return absl::OkStatus();
}

void DescribeLoad(const PlanOptions& flags, const Traffic& traffic, Plan* plan) {
  plan->max_running = flags.config.max_running;
  plan->max_queue = flags.config.max_queue;
  plan->max_tokens = flags.max_tokens;
  plan->clients = ClientsOf(flags);
  plan->traffic = DescribeTraffic(traffic);
  plan->usual = {.input = std::max<int64_t>(1, std::llround(plan->traffic.prompt.mean)),
                 .output = std::max<int64_t>(1, std::llround(plan->traffic.answer.mean))};
  plan->usual_reserved = std::max(1, static_cast<int>(std::lround(plan->traffic.reserved)));
}

MemoryParts MemoryOf(const PlanOptions& flags, const ModelConfig& model, const ModelShape& shape,
                     const std::vector<PlannedPolicy>& policies, const Plan& plan) {
  const PromptSizes prompts = {static_cast<int>(plan.usual.input),
                               static_cast<int>(plan.traffic.prompt.max)};
  std::vector<PrefillNeeds> needs;
  for (const PlannedPolicy& planned : policies) {
    if (!planned.refusal.empty()) continue;
    const auto of_longest = AskForPlan(*planned.policy, PolicyContextOf(shape),
                                       {.prompt_tokens = prompts.largest, .max_new_tokens = 1});
    if (of_longest.ok()) needs.push_back(of_longest->needs);  // else its row says what is wrong
  }
  return EstimateMemory(model, flags.config, shape.element, prompts, needs);
}

/// What the others are compared with, whether it is among them or not.
absl::Status FillFull(const ModelShape& shape, Plan* plan) {
  const auto full = ParsePolicy("full");
  if (!full.ok()) return full.status();
  Capacity capacity(*full, shape, plan->geometry, /*lazy_share=*/0);
  const auto usual = capacity.Usual(static_cast<int>(plan->usual.input),
                                    static_cast<int>(plan->usual.output), plan->usual_reserved);
  if (!usual.ok()) return usual.status();
  plan->full_blocks = usual->settled_blocks;
  return absl::OkStatus();
}

absl::Status FillRows(const PlanOptions& flags, const ModelShape& shape, const Traffic& traffic,
                      const std::vector<PlannedPolicy>& policies, Plan* plan) {
  for (const PlannedPolicy& planned : policies) {
    PolicyRow row;
    row.policy = planned.text;
    row.refusal = planned.refusal;
    if (row.refusal.empty()) {
      absl::Status status = FillRow(planned, shape, traffic, flags.lazy_share, *plan, &row);
      if (absl::IsInternal(status)) {
        row = PolicyRow();
        row.policy = planned.text;
        row.refusal = std::string(status.message());
      } else if (!status.ok()) {
        return Prefixed(planned.text, status);
      }
    }
    plan->policies.push_back(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(PlanOptions options) {
  if (std::string wrong = WrongFlags(options); !wrong.empty()) {
    return absl::InvalidArgumentError(wrong);
  }
  const absl::StatusOr<int> prefill_tokens = ParsePrefillTokens(options.prefill_tokens);
  if (!prefill_tokens.ok()) return Prefixed("--prefill-tokens", prefill_tokens.status());
  options.config.prefill_tokens = *prefill_tokens;
  if (absl::Status status = Validate(options.config); !status.ok()) return status;
  auto groups = LoadPodGroups(options.pod_groups);
  if (!groups.ok()) return groups.status();
  options.config.resources.pod_groups = *std::move(groups);
  const absl::StatusOr<ModelConfig> model = LoadModelConfig(options.config.model);
  if (!model.ok()) return model.status();
  const absl::StatusOr<ElementType> element = DtypeOf(options);
  if (!element.ok()) return element.status();
  DecoderOptions decoder;
  decoder.element = *element;
  const ModelShape shape = MakeWorkspaceShape(*model, decoder).model;

  Plan plan;
  plan.model = options.config.model.string();
  if (absl::Status status = DescribeModel(*model, shape, &plan); !status.ok()) return status;
  const auto traffic = MakeTraffic(
      options, {.context_tokens = shape.max_context_tokens,
                .prompt_tokens = options.config.LongestPrompt(shape.max_context_tokens)});
  if (!traffic.ok()) return traffic.status();
  DescribeLoad(options, *traffic, &plan);
  const auto policies = MakePolicies(options, shape, plan.geometry);
  if (!policies.ok()) return policies.status();
  if (absl::Status status = FillFull(shape, &plan); !status.ok()) return status;
  plan.memory = MemoryOf(options, *model, shape, *policies, plan);
  if (absl::Status status = DivideMemory(options, &plan); !status.ok()) return status;
  absl::Status status = FillRows(options, shape, *traffic, *policies, &plan);
  if (!status.ok()) return status;
  plan.suggestions = Suggest(plan);
  return plan;
}

}  // namespace ziggurat::plan
