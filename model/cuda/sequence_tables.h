// The running sequences in the device's table: which row of a step each has, and what of its layers
// the device has been told.
#pragma once

#include <compare>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/cuda/decode.h"
#include "attention/cuda/step_table.h"
#include "model/model_runner.h"

namespace ziggurat::cuda {

/// What decode attention has to be launched for.
struct StepKinds {
  int runs = 0;          ///< (segment, KV head, pass)s of a layer of an item, at most
  uint32_t kernels = 0;  ///< bits of them
  bool distant = false;
  bool scored = false;

  void Add(const StepKinds& other);
  friend auto operator<=>(const StepKinds&, const StepKinds&) = default;
};

/// PoD rows of a step on the device (DeviceItem), those of row 0.
struct DistantRows {
  float* low_q = nullptr;                ///< [rows, num_q_heads, head_dim]
  float* distant_lse = nullptr;          ///< [rows, num_q_heads]
  unsigned long long* counts = nullptr;  ///< [rows, 2]
};

/// Rows are dense: when a sequence goes, the last one takes its row. A sequence that is not in a
/// step is gone. Looks only at layers of which the scheduler says something new.
class SequenceTables {
 public:
  /// Words that tables of `rows` sequences need in a pool of `num_blocks`.
  static uint32_t WordsFor(int num_layers, int rows, size_t num_blocks);

  SequenceTables(const AttentionShape& heads, ElementType compute, int num_layers, int rows,
                 uint32_t capacity_words, const DistantRows& distant);

  /// Makes the table that of this step, and gives each input its row. RESOURCE_EXHAUSTED where
  /// there are more inputs than rows, or the table is full.
  absl::Status Update(absl::Span<const DecodeInput> inputs);
  /// What the next update will say of sequences that have a row, so that it finds the table made
  /// theirs. Rows and kinds of the last one stay; what changes goes with the patches of the next.
  void Prepare(absl::Span<const DecodeInput> inputs);
  /// The row of input i of the last update.
  int row(size_t i) const { return rows_of_inputs_[i]; }
  absl::Span<const int> rows_of_inputs() const { return rows_of_inputs_; }
  const StepKinds& kinds() const { return kinds_; }

  StepTable& table() { return table_; }
  const StepItems& step_items() const { return items_; }
  /// One layer's, of launches for up to `capacity` items.
  DeviceItems items(int layer, int capacity) const;
  /// Words from the items of a layer to those of the next.
  uint32_t layer_stride() const;
  /// The word of a record of a layer of an input of the last update.
  uint32_t segment_word(size_t input, int layer, int segment) const;

 private:
  /// What a layer that goes on by itself (DeviceGrowth) was told: as long as it is as that says,
  /// the device needs to hear of new blocks alone.
  struct Told {
    std::vector<DeviceSegment> segments;  ///< planes without their lists: whose list each shares
    TokenTarget target;
    int as_of = 0;
    int score_recent = 0;
    float skip = 0;
  };
  struct Layer {
    LayerTable table;
    uint32_t targets = 0;
    int num_targets = 0;  ///< room for
    StepKinds kinds;
    Told told;  ///< without segments: nothing grows
  };
  struct Row {
    uint64_t sequence = 0;
    std::vector<int> as_of;  ///< of each layer, DecodeInput::Layer::as_of when it was told
    std::vector<Layer> layers;
    StepKinds kinds;
    int changed_at = DecodeInput::kUnknown;  ///< of what was told
    bool is_live = false;                    ///< in the step at hand
  };

  bool HasTheRowsOf(absl::Span<const DecodeInput> inputs) const;
  void FindRows(absl::Span<const DecodeInput> inputs);
  void DropGone(absl::Span<const DecodeInput> inputs);
  void RemoveLast();
  void ForgetTold(Row* row);
  absl::Status UpdateRow(int row, const DecodeInput& input);
  bool UpdateLayer(int row, int layer, const DecodeInput& input);
  bool MakeRoom(const DecodeInput::Layer& given, Layer* layer);
  static void Remember(const DecodeInput& input, int layer_index, Layer* layer);
  static bool HasGrownAsTold(const DecodeInput& input, int layer_index, const Layer& layer);
  void Release(Layer* layer);
  void ReleaseTargets(Layer* layer);
  void ResendCounts(const Layer& layer);
  void ResendTargets(const Layer& layer);
  void PutItem(int row, int layer, const DecodeInput& input);
  void PutGrowth(int row, int layer, const DecodeInput& input);
  StepKinds KindsOf(const Layer& layer, size_t num_segments) const;
  uint32_t ItemWord(int row, int layer) const;
  uint32_t GrowthWord(int row, int layer) const;

  const AttentionShape heads_;
  const ElementType compute_;
  const int num_layers_;
  const int capacity_;
  const DistantRows distant_;
  StepTable table_;
  StepItems items_;
  std::vector<Row> rows_;
  std::unordered_map<uint64_t, int> row_of_;
  std::vector<int> rows_of_inputs_;
  StepKinds kinds_;
};

}  // namespace ziggurat::cuda
