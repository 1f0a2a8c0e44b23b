#include "compression/policy_descriptor.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "compression/layer_plan.h"

namespace ziggurat {
namespace {

std::string FormatValue(const ParameterSpec& parameter, const PolicyArguments::Value& value) {
  if (std::holds_alternative<PolicyArguments::Word>(value)) return std::string(parameter.word);
  if (const double* real = std::get_if<double>(&value)) return FormatNumber(*real);
  if (const auto* groups = std::get_if<std::shared_ptr<const PodGroups>>(&value)) {
    return (*groups)->name;
  }
  const int64_t integer = std::get<int64_t>(value);
  if (parameter.type == ParameterType::kChoice) return std::string(parameter.choices[integer]);
  return std::to_string(integer);
}

std::string DescribeNumbers(const ParameterSpec& parameter) {
  const char* kind = parameter.type == ParameterType::kReal ? "a number"
                     : parameter.odd                        ? "an odd integer"
                                                            : "an integer";
  return fmt::format("{} from {} to {}", kind, FormatNumber(parameter.minimum),
                     FormatNumber(parameter.maximum));
}

}  // namespace

PolicyArguments::PolicyArguments(const PolicyDescriptor& descriptor, std::vector<Value> values)
    : descriptor_(&descriptor), values_(std::move(values)) {}

size_t PolicyArguments::Find(std::string_view name, ParameterType type) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    const ParameterSpec& parameter = descriptor_->parameters[i];
    if (parameter.name == name && parameter.type == type) return i;
  }
  std::fprintf(stderr, "policy %s reads a parameter %s that it does not declare\n",
               std::string(descriptor_->name).c_str(), std::string(name).c_str());
  std::abort();
}

int64_t PolicyArguments::Integer(std::string_view name) const {
  return std::get<int64_t>(values_[Find(name, ParameterType::kInteger)]);
}

double PolicyArguments::Real(std::string_view name) const {
  return std::get<double>(values_[Find(name, ParameterType::kReal)]);
}

size_t PolicyArguments::Choice(std::string_view name) const {
  return static_cast<size_t>(std::get<int64_t>(values_[Find(name, ParameterType::kChoice)]));
}

std::shared_ptr<const PodGroups> PolicyArguments::Groups(std::string_view name) const {
  const Value& value = values_[Find(name, ParameterType::kPodGroups)];
  return std::get<std::shared_ptr<const PodGroups>>(value);
}

std::optional<int64_t> PolicyArguments::IntegerOrWord(std::string_view name) const {
  const auto* value = std::get_if<int64_t>(&values_[Find(name, ParameterType::kInteger)]);
  return value == nullptr ? std::nullopt : std::optional<int64_t>(*value);
}

std::optional<double> PolicyArguments::RealOrWord(std::string_view name) const {
  const auto* value = std::get_if<double>(&values_[Find(name, ParameterType::kReal)]);
  return value == nullptr ? std::nullopt : std::optional<double>(*value);
}

bool PolicyArguments::Applies(const ParameterSpec& parameter) const {
  return !parameter.only_with.has_value() ||
         Choice(parameter.only_with->parameter) == parameter.only_with->choice;
}

bool PolicyArguments::IsDefault(size_t index) const {
  const std::optional<double> by_default = descriptor_->parameters[index].default_value;
  if (const auto* real = std::get_if<double>(&values_[index])) return by_default == *real;
  const auto* integer = std::get_if<int64_t>(&values_[index]);
  return integer != nullptr && by_default == static_cast<double>(*integer);
}

PolicyArguments PolicyArguments::WithChoice(std::string_view name, size_t choice) const {
  PolicyArguments arguments = *this;
  arguments.values_[Find(name, ParameterType::kChoice)] = static_cast<int64_t>(choice);
  return arguments;
}

std::string PolicyArguments::ToString() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < values_.size(); ++i) {
    const ParameterSpec& parameter = descriptor_->parameters[i];
    if (!Applies(parameter)) continue;
    parts.push_back(fmt::format("{}={}", parameter.name, FormatValue(parameter, values_[i])));
  }
  if (parts.empty()) return std::string(descriptor_->name);
  return fmt::format("{}({})", descriptor_->name, fmt::join(parts, ","));
}

CachePlan DescribedPolicy::Plan(const PolicyContext& context, const SequenceLimits& limits) const {
  CachePlan plan = PlanFull(context, limits);
  Apply(context, limits, &plan);
  return plan;
}

std::string DescribeRange(const ParameterSpec& parameter) {
  if (parameter.type == ParameterType::kPodGroups) return "the name of loaded groups";
  if (parameter.type == ParameterType::kChoice) {
    return fmt::format("{}", fmt::join(parameter.choices, " or "));
  }
  const std::string numbers = DescribeNumbers(parameter);
  return parameter.word.empty() ? numbers : fmt::format("{} or {}", parameter.word, numbers);
}

std::string DescribeDefault(const ParameterSpec& parameter) {
  if (parameter.is_required()) return "required";
  if (!parameter.default_value.has_value()) return std::string(parameter.word);
  if (parameter.type == ParameterType::kChoice) {
    return std::string(parameter.choices[static_cast<size_t>(*parameter.default_value)]);
  }
  return FormatNumber(*parameter.default_value);
}

std::string FormatNumber(double value) {
  char buffer[32];
  // Integral values are written out ("16777216", not "1.6777216e+07").
  const bool integral = value >= -1e15 && value <= 1e15 && value == static_cast<int64_t>(value);
  const std::to_chars_result result =
      integral ? std::to_chars(buffer, buffer + sizeof(buffer), static_cast<int64_t>(value))
               : std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

}  // namespace ziggurat
