// What a policy says about itself: its name, its parameters with their ranges, and how it is made
// of them. A descriptor is all that the parser, the help texts and the registry know of a policy,
// so that a new one is one new file in policies/ (docs/policies.md, "Adding a policy").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compression/policy.h"

namespace ziggurat {

enum class ParameterType : uint8_t { kInteger, kReal, kChoice };

/// One parameter. Literal type: descriptors are constants that need no start-up code.
struct ParameterSpec {
  std::string_view name;
  std::string_view help;  ///< a phrase without a full stop
  ParameterType type = ParameterType::kInteger;
  bool odd = false;                                 ///< integers only
  double minimum = 0;                               ///< inclusive; numbers only
  double maximum = 0;                               ///< inclusive; numbers only
  absl::Span<const std::string_view> choices = {};  ///< choices only
  /// A number, or the index of a choice; nullopt: the parameter must be given.
  std::optional<double> default_value = std::nullopt;
};

struct PolicyDescriptor;

/// The validated arguments of one policy, defaults filled in. A value.
class PolicyArguments {
 public:
  /// An integer or the index of a choice, or a real number.
  using Value = std::variant<int64_t, double>;

  /// `values` are in the order of descriptor.parameters, each of its parameter's type and range.
  PolicyArguments(const PolicyDescriptor& descriptor, std::vector<Value> values);

  /// Each aborts if the policy has no such parameter of that type.
  int64_t Integer(std::string_view name) const;
  double Real(std::string_view name) const;
  size_t Choice(std::string_view name) const;  ///< index in ParameterSpec::choices

  /// `name(param=value,...)` with every parameter; `name` alone where there are none.
  std::string ToString() const;
  const PolicyDescriptor& descriptor() const { return *descriptor_; }

 private:
  const Value& Get(std::string_view name, ParameterType type) const;

  const PolicyDescriptor* descriptor_;
  std::vector<Value> values_;
};

/// An argument that is in range but does not go with the others.
struct ArgumentError {
  std::string_view parameter;  ///< the one to point at
  std::string message;         ///< names the values found and what is allowed
};

struct PolicyDescriptor {
  std::string_view name;        ///< as in the text form: lower case
  std::string_view summary;     ///< one line for --help: what is kept
  std::string_view paper = {};  ///< arXiv id, e.g. "2404.14469"; empty where there is none
  absl::Span<const ParameterSpec> parameters = {};

  /// Checks between parameters; nullptr: none.
  std::optional<ArgumentError> (*check)(const PolicyArguments&) = nullptr;
  /// Never fails: the arguments are valid.
  std::shared_ptr<const Policy> (*make)(const PolicyArguments&) = nullptr;

  /// Builds `first+second`, one of which is this policy, or refuses with the reason
  /// (INVALID_ARGUMENT). nullptr: this policy composes with none (compression/composition.h).
  absl::StatusOr<std::shared_ptr<const Policy>> (*compose)(
      const std::shared_ptr<const Policy>& first,
      const std::shared_ptr<const Policy>& second) = nullptr;
};

/// What every registered policy shares: its name and its canonical text.
class DescribedPolicy : public Policy {
 public:
  explicit DescribedPolicy(const PolicyArguments& arguments)
      : name_(arguments.descriptor().name), text_(arguments.ToString()) {}
  std::string ToString() const final { return text_; }
  std::string_view name() const final { return name_; }

 private:
  std::string_view name_;
  std::string text_;
};

/// "an odd integer from 1 to 127", "avg or max".
std::string DescribeRange(const ParameterSpec& parameter);
/// "32", "avg"; "required" where there is no default.
std::string DescribeDefault(const ParameterSpec& parameter);
/// The canonical text of a number: shortest form that reads back to the same value.
std::string FormatNumber(double value);

}  // namespace ziggurat
