#include "compression/policy_descriptor.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace ziggurat {
namespace {

std::string FormatValue(const ParameterSpec& parameter, const PolicyArguments::Value& value) {
  if (const double* real = std::get_if<double>(&value)) return FormatNumber(*real);
  const int64_t integer = std::get<int64_t>(value);
  if (parameter.type == ParameterType::kChoice) return std::string(parameter.choices[integer]);
  return std::to_string(integer);
}

}  // namespace

PolicyArguments::PolicyArguments(const PolicyDescriptor& descriptor, std::vector<Value> values)
    : descriptor_(&descriptor), values_(std::move(values)) {}

const PolicyArguments::Value& PolicyArguments::Get(std::string_view name,
                                                   ParameterType type) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    const ParameterSpec& parameter = descriptor_->parameters[i];
    if (parameter.name == name && parameter.type == type) return values_[i];
  }
  std::fprintf(stderr, "policy %s reads a parameter %s that it does not declare\n",
               std::string(descriptor_->name).c_str(), std::string(name).c_str());
  std::abort();
}

int64_t PolicyArguments::Integer(std::string_view name) const {
  return std::get<int64_t>(Get(name, ParameterType::kInteger));
}

double PolicyArguments::Real(std::string_view name) const {
  return std::get<double>(Get(name, ParameterType::kReal));
}

size_t PolicyArguments::Choice(std::string_view name) const {
  return static_cast<size_t>(std::get<int64_t>(Get(name, ParameterType::kChoice)));
}

std::string PolicyArguments::ToString() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < values_.size(); ++i) {
    const ParameterSpec& parameter = descriptor_->parameters[i];
    parts.push_back(fmt::format("{}={}", parameter.name, FormatValue(parameter, values_[i])));
  }
  if (parts.empty()) return std::string(descriptor_->name);
  return fmt::format("{}({})", descriptor_->name, fmt::join(parts, ","));
}

std::string DescribeRange(const ParameterSpec& parameter) {
  if (parameter.type == ParameterType::kChoice)
    return fmt::format("{}", fmt::join(parameter.choices, " or "));
  const char* kind = parameter.type == ParameterType::kReal ? "a number"
                     : parameter.odd                        ? "an odd integer"
                                                            : "an integer";
  return fmt::format("{} from {} to {}", kind, FormatNumber(parameter.minimum),
                     FormatNumber(parameter.maximum));
}

std::string DescribeDefault(const ParameterSpec& parameter) {
  if (!parameter.default_value.has_value()) return "required";
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
