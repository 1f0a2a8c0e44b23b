// A compression policy decides what each layer of a sequence keeps. It never touches a tensor: it
// says which statistics it needs of a layer and answers with a symbolic edit; a backend measures
// and moves (docs/architecture.md, "Policies decide, kernels measure and move").
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compression/cache_plan.h"
#include "compression/pod_groups.h"

namespace ziggurat {

/// What a policy may know of the model.
struct PolicyContext {
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  std::string_view architecture = {};  ///< "LlamaForCausalLM", ...: for defaults by model family
};

/// An immutable, validated policy: safe to share between threads and requests.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Canonical text with every parameter, which parses back to an equal policy.
  virtual std::string ToString() const = 0;
  /// Name in the registry, e.g. "pyramidkv"; of a composed one "simlayerkv+snapkv".
  virtual std::string_view name() const = 0;
  /// INVALID_ARGUMENT where the policy does not suit the model (a group that does not divide the
  /// head size, a calibration of another model). Asked before `Plan`.
  virtual absl::Status Check(const PolicyContext& /*context*/) const { return absl::OkStatus(); }
  /// What each layer does of a sequence of at most that length; from it follow the blocks that
  /// admission reserves. INTERNAL, to the request, where the plan breaks a rule of
  /// compression/cache_plan.h (CheckPlan), and where it throws. Asked by any thread.
  virtual CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const = 0;
  /// What the layers keep once `CachePlan::importance` has been measured of each of them. Asked by
  /// the engine's thread, only where `CachePlan::decide` says so. `limits` are as of then: its
  /// prompt has all tokens that are held, at DecideAt::kFirstToken the first generated one too, and
  /// the new ones are those still to come, counted as in `Plan`. `prompt_tokens_kept` counts what
  /// is left of those held.
  ///
  /// A layer may become KeepAll; KeepRing, of at most `DecisionBounds::most_sinks` sinks; at
  /// DecideAt::kPrompt also KeepBest, by the statistic that the layer's plan had, whose window is
  /// then its `recent`. Together they come to no more than `DecisionBounds::mean_tokens` says.
  /// Anything else ends the request with INTERNAL, which names the policy and the layer
  /// (CheckDecision).
  ///   importance  [num_layers] of a broken model perhaps infinite, or no number
  virtual std::vector<LayerPlan> Decide(const PolicyContext& /*context*/,
                                        const SequenceLimits& /*limits*/,
                                        absl::Span<const double> /*importance*/) const {
    return {};
  }
  /// Whether ForPrompt is to be asked.
  virtual bool wants_prompt_text() const { return false; }
  /// The policy that serves this prompt, where that depends on its text (WindowKV's task=auto);
  /// null: this one. `text` is the prompt, or no less of it than its first kTaskHeadBytes and last
  /// kTaskTailBytes (compression/task_classifier.h).
  virtual std::shared_ptr<const Policy> ForPrompt(std::string_view /*text*/) const {
    return nullptr;
  }
};

/// What a daemon has loaded under names that policy texts may use. A policy text never opens a
/// file.
struct PolicyResources {
  std::vector<std::shared_ptr<const PodGroups>> pod_groups;
};

/// Parses `name(param=value,...)`, composed with '+'. INVALID_ARGUMENT names the column (1-based),
/// what was found and what is allowed. `resources` must outlive the call only.
absl::StatusOr<std::shared_ptr<const Policy>> ParsePolicy(std::string_view text,
                                                          const PolicyResources& resources = {});

}  // namespace ziggurat
