// The vocabulary of compression: what is measured of a layer, the symbolic edit that follows, and
// the plan of a whole sequence. Plain values, shared by the policies that state them and the
// backends that carry them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

namespace ziggurat {

/// Pooling of scores over neighbouring tokens.
enum class ScorePooling : uint8_t { kAverage, kMax };

/// Attention of the last `window` prompt queries, mean over queries and the query heads of a KV
/// head, pooled over neighbouring keys (SnapKV, arXiv:2404.14469). A layer has it if and only if
/// its edit is KeepBest, whose `recent` is then `window`.
struct WindowScoreStatistic {
  int window = 0;
  int kernel = 1;
  ScorePooling pooling = ScorePooling::kAverage;
};

/// What prefill must measure of a layer. monostate: nothing.
using LayerStatistic = std::variant<std::monostate, WindowScoreStatistic>;

/// Keep every prompt token; new tokens are appended.
struct KeepAll {};
/// Keep, for each KV head, the `best` tokens by the layer's statistic among all but the last
/// `recent`, and those; new tokens are appended.
struct KeepBest {
  int best = 0;
  int recent = 0;
};
/// Keep the first `sinks` tokens and the last `recent`; new tokens overwrite the oldest recent one.
struct KeepRing {
  int sinks = 0;
  int recent = 0;
};
using LayerEdit = std::variant<KeepAll, KeepBest, KeepRing>;

/// What one layer of one sequence will do and need.
struct LayerPlan {
  LayerStatistic statistic;
  LayerEdit edit;
  size_t prompt_tokens_kept = 0;  ///< slots per KV head right after prefill (exact)
  size_t max_tokens = 0;          ///< upper bound of slots per KV head while decoding
};

/// Everything about one sequence, known before it is admitted.
struct CachePlan {
  std::vector<LayerPlan> layers;
  /// The last query rows of a layer that must be kept beside the workspace for statistics: the
  /// largest window of any layer, 0 where no layer has a statistic.
  int window_rows = 0;
};

}  // namespace ziggurat
