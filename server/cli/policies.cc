// `ziggurat policies`: which compression policies there are, and what their parameters mean.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "compression/registry.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat policies
  ziggurat policies pyramidkv kivi

A policy is written as it stands there, with what differs from the defaults; '+' joins some:
  ziggurat generate "Once upon a time" --compression 'pyramidkv(budget=512)+kivi(bits=4)'

docs/policies.md explains them, docs/adding_a_policy.md how to add one.)";

int Describe(const std::vector<std::string>& names) {
  std::vector<const PolicyDescriptor*> chosen;
  for (const std::string& name : names) {
    const PolicyDescriptor* policy = FindPolicy(name);
    if (policy == nullptr) {
      return SayFailure("policies", DescribeUnknownPolicy(name), kExitUsage);
    }
    chosen.push_back(policy);
  }
  std::printf("%s", (names.empty() ? DescribePolicies() : DescribePolicies(chosen)).c_str());
  return kExitOk;
}

}  // namespace

Command AddPolicies(CLI::App& app) {
  CLI::App* policies =
      app.add_subcommand("policies", "List the compression policies and their parameters");
  auto names = std::make_shared<std::vector<std::string>>();
  policies->add_option("names", *names, "Which ones (default: all)")->type_name("NAME");
  policies->footer(kExamples);
  return {policies, [names] { return Describe(*names); }};
}

}  // namespace ziggurat
