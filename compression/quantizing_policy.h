// What the policies that store codes instead of numbers share: they leave every other decision to
// the policy that they are composed with.
#pragma once

#include "compression/policy_descriptor.h"

namespace ziggurat {

class QuantizingPolicy final : public DescribedPolicy {
 public:
  QuantizingPolicy(const PolicyArguments& arguments, const Quantization& quantization)
      : DescribedPolicy(arguments), quantization_(quantization) {}

  PolicyTraits traits() const override {
    return kQuantizes | (quantization_.stores_groups() ? kQuantizesGroups : kNoTrait);
  }

  /// Groups must divide the head size, and a head must fill whole words of 32 bits.
  absl::Status Check(const PolicyContext& context) const override;
  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override;

 private:
  Quantization quantization_;
};

}  // namespace ziggurat
