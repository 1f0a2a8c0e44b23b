#include "compression/registry.h"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "compression/edit_distance.h"
#include "compression/policy_syntax.h"

namespace ziggurat {

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyDescriptor* policy : AllPolicies()) names.emplace_back(policy->name);
  return names;
}

std::string DescribeUnknownPolicy(std::string_view name) {
  const std::vector<std::string> names = PolicyNames();
  return fmt::format("unknown policy {}{}; known are {}", QuoteForMessage(name),
                     SuggestName(name, names), fmt::join(names, ", "));
}

const PolicyDescriptor* FindPolicy(std::string_view name) {
  for (const PolicyDescriptor* policy : AllPolicies()) {
    if (policy->name == name) return policy;
  }
  return nullptr;
}

std::string DescribeUsage(const PolicyDescriptor& policy) {
  if (policy.parameters.empty()) return std::string(policy.name);
  std::vector<std::string> parts;
  for (const ParameterSpec& parameter : policy.parameters) {
    parts.push_back(fmt::format("{}={}", parameter.name,
                                parameter.is_required() ? "" : DescribeDefault(parameter)));
  }
  return fmt::format("{}({})", policy.name, fmt::join(parts, ","));
}

std::string DescribePolicies(absl::Span<const PolicyDescriptor* const> policies) {
  std::string text;
  auto out = std::back_inserter(text);
  for (const PolicyDescriptor* policy : policies) {
    fmt::format_to(out, "{}\n    {}", DescribeUsage(*policy), policy->summary);
    if (!policy->paper.empty()) fmt::format_to(out, " (arXiv:{})", policy->paper);
    text += '\n';
    for (const ParameterSpec& parameter : policy->parameters) {
      fmt::format_to(out, "      {}: {}; {}; {}{}\n", parameter.name, parameter.help,
                     DescribeRange(parameter), parameter.is_required() ? "" : "default ",
                     DescribeDefault(parameter));
    }
  }
  return text;
}

}  // namespace ziggurat
