// What the policies that store codes instead of numbers share: they leave every other decision to
// the policy that they are composed with.
#pragma once

#include "compression/plan_modifier.h"

namespace ziggurat {

class QuantizingPolicy final : public PlanModifier {
 public:
  QuantizingPolicy(const PolicyArguments& arguments, const Quantization& quantization)
      : PlanModifier(arguments), quantization_(quantization) {}

  PolicyTraits traits() const override {
    return kQuantizes | (stores_groups() ? kQuantizesGroups : kNoTrait);
  }

  /// Groups must divide the head size, and a head must fill whole words of 32 bits.
  absl::Status Check(const PolicyContext& context) const override;
  void Modify(const PolicyContext& context, const SequenceLimits& limits,
              CachePlan* plan) const override;
  void ModifyDecided(const SequenceLimits& limits, absl::Span<LayerPlan> layers) const override;

 private:
  bool stores_groups() const {
    return quantization_.kind == Quantization::Kind::kInt4 ||
           quantization_.kind == Quantization::Kind::kInt2;
  }

  Quantization quantization_;
};

}  // namespace ziggurat
