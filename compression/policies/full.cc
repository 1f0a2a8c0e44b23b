// The uncompressed cache: the yardstick of every other policy.
#include <memory>

#include "compression/policy_descriptor.h"

namespace ziggurat {
namespace {

class Full final : public DescribedPolicy {
 public:
  using DescribedPolicy::DescribedPolicy;

  PolicyTraits traits() const override { return kAddsNothing; }

  void Apply(const PolicyContext& /*context*/, const SequenceLimits& /*limits*/,
             CachePlan* /*plan*/) const override {}
};

}  // namespace

const PolicyDescriptor& FullPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "full",
      .summary = "keeps everything",
      .make = MakePolicy<Full>,
  };
  return kDescriptor;
}

}  // namespace ziggurat
