// `a+b`: several policies at work on one cache. One of them may say which tokens every layer keeps;
// the others change its plan, or that of `full` where there is none.
#pragma once

#include <memory>
#include <vector>

#include "compression/policy_descriptor.h"

namespace ziggurat {

/// One policy made of `policies`, at least one, every pair of which composes
/// (compression/composition_rules.h). Their order does not matter: the name and the text of the
/// result have first what shares and trims layers, then what selects tokens, then what stores them.
std::shared_ptr<const Policy> ComposePolicies(
    std::vector<std::shared_ptr<const DescribedPolicy>> policies);

}  // namespace ziggurat
