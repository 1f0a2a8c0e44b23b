// Admitted prompts until their last layer is done: which go together, and whose turn it is.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/model_runner.h"
#include "scheduler/sequence.h"

namespace ziggurat {

/// Prompts that go through the layers together.
struct PrefillBatch {
  std::vector<Sequence*> sequences;  ///< null where the request has gone meanwhile
  int tokens = 0;
  int next_layer = 0;
  bool is_written = false;               ///< next_layer is, and waits to be finished
  std::unique_ptr<PromptBatch> prompts;  ///< reads the plans of those that have not gone

  /// Whether no prompt is still there.
  bool is_empty() const;
  /// Tokens of the longest one that is.
  int LongestPrompt() const;
};

/// The queue of prompts that no batch has yet, and the batch of each of the model's lanes. It
/// decides; the engine loop runs what it decides. Engine thread only.
///
/// The first lane takes prompts in the order of admission. Where the model has a second one it is
/// for short prompts, which need not wait for a long one that is on its way in the first.
class PrefillLanes {
 public:
  /// `model` outlives this. `batch_tokens`: the most in a batch of the first lane that has more
  /// than one prompt.
  PrefillLanes(const ModelRunner* model, int batch_tokens);

  int size() const { return static_cast<int>(batches_.size()); }
  /// Whoever is done with a batch, or finds that none of it is left, resets it.
  std::optional<PrefillBatch>& batch(int lane) { return batches_[lane]; }

  void Push(Sequence* sequence) { queue_.push_back(sequence); }
  /// Puts the next batch of a lane that has none together, of prompts out of the queue. It has no
  /// `prompts` yet. False: no prompt is for this lane now.
  bool Fill(int lane);
  /// The lane whose turn it is, of those that have a batch; -1: none has.
  int NextLane();
  /// Takes out a sequence that ends early, if it is here.
  void Remove(const Sequence* sequence);

 private:
  /// Where a prompt goes that is next in order while a batch is put together.
  enum class Place : uint8_t { kHere, kNextBatch, kOtherLane };
  Place PlaceInFirstLane(const PrefillBatch& batch, int tokens) const;
  Place PlaceBeside(const PrefillBatch& batch, int tokens, int longest) const;
  bool IsWorthOvertaking(int64_t tokens, int64_t of_other, int layers) const;

  const ModelRunner* model_;
  int batch_tokens_;
  std::deque<Sequence*> queue_;
  std::vector<std::optional<PrefillBatch>> batches_;  ///< [lanes]
  int last_lane_ = 0;                                 ///< that had its turn
};

}  // namespace ziggurat
