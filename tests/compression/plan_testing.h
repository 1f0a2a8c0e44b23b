// What the tests of plans share: policies out of text, and what a plan keeps, layer by layer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compression/layer_plan.h"
#include "compression/policy.h"

namespace ziggurat {

/// A model of `num_layers`, 8 query heads, 2 KV heads, head size 64.
inline PolicyContext TestModel(int num_layers, std::string_view architecture = {}) {
  return {.num_layers = num_layers,
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 64,
          .architecture = architecture};
}

/// `full`, and a failure, where the text is refused.
inline std::shared_ptr<const Policy> Parse(std::string_view text,
                                           const PolicyResources& resources = {}) {
  auto policy = ParsePolicy(text, resources);
  if (policy.ok()) return *policy;
  ADD_FAILURE() << policy.status();
  return *ParsePolicy("full");
}

/// As the engine gets it.
inline CachePlan Plan(const Policy& policy, const PolicyContext& context,
                      const SequenceLimits& limits) {
  CachePlan plan = policy.Plan(context, limits);
  RaiseNeeds(context, limits, &plan);
  return plan;
}
inline CachePlan Plan(std::string_view text, int num_layers, int prompt_tokens, int max_new_tokens,
                      const PolicyResources& resources = {}) {
  return Plan(*Parse(text, resources), TestModel(num_layers), {prompt_tokens, max_new_tokens});
}

inline std::vector<size_t> Kept(const std::vector<LayerPlan>& layers) {
  std::vector<size_t> kept;
  kept.reserve(layers.size());
  for (const LayerPlan& layer : layers) kept.push_back(layer.prompt_tokens_kept);
  return kept;
}
inline std::vector<size_t> Kept(const CachePlan& plan) { return Kept(plan.layers); }

inline size_t TotalKept(const std::vector<LayerPlan>& layers) {
  const std::vector<size_t> kept = Kept(layers);
  return std::accumulate(kept.begin(), kept.end(), size_t{0});
}
inline size_t TotalKept(const CachePlan& plan) { return TotalKept(plan.layers); }

template <class Edit>
bool AllAre(const std::vector<LayerPlan>& layers) {
  return std::all_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
    return std::holds_alternative<Edit>(layer.edit);
  });
}
template <class Edit>
bool AllAre(const CachePlan& plan) {
  return AllAre<Edit>(plan.layers);
}

}  // namespace ziggurat
