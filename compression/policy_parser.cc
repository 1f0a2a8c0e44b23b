// From the syntax of a policy text to a policy: names are looked up, values checked, defaults
// filled in, terms composed.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "compression/composition.h"
#include "compression/policy.h"
#include "compression/policy_syntax.h"
#include "compression/registry.h"

namespace ziggurat {
namespace {

using Value = PolicyArguments::Value;

/// Levenshtein distance, letters in either case alike.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = absl::ascii_tolower(a[i - 1]) == absl::ascii_tolower(b[j - 1]);
      const size_t substituted = diagonal + (same ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({substituted, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

/// " (did you mean 'snapkv'?)" where a name is near enough to be a slip, else "".
std::string SuggestName(std::string_view found, absl::Span<const std::string_view> names) {
  std::string_view nearest;
  size_t distance = std::max<size_t>(2, found.size() / 3) + 1;
  for (std::string_view name : names) {
    const size_t d = EditDistance(found, name);
    if (d < distance && d < name.size()) {
      nearest = name;
      distance = d;
    }
  }
  return nearest.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", nearest);
}

/// Parses one policy of a text; keeps the text for the messages.
class TermBinder {
 public:
  TermBinder(std::string_view text, const TermSyntax& term) : text_(text), term_(term) {}

  absl::StatusOr<ComposedTerm> Bind() {
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
    if (policy_->check != nullptr) {
      if (std::optional<ArgumentError> error = policy_->check(arguments)) return Mismatch(*error);
    }
    return ComposedTerm{policy_, policy_->make(arguments)};
  }

 private:
  absl::Status UnknownPolicy() const {
    std::vector<std::string_view> names;
    for (const PolicyDescriptor* policy : AllPolicies()) names.push_back(policy->name);
    return PolicyTextError(
        text_, term_.column,
        fmt::format("unknown policy {}{}; known are {}", QuoteForMessage(term_.name),
                    SuggestName(term_.name, names), fmt::join(names, ", ")));
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
                                  parameter.default_value.has_value() ? "default " : "",
                                  DescribeDefault(parameter)));
    }
    return fmt::format("{} takes {}", policy_->name, fmt::join(parts, ", "));
  }

  absl::StatusOr<Value> ReadValue(const ParameterSpec& parameter,
                                  const ArgumentSyntax& argument) const {
    std::optional<Value> value;
    switch (parameter.type) {
      case ParameterType::kInteger:
        value = ReadInteger(parameter, argument.value);
        break;
      case ParameterType::kReal:
        value = ReadReal(parameter, argument.value);
        break;
      case ParameterType::kChoice:
        value = ReadChoice(parameter, argument.value);
        break;
    }
    if (value.has_value()) return *value;
    return PolicyTextError(
        text_, argument.value_column,
        fmt::format("{}: {}={} is not allowed: it takes {}", policy_->name, parameter.name,
                    QuoteForMessage(argument.value), DescribeRange(parameter)));
  }

  static std::optional<Value> ReadInteger(const ParameterSpec& parameter, std::string_view text) {
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

  static std::optional<Value> ReadReal(const ParameterSpec& parameter, std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    // Written so that a NaN is refused.
    if (!(value >= parameter.minimum && value <= parameter.maximum)) return std::nullopt;
    return Value(value);
  }

  static std::optional<Value> ReadChoice(const ParameterSpec& parameter, std::string_view text) {
    for (size_t i = 0; i < parameter.choices.size(); ++i) {
      if (parameter.choices[i] == text) return Value(static_cast<int64_t>(i));
    }
    return std::nullopt;
  }

  absl::Status FillDefaults(std::vector<Value>* values) const {
    for (size_t i = 0; i < values->size(); ++i) {
      if (given_[i] != nullptr) continue;
      const ParameterSpec& parameter = policy_->parameters[i];
      if (!parameter.default_value.has_value()) {
        return PolicyTextError(text_, term_.column,
                               fmt::format("{} needs a value of {}: {}", policy_->name,
                                           parameter.name, DescribeRange(parameter)));
      }
      if (parameter.type == ParameterType::kReal) {
        (*values)[i] = *parameter.default_value;
      } else {
        (*values)[i] = static_cast<int64_t>(*parameter.default_value);
      }
    }
    return absl::OkStatus();
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
  const PolicyDescriptor* policy_ = nullptr;
  std::vector<const ArgumentSyntax*> given_;  // of each parameter; nullptr: not given
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Policy>> ParsePolicy(std::string_view text,
                                                          const PolicyResources& /*resources*/) {
  absl::StatusOr<std::vector<TermSyntax>> terms = ParsePolicySyntax(text);
  if (!terms.ok()) return terms.status();
  std::optional<ComposedTerm> composed;
  for (const TermSyntax& term : *terms) {
    absl::StatusOr<ComposedTerm> bound = TermBinder(text, term).Bind();
    if (!bound.ok()) return bound.status();
    if (!composed.has_value()) {
      composed = *std::move(bound);
      continue;
    }
    absl::StatusOr<ComposedTerm> pair = ComposePolicies(*composed, *bound);
    if (!pair.ok()) {
      return PolicyTextError(text, term.column, std::string(pair.status().message()));
    }
    composed = *std::move(pair);
  }
  return composed->policy;
}

}  // namespace ziggurat
