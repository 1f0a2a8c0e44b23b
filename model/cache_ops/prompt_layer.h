// One prompt on its way through the layers: how it is attended, what is measured of each layer, and
// which tokens stay. Everything that policies (compression/cache_plan.h) ask of prefill is done
// here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/backend.h"
#include "model/cache_ops/prompt_needs.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Lives from the first layer to the last. The backend and the buffers outlive it; the plan must be
/// there as long as anything is asked of it. The tensors that it is given are those of its prompt,
/// whose attention overwrites the queries (`out` is `q`).
class PromptLayers {
 public:
  PromptLayers(PromptBackend* backend, const AttentionShape& shape, int tokens,
               const CachePlan* plan, const PromptBuffers& buffers);

  /// Saves what attention is about to overwrite. Before every layer's attention.
  void Prepare(int layer, const PromptTensors& at);
  /// Whether the layer needs `AttendDistant` in place of PromptBackend::PrefillAttention.
  bool NeedsDistant(int layer) const;
  /// Rows [first_row, end_row) of it (PromptBackend::attention_part_rows).
  void AttendDistant(int layer, const PromptTensors& at, int first_row, int end_row);
  /// Whether `Measure` of the layer is to sum up what keys receive from all queries, of which
  /// `SumColumns` has left some.
  bool NeedsColumnSums(int layer) const;
  /// That part of Measure up to `end_key`, after attention: so that others need not wait for all of
  /// it. Parts begin at multiples of PromptBackend::column_part_keys.
  void SumColumns(const PromptTensors& at, int end_key);
  int summed_keys() const { return summed_keys_; }
  /// After attention. Spans in the result are valid until the next call of any method.
  LayerMeasured Measure(int layer, const PromptTensors& at);
  /// PromptBatch::LastAttention, after attention. `rows` is at most what the plan keeps.
  void LastAttention(const PromptTensors& at, int rows, float* attention) const;
  int window_rows() const { return buffers_.window_rows; }
  /// Writes the layer. INTERNAL names a range that does not fit the segments or the tokens that
  /// stay; nothing is written then.
  absl::Status Write(const PromptTensors& at, PoolView pool, const LayerWrite& write);

  /// The tokens that `edit` keeps of a layer whose scores were stored: [num_kv_heads, best +
  /// recent].
  absl::Status SelectStored(int layer, const KeepBest& edit, std::vector<int32_t>* kept);

  const CachePlan& plan() const { return *plan_; }
  int tokens() const { return tokens_; }

 private:
  struct Edit;  // visitor of LayerEdit

  void SelectBest(const WindowScoreStatistic& statistic, const KeepBest& edit, int layer,
                  const PromptTensors& at);
  void SelectHeavy(const KeepHeavy& edit);
  void SelectWindows(const KeepWindows& edit, const PromptTensors& at);
  void MeasureStored(const WindowScoreStatistic& statistic, int layer, const PromptTensors& at);
  bool IsLazy(const LazyTest& test, const PromptTensors& at);
  int SelectRetained(const MergeOptions& merge, const PromptTensors& at);
  double Recall(int layer, const LayerMeasured& measured, const PromptTensors& at);

  PromptTail TailOf(const PromptTensors& at, int rows) const;
  /// Spreads `best` selected positions per head, `stride` apart, to rows of best + recent and adds
  /// the last `recent` tokens. Only heads whose group starts at `layer` change.
  void KeepSelected(const int32_t* best_of, size_t stride, int best, int recent, int layer);
  absl::Span<const int32_t> KeptOnHost();
  int32_t* LendIndices(size_t count) const;

  absl::Status CheckWrite(const LayerWrite& write) const;
  absl::Status WriteMergedPair(const PromptTensors& at, PoolView pool, const LayerWrite& write);
  void WriteRange(const PromptTensors& at, PoolView pool, const SegmentView& segment,
                  const TokenRange& range);

  PromptBackend* backend_;
  AttentionShape shape_;
  int tokens_;
  const CachePlan* plan_;
  PromptBuffers buffers_;
  DistantCounts distant_counts_;
  std::vector<uint8_t> borrows_;

  // The tokens that a layer kept; a follower's are those of its leader.
  int selected_ = 0;  ///< per head, in buffers_.selection; 0: none were selected, all stay
  bool selection_stands_ = false;  ///< the layer at hand keeps those
  std::vector<int32_t> host_selection_;
  int summed_keys_ = 0;    ///< of the layer at hand, SumColumns
  int retained_ = 0;       ///< MiniCache
  double importance_ = 0;  ///< of the layer at hand
  LayerMeasured last_;     ///< likewise
};

}  // namespace ziggurat
