#include "compression/quantizing_policy.h"

#include <fmt/format.h>

namespace ziggurat {
namespace {

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
  if (quantization_.stores_groups() && context.head_dim % quantization_.group != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: group={} must divide the head size, which is {} in this model", name(),
                    quantization_.group, context.head_dim));
  }
  return absl::OkStatus();
}

void QuantizingPolicy::Apply(const PolicyContext& /*context*/, const SequenceLimits& /*limits*/,
                             CachePlan* plan) const {
  plan->quantization = quantization_;
}

}  // namespace ziggurat
