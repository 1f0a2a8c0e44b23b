// From the syntax of a policy text to a policy: names are looked up, values checked, defaults
// filled in, terms composed.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compression/composition.h"
#include "compression/composition_rules.h"
#include "compression/edit_distance.h"
#include "compression/parameter_value.h"
#include "compression/policy.h"
#include "compression/policy_syntax.h"
#include "compression/registry.h"

namespace ziggurat {
namespace {

using Value = PolicyArguments::Value;

/// Parses one policy of a text; keeps the text for the messages.
class TermBinder {
 public:
  TermBinder(std::string_view text, const TermSyntax& term, const PolicyResources& resources)
      : text_(text), term_(term), resources_(resources) {}

  absl::StatusOr<std::shared_ptr<const DescribedPolicy>> Bind() {
    policy_ = FindPolicy(term_.name);
    if (policy_ == nullptr) return UnknownPolicy();
    given_.assign(policy_->parameters.size(), nullptr);
    std::vector<Value> values(policy_->parameters.size());
    for (const ArgumentSyntax& argument : term_.arguments) {
      absl::StatusOr<size_t> index = FindParameter(argument);
      if (!index.ok()) return index.status();
      absl::StatusOr<Value> value = ReadValue(policy_->parameters[*index], argument);
      if (!value.ok()) return value.status();
      given_[*index] = &argument;
      values[*index] = *value;
    }
    if (absl::Status status = FillDefaults(&values); !status.ok()) return status;
    const PolicyArguments arguments(*policy_, std::move(values));
    if (absl::Status status = CheckConditions(arguments); !status.ok()) return status;
    if (policy_->check != nullptr) {
      if (std::optional<ArgumentError> error = policy_->check(arguments)) return Mismatch(*error);
    }
    return policy_->make(arguments);
  }

 private:
  absl::Status UnknownPolicy() const {
    return PolicyTextError(text_, term_.column, DescribeUnknownPolicy(term_.name));
  }

  absl::StatusOr<size_t> FindParameter(const ArgumentSyntax& argument) const {
    std::vector<std::string_view> names;
    for (size_t i = 0; i < policy_->parameters.size(); ++i) {
      if (policy_->parameters[i].name != argument.name) {
        names.push_back(policy_->parameters[i].name);
        continue;
      }
      if (given_[i] == nullptr) return i;
      return PolicyTextError(text_, argument.name_column,
                             fmt::format("parameter '{}' is given twice; first in column {}",
                                         argument.name, given_[i]->name_column));
    }
    return PolicyTextError(
        text_, argument.name_column,
        fmt::format("unknown parameter {} of {}{}; {}", QuoteForMessage(argument.name),
                    policy_->name, SuggestName(argument.name, names), DescribeParameters()));
  }

  std::string DescribeParameters() const {
    if (policy_->parameters.empty()) return fmt::format("{} takes no parameters", policy_->name);
    std::vector<std::string> parts;
    for (const ParameterSpec& parameter : policy_->parameters) {
      parts.push_back(fmt::format("{} ({}, {}{})", parameter.name, DescribeRange(parameter),
                                  parameter.is_required() ? "" : "default ",
                                  DescribeDefault(parameter)));
    }
    return fmt::format("{} takes {}", policy_->name, fmt::join(parts, ", "));
  }

  absl::StatusOr<Value> ReadValue(const ParameterSpec& parameter,
                                  const ArgumentSyntax& argument) const {
    if (std::optional<Value> value = ReadParameter(parameter, argument.value, resources_)) {
      return *std::move(value);
    }
    return PolicyTextError(
        text_, argument.value_column,
        fmt::format("{}: {}={} is not allowed: it takes {}{}", policy_->name, parameter.name,
                    QuoteForMessage(argument.value), DescribeRange(parameter),
                    parameter.type == ParameterType::kPodGroups ? DescribeLoadedGroups() : ""));
  }

  std::string DescribeLoadedGroups() const {
    if (resources_.pod_groups.empty()) {
      return "; none was loaded: start the daemon with --pod-groups NAME=FILE";
    }
    std::vector<std::string_view> names;
    for (const auto& groups : resources_.pod_groups) names.push_back(groups->name);
    return fmt::format("; loaded are {}", fmt::join(names, ", "));
  }

  absl::Status FillDefaults(std::vector<Value>* values) const {
    for (size_t i = 0; i < values->size(); ++i) {
      if (given_[i] != nullptr) continue;
      const ParameterSpec& parameter = policy_->parameters[i];
      if (parameter.is_required()) {
        return PolicyTextError(
            text_, term_.column,
            fmt::format("{} needs a value of {}: {}{}", policy_->name, parameter.name,
                        DescribeRange(parameter),
                        parameter.type == ParameterType::kPodGroups ? DescribeLoadedGroups() : ""));
      }
      (*values)[i] = DefaultOf(parameter);
    }
    return absl::OkStatus();
  }

  /// Refuses what was given although another parameter's value leaves it without meaning, unless it
  /// says what would be said anyway: a whole list of parameters may be copied.
  absl::Status CheckConditions(const PolicyArguments& arguments) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const ParameterSpec& parameter = policy_->parameters[i];
      if (given_[i] == nullptr || arguments.Applies(parameter) || arguments.IsDefault(i)) continue;
      const auto& [other, choice] = *parameter.only_with;
      return PolicyTextError(
          text_, given_[i]->name_column,
          fmt::format("{}: {} means something only with {}={}", policy_->name, parameter.name,
                      other, FindParameterSpec(other).choices[choice]));
    }
    return absl::OkStatus();
  }

  const ParameterSpec& FindParameterSpec(std::string_view name) const {
    return *std::find_if(policy_->parameters.begin(), policy_->parameters.end(),
                         [&](const ParameterSpec& parameter) { return parameter.name == name; });
  }

  absl::Status Mismatch(const ArgumentError& error) const {
    size_t column = term_.column;
    for (const ArgumentSyntax* argument : given_) {
      if (argument != nullptr && argument->name == error.parameter) column = argument->value_column;
    }
    return PolicyTextError(text_, column, fmt::format("{}: {}", policy_->name, error.message));
  }

  std::string_view text_;
  const TermSyntax& term_;
  const PolicyResources& resources_;
  const PolicyDescriptor* policy_ = nullptr;
  std::vector<const ArgumentSyntax*> given_;  // of each parameter; nullptr: not given
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Policy>> ParsePolicy(std::string_view text,
                                                          const PolicyResources& resources) {
  absl::StatusOr<std::vector<TermSyntax>> terms = ParsePolicySyntax(text);
  if (!terms.ok()) return terms.status();
  std::vector<std::shared_ptr<const DescribedPolicy>> policies;
  for (const TermSyntax& term : *terms) {
    absl::StatusOr<std::shared_ptr<const DescribedPolicy>> policy =
        TermBinder(text, term, resources).Bind();
    if (!policy.ok()) return policy.status();
    for (const auto& other : policies) {
      if (absl::Status status = CheckComposable(*other, **policy); !status.ok()) {
        return PolicyTextError(text, term.column, std::string(status.message()));
      }
    }
    policies.push_back(*std::move(policy));
  }
  return ComposePolicies(std::move(policies));
}

}  // namespace ziggurat
