// The graphs of decode steps: one for each bucket of steps, recorded when the bucket comes for the
// second time and launched from then on.
//
// A graph is a matter of speed alone: a step that has none, or of which none can be made, goes as
// it comes. Few are kept, since each takes memory of the driver's.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/device.h"
#include "model/cuda/sequence_tables.h"

namespace ziggurat::cuda {

/// Steps of equal ones share a graph.
struct StepBucket {
  int items = 0;
  StepKinds kinds;
  friend auto operator<=>(const StepBucket&, const StepBucket&) = default;
};

/// Not thread-safe.
class StepGraphs {
 public:
  using Recorder = std::function<absl::StatusOr<std::unique_ptr<Graph>>(
      Stream& stream, const std::function<void()>& work)>;

  /// Keeps up to `most`; where one more is made, that which was launched longest ago goes.
  explicit StepGraphs(size_t most, Recorder record = Graph::Record)
      : most_(most), record_(std::move(record)) {}

  /// A step of `bucket`, of which `work` asks `stream`. The status is that of `work`.
  absl::Status Run(const StepBucket& bucket, Stream& stream,
                   absl::FunctionRef<absl::Status()> work);
  /// Forgets all: what they were recorded with is no longer there.
  void Clear();

  size_t size() const { return graphs_.size(); }

 private:
  struct Kept {
    std::unique_ptr<Graph> graph;
    uint64_t launched = 0;  ///< the number of the launch
  };

  /// Null where none can be made.
  std::unique_ptr<Graph> Record(Stream& stream, absl::FunctionRef<absl::Status()> work);
  void Keep(const StepBucket& bucket, std::unique_ptr<Graph> graph);

  const size_t most_;
  const Recorder record_;
  std::map<StepBucket, Kept> graphs_;
  std::set<StepBucket> seen_;     ///< once
  std::set<StepBucket> without_;  ///< of which none can be made
  uint64_t launches_ = 0;
  bool has_warned_ = false;
};

}  // namespace ziggurat::cuda
