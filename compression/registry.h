// All policies of this build. The table is made by CMake out of the files in policies/, so nothing
// has to be registered by hand and no start-up code can be dropped by a linker.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {

/// Every policy, by file name. Constant, safe from any thread, alive for the whole process.
absl::Span<const PolicyDescriptor* const> AllPolicies();

/// Their names, in that order.
std::vector<std::string> PolicyNames();

/// nullptr where no policy has that name.
const PolicyDescriptor* FindPolicy(std::string_view name);

/// "unknown policy 'snapvk' (did you mean 'snapkv'?); known are fp8, full, ...".
std::string DescribeUnknownPolicy(std::string_view name);

/// "name(required=,optional=default,...)": how a policy is written, e.g.
/// "snapkv(budget=,window=32,kernel=5,pool=avg)".
std::string DescribeUsage(const PolicyDescriptor& policy);

/// Several lines for --help: each policy, what it keeps, and its parameters with ranges.
std::string DescribePolicies(absl::Span<const PolicyDescriptor* const> policies = AllPolicies());

}  // namespace ziggurat
