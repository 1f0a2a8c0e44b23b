// The vocabulary of compression: what is measured of a layer, the symbolic edit that follows, how
// the tokens that stay are stored, and the plan of a whole sequence. Plain values, shared by the
// policies that state them and the engine and backends that carry them out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace ziggurat {

struct PodGroups;  // compression/pod_groups.h

// ---- Which tokens of the prompt a layer keeps --------------------------------------------------

/// Pooling of scores over neighbouring tokens.
enum class ScorePooling : uint8_t { kAverage, kMax };

/// Attention of the last `window` prompt queries, mean over queries and the query heads of a KV
/// head, pooled over neighbouring keys (SnapKV, arXiv:2404.14469). A layer has it if and only if
/// its edit is KeepBest, whose `recent` is then `window`, or may become that (DecideAt::kPrompt).
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
/// Keep, for each KV head, the `heavy` tokens that received most attention from all prompt queries
/// among those older than the last `recent`, and those. While decoding every token goes on
/// collecting attention; once heavy + recent + 1 are held, a new token overwrites the one with the
/// least attention outside the last `recent` positions (H2O, arXiv:2306.14048).
struct KeepHeavy {
  int heavy = 0;
  int recent = 0;
};
/// Keep the last `observe` tokens and whole windows of `review` tokens, the same for all heads, in
/// falling order of window score as far as `budget` tokens allow (WindowKV, arXiv:2503.17922). The
/// score of a window is, per query head, the mean of its `best` highest token scores, then the mean
/// over heads. New tokens are appended.
struct KeepWindows {
  int observe = 0;
  int review = 0;
  int best = 0;
  int budget = 0;  ///< tokens besides the observed ones
};
/// Keep exactly the tokens, in the same order, that a lower layer kept: `leader`, or in a PoD group
/// the lowest layer of each head's group (leader = -1). The layers between it and its leader follow
/// that, too. A leader that is found lazy itself chooses for its followers nevertheless.
struct KeepAsLeader {
  int leader = 0;
};
using LayerEdit = std::variant<KeepAll, KeepBest, KeepRing, KeepHeavy, KeepWindows, KeepAsLeader>;

/// SimLayerKV's test (arXiv:2410.13846): a layer is lazy if the attention mass of the last `last`
/// queries on the first `sinks` and the last `recent` tokens, mean over queries and query heads, is
/// more than `threshold`. A lazy layer keeps ring() instead of its edit: exactly the tokens whose
/// mass was tested.
struct LazyTest {
  int sinks = 0;
  int recent = 0;
  int last = 1;
  double threshold = 0;

  KeepRing ring() const { return {sinks, recent}; }
  /// Of a mass in [0, 1], but for rounding.
  bool IsMet(double mass) const { return std::min(mass, 1.0) > threshold; }
};

/// The part of a layer in a pair of merged layers (MiniCache).
enum class MergeRole : uint8_t { kNone, kLower, kUpper };

/// What one layer of one sequence will do and need.
struct LayerPlan {
  LayerStatistic statistic;
  LayerEdit edit;
  std::optional<LazyTest> lazy;
  MergeRole merge = MergeRole::kNone;  ///< kUpper: with the layer below
  /// Upper bound of the prompt's tokens per KV head that the edit keeps. A lazy layer keeps what
  /// its ring holds instead, which may be more.
  size_t prompt_tokens_kept = 0;
};

// ---- How they are stored -----------------------------------------------------------------------

/// Codes instead of numbers, in every layer and segment.
struct Quantization {
  enum class Kind : uint8_t { kInt8, kFp8, kInt4, kInt2 };
  Kind kind = Kind::kInt4;
  /// kInt4, kInt2 (KIVI, arXiv:2402.02750): tokens of a group of keys and channels of a group of
  /// values; tokens become codes in whole groups when residual + group of them are there.
  int group = 0;  ///< at most kLargestGroup
  int residual = 0;

  static constexpr int kLargestGroup = 0xffff;
  bool stores_groups() const { return kind == Kind::kInt4 || kind == Kind::kInt2; }
};

/// MiniCache (arXiv:2405.14366): pairs of layers hold one direction per token.
struct MergeOptions {
  double t = 0.6;        ///< SLERP weight of the upper layer
  double retain = 0.05;  ///< share of the tokens of a merge that stay unmerged in both layers
  /// Of the prompt, retain d >= d_max - retain * (d_max - d_min) instead of a count. Merges of
  /// generated tokens are by count in any case: their blocks must be there beforehand.
  bool by_threshold = false;
  int tail = 128;  ///< generated tokens that wait before they are merged, at most kLongestTail
  static constexpr int kLongestTail = 4096;

  /// Tokens of a merge of `tokens` that stay unmerged, where it is by count.
  int Retained(int tokens) const {
    // A share such as 0.05 is not a binary fraction: 0.05 * 100 is 5, not a little more.
    return static_cast<int>(std::ceil(retain * tokens - 1e-9));
  }
};

/// PoD (arXiv:2412.02252): tokens that are neither sinks nor recent are attended with the keys, and
/// the query, of the lowest layer of the group.
struct DistantOptions {
  std::shared_ptr<const PodGroups> groups;
  int sinks = 0;
  int recent = 0;
  /// The distant part is left out where the near part has at least this share; above 1: never.
  double skip = 2;
};

// ---- A whole sequence --------------------------------------------------------------------------

/// The length of a sequence. The cache receives one token for each generated one but the last.
struct SequenceLimits {
  int prompt_tokens = 1;   ///< >= 1
  int max_new_tokens = 0;  ///< >= 0

  int64_t appended_tokens() const { return max_new_tokens > 1 ? max_new_tokens - 1 : 0; }
  /// All that the cache of an uncompressed layer ever receives.
  int64_t total_tokens() const { return prompt_tokens + appended_tokens(); }
};

/// A number per layer that a policy wants before it decides.
enum class LayerImportance : uint8_t {
  kNone,
  kCosine,    ///< cosine of the residual stream before and after attention, mean over the prompt
              ///< (SqueezeAttention)
  kEntropy,   ///< entropy (nats) of the window scores, unpooled, mean over KV heads; of layers that
              ///< have a WindowScoreStatistic
  kGini,      ///< Gini coefficient of the same
  kLazyMass,  ///< LazyTest's mass, of the first generated token's query
};

/// When `Policy::Decide` is asked; until then every layer holds all its tokens as they are.
enum class DecideAt : uint8_t {
  kLayer,       ///< never: the plan stands, layer by layer
  kPrompt,      ///< after the last layer of the prompt
  kFirstToken,  ///< after the first generated token
};

/// What `Policy::Decide` comes to at most, whatever has been measured.
struct DecisionBounds {
  int most_sinks = 0;  ///< of a ring that a layer becomes
  /// Tokens per KV head that a layer comes to hold, those still to be generated among them: the
  /// mean over layers, rounded up.
  int64_t mean_tokens = 0;
};

/// What a prompt needs in the workspace besides hidden states and one layer's Q, K and V.
struct PrefillNeeds {
  int window_rows = 0;          ///< last query rows that are kept; -1: all of the prompt
  int score_heads = 0;          ///< rows of scores: 0, KV heads or query heads
  bool selects = false;         ///< room for the indices of the tokens that stay
  bool lower_kv = false;        ///< K and V of the layer below (MiniCache)
  bool group_qk = false;        ///< Q and K of each head's lowest layer (PoD), where `distant` is
  int stored_score_layers = 0;  ///< layers whose scores are kept until the last (DecideAt::kPrompt)
  bool recall = false;          ///< attention recall is to be measured, by sums that take room
};

/// Everything about one sequence, known before it is admitted.
struct CachePlan {
  std::vector<LayerPlan> layers;
  std::optional<Quantization> quantization;
  std::optional<MergeOptions> merge;
  std::optional<DistantOptions> distant;  ///< not beside merged layers or a later decision
  LayerImportance importance = LayerImportance::kNone;
  DecideAt decide = DecideAt::kLayer;
  /// Of the first token's query, where importance is kLazyMass.
  LazyTest first_token_test;
  DecisionBounds decided;  ///< where `decide` is not kLayer
  PrefillNeeds needs;      ///< at least those of the layers (RaiseNeeds)

  /// Whether tokens become codes in groups. Then what a layer is must not follow from how long the
  /// answer may get: a ring's sinks stay as they are, and its groups become codes at other times.
  bool StoresGroups() const { return quantization && quantization->stores_groups(); }
  /// Whether any layer has an edit: it may keep less than the whole prompt, and not the same tokens
  /// as another.
  bool SelectsTokens() const {
    return std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
      return !std::holds_alternative<KeepAll>(layer.edit);
    });
  }
};

}  // namespace ziggurat
