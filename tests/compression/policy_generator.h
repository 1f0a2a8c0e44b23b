// Random policies for property tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compression/policy.h"
#include "compression/registry.h"

namespace ziggurat {

/// Groups named "calibration", of a model of that shape, drawn at random; inside a rapidcheck
/// property.
PolicyResources DrawResources(int num_layers, int num_kv_heads);

/// `name(parameter=value,...)` with values in range; inside a rapidcheck property. Values need not
/// go with each other (a budget may be below its window). Numbers of tokens are mostly small.
std::string DrawPolicyText(const PolicyDescriptor& policy);

/// One policy, or two or three that compose; inside a rapidcheck property.
std::shared_ptr<const Policy> DrawPolicy(const PolicyResources& resources);

}  // namespace ziggurat
