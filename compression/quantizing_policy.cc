#include "compression/quantizing_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace ziggurat {
namespace {

/// A ring of groups drops whole ones: it holds up to group - 1 tokens more.
void LengthenRing(const SequenceLimits& limits, int64_t sinks, int64_t recent, int group,
                  LayerPlan* layer) {
  const int64_t slots = std::min(limits.total_tokens(), sinks + recent + group - 1);
  layer->max_tokens = std::max(layer->max_tokens, static_cast<size_t>(slots));
}

int BitsOf(Quantization::Kind kind) {
  switch (kind) {
    case Quantization::Kind::kInt2:
      return 2;
    case Quantization::Kind::kInt4:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

absl::Status QuantizingPolicy::Check(const PolicyContext& context) const {
  const int multiple = 32 / BitsOf(quantization_.kind);
  if (context.head_dim % multiple != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} needs a head size that is a multiple of {}, and this model's is {}",
                    ToString(), multiple, context.head_dim));
  }
  if (stores_groups() && context.head_dim % quantization_.group != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: group={} must divide the head size, which is {} in this model", name(),
                    quantization_.group, context.head_dim));
  }
  return absl::OkStatus();
}

void QuantizingPolicy::Modify(const PolicyContext& /*context*/, const SequenceLimits& limits,
                              CachePlan* plan) const {
  plan->quantization = quantization_;
  ModifyDecided(limits, absl::MakeSpan(plan->layers));
  // Layers that become rings only later are bounded by what they may become.
  if (!stores_groups() || plan->decide == DecideAt::kLayer) return;
  for (LayerPlan& layer : plan->layers) {
    layer.max_tokens = std::min<size_t>(layer.max_tokens + quantization_.group - 1,
                                        static_cast<size_t>(limits.total_tokens()));
  }
}

void QuantizingPolicy::ModifyDecided(const SequenceLimits& limits,
                                     absl::Span<LayerPlan> layers) const {
  if (!stores_groups()) return;
  for (LayerPlan& layer : layers) {
    if (const auto* ring = std::get_if<KeepRing>(&layer.edit)) {
      LengthenRing(limits, ring->sinks, ring->recent, quantization_.group, &layer);
    }
    if (layer.lazy.has_value()) {
      LengthenRing(limits, layer.lazy->sinks, layer.lazy->recent, quantization_.group, &layer);
    }
  }
}

}  // namespace ziggurat
