#include "scheduler/forecast.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "block_manager/block_pool.h"
#include "scheduler/block_plan.h"
#include "scheduler/null_model.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_store.h"

namespace ziggurat {
namespace {

/// One request in a pool of its own, of exactly the blocks that its plan asks for.
class Rehearsal {
 public:
  Rehearsal(const Policy& policy, const ModelShape& shape, const ForecastOptions& options,
            BlockPlan plan, std::unique_ptr<BlockPool> pool)
      : policy_(policy),
        shape_(shape),
        options_(options),
        plan_(std::move(plan)),
        pool_(std::move(pool)),
        ledger_(shape.num_layers),
        store_(plan_, pool_.get(), &ledger_),
        model_(shape) {
    model_.set_lazy_share(options.lazy_share);
  }

  absl::StatusOr<RequestForecast> Run();

 private:
  absl::Status LayPromptOut();
  absl::Status Decide(BatchPrompt prompt);
  absl::Status Step();
  /// Made up where it is not measured during prefill: it rises from layer to layer, and the lowest
  /// layers pass the test of the first token.
  double Importance(int layer) const;

  const Policy& policy_;
  const ModelShape& shape_;
  const ForecastOptions& options_;
  BlockPlan plan_;
  std::unique_ptr<BlockPool> pool_;
  ReservationLedger ledger_;
  SequenceStore store_;
  NullModel model_;
  int appended_ = 0;
};

double Rehearsal::Importance(int layer) const {
  const double share = (layer + 0.5) / shape_.num_layers;
  if (plan_.plan.importance != LayerImportance::kLazyMass) return share;
  return share < options_.lazy_share ? 1 : 0;
}

absl::Status Rehearsal::LayPromptOut() {
  const std::vector<int32_t> ids(options_.prompt_tokens);
  const PrefillPrompt prompt{ids, &plan_.plan};
  absl::StatusOr<std::unique_ptr<PromptBatch>> batch = model_.BeginPrefill(0, {&prompt, 1});
  if (!batch.ok()) return batch.status();
  std::vector<LayerMeasured> measured(1);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    LayerWrite write;
    measured[0] = LayerMeasured();
    absl::Status status = (*batch)->AttendLayer(layer, NeverPause, &measured).status();
    measured[0].importance = Importance(layer);
    if (status.ok()) status = store_.FillLayer(layer, measured[0], &write);
    if (!status.ok()) return status;
  }
  if (plan_.plan.decide != DecideAt::kPrompt) return absl::OkStatus();
  return Decide({batch->get(), 0});
}

absl::Status Rehearsal::Decide(BatchPrompt prompt) {
  return store_.Decide(policy_, PolicyContextOf(shape_), prompt, &model_);
}

absl::Status Rehearsal::Step() {
  const int position = options_.prompt_tokens + appended_;
  std::vector<CacheEdit> edits;
  if (absl::Status status = store_.PrepareStep(position, &edits); !status.ok()) return status;
  if (!edits.empty()) {
    if (absl::Status status = store_.FinishEdits(); !status.ok()) return status;
  }
  const absl::StatusOr<DecodeInput> input = store_.Append(position);
  if (!input.ok()) return input.status();
  ++appended_;
  if (!store_.IsUndecided()) return absl::OkStatus();
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    input->lazy_mass[layer] = Importance(layer);
  }
  return Decide({});
}

absl::StatusOr<RequestForecast> Rehearsal::Run() {
  RequestForecast forecast;
  forecast.admitted_blocks = plan_.total_blocks;
  if (absl::Status status = LayPromptOut(); !status.ok()) return status;
  const int most = options_.max_new_tokens - 1;
  if (store_.IsUndecided() && most > 0) {
    if (absl::Status status = Step(); !status.ok()) return status;
  }
  forecast.prompt_blocks = pool_->used_blocks();
  forecast.settled_blocks = pool_->used_blocks() + ledger_.total();
  while (appended_ < std::min(options_.generated_tokens - 1, most)) {
    if (absl::Status status = Step(); !status.ok()) return status;
  }
  forecast.last_blocks = pool_->used_blocks();
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    forecast.layer_blocks.push_back(store_.cache().layer(layer).owned_blocks());
  }
  const auto& layers = plan_.plan.layers;
  forecast.depends_on_content =
      plan_.plan.decide != DecideAt::kLayer ||
      (plan_.plan.merge.has_value() && plan_.plan.merge->by_threshold) ||
      // How many of the tokens that are selected become distant.
      (plan_.plan.distant.has_value() && plan_.plan.SelectsTokens()) ||
      std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
        return layer.lazy.has_value() || std::holds_alternative<KeepWindows>(layer.edit);
      });
  return forecast;
}

}  // namespace

absl::StatusOr<RequestForecast> ForecastRequest(const Policy& policy, const ModelShape& shape,
                                                const CacheGeometry& geometry,
                                                const ForecastOptions& options) {
  absl::StatusOr<BlockPlan> plan =
      PlanBlocks(policy, shape, geometry, {options.prompt_tokens, options.max_new_tokens});
  if (!plan.ok()) return plan.status();
  // Nothing of it is ever written, so it takes addresses and no memory.
  auto pool = BlockPool::Create(std::max<size_t>(1, plan->total_blocks), geometry.block_bytes);
  if (!pool.ok()) return pool.status();
  return Rehearsal(policy, shape, options, *std::move(plan), *std::move(pool)).Run();
}

}  // namespace ziggurat
