#include "compression/parameter_value.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace ziggurat {
namespace {

using Value = PolicyArguments::Value;

std::optional<Value> ReadInteger(const ParameterSpec& parameter, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  // The bounds are far below 2^53, where doubles stop being exact.
  if (static_cast<double>(value) < parameter.minimum ||
      static_cast<double>(value) > parameter.maximum || (parameter.odd && value % 2 == 0)) {
    return std::nullopt;
  }
  return Value(value);
}

std::optional<Value> ReadReal(const ParameterSpec& parameter, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  // Written so that a NaN is refused.
  if (!(value >= parameter.minimum && value <= parameter.maximum)) return std::nullopt;
  return Value(value);
}

std::optional<Value> ReadChoice(const ParameterSpec& parameter, std::string_view text) {
  for (size_t i = 0; i < parameter.choices.size(); ++i) {
    if (parameter.choices[i] == text) return Value(static_cast<int64_t>(i));
  }
  return std::nullopt;
}

std::optional<Value> ReadPodGroups(std::string_view text, const PolicyResources& resources) {
  for (const auto& groups : resources.pod_groups) {
    if (groups->name == text) return Value(groups);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> ReadParameter(const ParameterSpec& parameter, std::string_view text,
                                   const PolicyResources& resources) {
  if (!parameter.word.empty() && parameter.word == text) return Value(PolicyArguments::Word{});
  switch (parameter.type) {
    case ParameterType::kInteger:
      return ReadInteger(parameter, text);
    case ParameterType::kReal:
      return ReadReal(parameter, text);
    case ParameterType::kChoice:
      return ReadChoice(parameter, text);
    case ParameterType::kPodGroups:
      return ReadPodGroups(text, resources);
  }
  return std::nullopt;
}

Value DefaultOf(const ParameterSpec& parameter) {
  if (!parameter.default_value.has_value()) return PolicyArguments::Word{};
  if (parameter.type == ParameterType::kReal) return *parameter.default_value;
  return static_cast<int64_t>(*parameter.default_value);
}

}  // namespace ziggurat
