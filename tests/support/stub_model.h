// A model without weights, for tests of scheduler and server: its next token is a function of the
// last token and its position, so every text is known beforehand, and it writes a record into every
// slot that it is given and reads all of them back, so a wrong block table is noticed at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "model/model_runner.h"

namespace ziggurat {

/// Turns that a test holds while the engine runs the model. Any thread.
struct StubControl {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  /// Neither this decode step, nor any layer once it would be next, begins before this is raised.
  std::atomic<int64_t> hold_at_step = kNever;
  std::atomic<bool> is_held = false;                ///< one waits for that
  std::atomic<int64_t> decode_delay_us = 0;         ///< slept in every decode step
  std::atomic<int64_t> prefill_layer_delay_us = 0;  ///< slept in every prefill layer
  std::atomic<int64_t> prefill_token_delay_us = 0;  ///< and for each token of the batch
  std::atomic<int> prefill_parts = 1;        ///< of attention in a layer, and of what is behind it
  std::atomic<bool> fail_decode = false;     ///< decode answers INTERNAL while this is set
  std::atomic<bool> fail_await = false;      ///< AwaitTokens does
  std::atomic<int> failing_edits_ahead = 0;  ///< so many calls answer INTERNAL
  std::atomic<bool> overflow = false;        ///< logits are no numbers while this is set
  std::atomic<int64_t> decode_steps = 0;     ///< steps done
  std::atomic<int64_t> decoded_tokens = 0;   ///< sequences of all steps
  std::atomic<int64_t> prefill_layers = 0;   ///< layers of prefill batches done
  std::atomic<int64_t> short_batches = 0;    ///< batches begun in the second lane
  std::atomic<int> largest_batch = 0;        ///< most sequences of one decode step
  std::atomic<int64_t> prepared_layers = 0;  ///< said to be as of the next step by PrepareDecode
  std::atomic<int64_t> edits_ahead = 0;      ///< carried out between DecodeTokens and AwaitTokens
};

struct StubModelOptions {
  /// head_dim times element bytes must be at least 16, so that a record fits a slot's values.
  ModelShape shape = {.num_layers = 4,
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .head_dim = 8,
                      .hidden_size = 32,
                      .vocab_size = 1000,
                      .max_context_tokens = 4096,
                      .element = ElementType::kBf16};
  int max_prefill_tokens = 8192;
  int short_prefill_tokens = 0;  ///< of a second lane; 0: there is none
  bool is_asynchronous = false;  ///< as a device is, with time to prepare the next step
  /// The most probable token after `token` at `position`; null: StubNextToken.
  std::function<int32_t(int32_t token, int position)> next_token;
  /// Changes what was measured of a prompt's layer; null: nothing does.
  std::function<void(absl::Span<const int32_t> prompt, LayerMeasured* measured)> mismeasures;
  std::shared_ptr<StubControl> control;  ///< null: one of its own
};

/// The default: a hash of both, in [vocab_size / 2, vocab_size), away from special tokens.
int32_t StubNextToken(int32_t token, int position, int vocab_size);

/// What a greedy request answers to `prompt`, by the same function that the model draws from.
std::vector<int32_t> StubGreedyTokens(const StubModelOptions& options,
                                      absl::Span<const int32_t> prompt, int count);

/// Holds in every layer, KV head and slot a record {sequence tag, position, token, checksum}, as
/// the slot's value, and the checksum again as the first word of its key. Decode checks every
/// record of every layer of the sequence: one sequence only, no position twice, nothing from the
/// future, the checksum of this layer and head. What is wrong is answered as INTERNAL with layer,
/// head and slot.
///
/// Codes and merged directions cannot carry a record: segments of these are counted, not read.
/// Where it is asynchronous, inputs must be what PrepareDecode said of them. What a layer keeps
/// follows its plan, with tokens that depend on the head; of the layers that are tested for
/// laziness every other one is lazy, and of tokens that are merged the first are retained.
class StubModel : public ModelRunner {
 public:
  explicit StubModel(StubModelOptions options);

  const ModelShape& shape() const override { return options_.shape; }
  void AttachPool(PoolView pool) override { pool_ = pool; }
  size_t WorkspaceBytes(int tokens) const override;
  size_t PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const override;
  bool is_asynchronous() const override { return options_.is_asynchronous; }
  absl::Span<const PrefillLane> lanes() const override { return lanes_; }
  size_t workspace_high_water_bytes() const override { return workspace_high_water_; }
  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) override;
  absl::Status EditCache(absl::Span<const CacheEdit> edits) override;
  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override;
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens) override;
  void PrepareDecode(absl::Span<const DecodeInput> inputs) override;
  absl::Status AwaitTokens() override;
  /// Of edits: a millisecond for each that was ahead, known the next time that somebody asks.
  DeviceSeconds device_seconds() const override;

 private:
  class Batch;
  struct Prompt {
    std::vector<int32_t> tokens;
    const CachePlan* plan = nullptr;
    uint32_t tag = 0;
    bool is_gone = false;
    LayerMeasured measured;     ///< of the layer at hand
    std::vector<int32_t> kept;  ///< [KV heads, kept tokens]; a follower's are its leader's
    int kept_tokens = 0;        ///< 0: all
  };
  LayerMeasured MeasureLayer(int layer, Prompt& prompt);
  absl::Status WritePrompt(int layer, const Prompt& prompt, const LayerWrite& write);
  absl::Status DecodeLayer(int layer, const DecodeInput& input, uint32_t* tag);
  absl::Status WriteRanges(int layer, const Prompt& prompt, LayerView view,
                           absl::Span<const TokenRange> ranges, int listed,
                           const std::function<int(int head, int index)>& position_of);
  void CopyRecords(const CopyEdit& edit);
  void CopyRetained(const MergeEdit& edit);
  void FillLogits(int32_t token, int position, float* logits) const;

  StubModelOptions options_;
  PoolView pool_;
  std::vector<PrefillLane> lanes_;
  std::vector<bool> is_busy_;  ///< [lanes]
  uint32_t next_tag_ = 1;
  size_t workspace_high_water_ = 0;
  std::vector<bool> seen_;  // positions of the layer and head at hand
  mutable DeviceSeconds device_seconds_;
  // Of DecodeTokens, until AwaitTokens, where it is asynchronous:
  std::vector<float> device_logits_;
  absl::Span<const TokenDraw> draws_;
  SampledToken* tokens_ = nullptr;
  /// What PrepareDecode said of each sequence: position, step, and in every layer slot and blocks.
  std::map<uint64_t, std::vector<int64_t>> said_;
};

}  // namespace ziggurat
