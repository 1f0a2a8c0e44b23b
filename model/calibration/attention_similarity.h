// How alike the layers of a model attend, measured on text (docs/pod_calibration.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compression/pod_calibration.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Jensen-Shannon divergence, base 2, of two distributions over the same tokens: 0 where they are
/// equal, 1 where no token has a share in both.
double JsDivergence(absl::Span<const float> p, absl::Span<const float> q);

/// Runs samples through a model and averages, for every two layers, 1 - JsDivergence of the
/// attention of the last tokens: over these tokens, the query heads of a KV head, and the samples.
/// The result does not depend on the number of threads.
class SimilarityMeter {
 public:
  /// `runner` outlives the meter. `last` tokens of each sample are looked at, or all that it has.
  SimilarityMeter(ModelRunner* runner, int last);

  /// The memory that a sample of `tokens` takes besides the runner's workspace: its attention in
  /// all layers.
  static size_t AttentionBytes(const ModelShape& shape, int last, int tokens);

  /// Runs one sample. Errors are the runner's; INTERNAL: a row of attention is not a distribution.
  /// The sample then counts as not run.
  absl::Status Add(absl::Span<const int32_t> tokens);

  int samples() const { return samples_; }
  /// Of the samples so far, at least one.
  LayerSimilarity Mean() const;

 private:
  absl::Status RunLayers(absl::Span<const int32_t> tokens, int rows);
  /// Makes the rows sum to 1 and stores their entropies.
  absl::Status Normalize(int tokens, int rows);
  void Compare(int tokens, int rows);

  ModelRunner* runner_;
  int last_;
  int samples_ = 0;
  LayerSimilarity sum_;            ///< over the samples
  std::vector<float> attention_;   ///< [layers, query heads, rows, tokens] of the sample at hand
  std::vector<double> entropies_;  ///< [layers, query heads, rows]
};

}  // namespace ziggurat
