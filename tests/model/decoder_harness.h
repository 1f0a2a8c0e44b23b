// Drives a ModelRunner and the stores of its sequences as the engine does, one call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/backend.h"
#include "block_manager/block_pool.h"
#include "compression/policy.h"
#include "model/decoder/llama_decoder.h"
#include "model/model_runner.h"
#include "scheduler/block_plan.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_store.h"

namespace ziggurat::testing {

using Logits = std::vector<float>;

/// The backends that this machine can run: "reference", "cpu".
std::vector<std::string> BackendNames();
std::unique_ptr<AttentionBackend> MakeBackend(const std::string& name, int threads);
/// The fastest of them.
std::unique_ptr<AttentionBackend> MakeBestBackend(int threads);

/// One sequence: its plan, its layers, and what it has received.
struct TestSequence {
  std::shared_ptr<const Policy> policy;
  std::unique_ptr<BlockPlan> plan;
  std::unique_ptr<SequenceStore> store;
  std::vector<LayerMeasured> measured;  ///< [num_layers]; the spans in it are gone
  std::vector<double> cosines;          ///< [num_layers] where the plan asks for them
  int length = 0;                       ///< logical: tokens in the cache, evicted ones too

  uint64_t id = 0;  ///< DecodeInput::sequence

  const PrefillNeeds& needs() const { return plan->plan.needs; }
};

/// A runner with a pool. Any failure of a call is a failure of the test (and aborts it).
class DecoderHarness {
 public:
  DecoderHarness(const std::filesystem::path& dir, const DecoderOptions& options,
                 std::unique_ptr<AttentionBackend> backend, size_t pool_bytes = size_t{1} << 28);
  explicit DecoderHarness(std::unique_ptr<ModelRunner> runner, size_t pool_bytes = size_t{1} << 28);

  /// Another pool in place of the one there is, of which no sequence holds blocks any more.
  void RenewPool(size_t pool_bytes);

  ModelRunner& runner() { return *runner_; }
  BlockPool& pool() { return *pool_; }
  const ModelShape& shape() const { return runner_->shape(); }

  /// What policy texts may name from now on.
  PolicyResources& resources() { return resources_; }

  /// A sequence for a prompt of `prompt_tokens` under the policy with this text.
  TestSequence NewSequence(const std::string& policy, int prompt_tokens, int max_new_tokens);
  /// Prefills all prompts as one batch; logits after the last token of each.
  std::vector<Logits> Prefill(const std::vector<TestSequence*>& sequences,
                              const std::vector<std::vector<int32_t>>& prompts);
  /// One decode step; logits of each.
  std::vector<Logits> Decode(const std::vector<TestSequence*>& sequences,
                             const std::vector<int32_t>& tokens);
  /// Prefill call by call: begins a batch, in the first lane or another.
  std::unique_ptr<PromptBatch> Begin(const std::vector<TestSequence*>& sequences,
                                     const std::vector<std::vector<int32_t>>& prompts,
                                     int lane = 0);
  /// Runs layer `layer` over it; null: the request has gone.
  void PrefillLayer(PromptBatch& batch, int layer, const std::vector<TestSequence*>& sequences);
  /// Once the layers are through.
  std::vector<Logits> Finish(std::unique_ptr<PromptBatch> batch,
                             const std::vector<TestSequence*>& sequences);
  /// From now on prefill pauses wherever it can, and this runs then.
  void RunBetweenParts(std::function<void()> run) { between_parts_ = std::move(run); }
  /// The input of the sequence's next step, edits done, but for the token; valid until the next
  /// call.
  DecodeInput Append(TestSequence& sequence);

 private:
  void Decide(TestSequence& sequence, BatchPrompt prompt);

  std::unique_ptr<ModelRunner> runner_;
  CacheGeometry geometry_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<ReservationLedger> ledger_;
  PolicyResources resources_;
  uint64_t next_id_ = 1;
  std::function<void()> between_parts_;
};

int ArgMax(const Logits& logits);
/// max|a - b|
double MaxDifference(const Logits& a, const Logits& b);
/// max|a - b| / max|b|
double RelativeDifference(const Logits& a, const Logits& b);

}  // namespace ziggurat::testing
