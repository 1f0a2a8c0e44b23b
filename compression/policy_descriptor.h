// What a policy says about itself: its name, its parameters with their ranges, how it is made of
// them, and what matters when it is composed. A descriptor is all that the parser, the help texts
// and the registry know of a policy, so that the code of a new one is one new file in policies/,
// unless it needs an edit of its own (docs/adding_a_policy.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "compression/policy.h"
#include "compression/policy_traits.h"

namespace ziggurat {

enum class ParameterType : uint8_t {
  kInteger,
  kReal,
  kChoice,
  kPodGroups,  ///< the name of groups that the daemon has loaded
};

/// Another parameter, a choice, and the value it must have.
struct ParameterCondition {
  std::string_view parameter;
  size_t choice = 0;
};

/// One parameter. Literal type: descriptors are constants that need no start-up code.
struct ParameterSpec {
  std::string_view name;
  std::string_view help;  ///< a phrase without a full stop
  ParameterType type = ParameterType::kInteger;
  /// It says how much is kept: policies that differ in it alone are points of one line in reports.
  bool is_amount = false;
  bool odd = false;                                 ///< integers only
  double minimum = 0;                               ///< inclusive; numbers only
  double maximum = 0;                               ///< inclusive; numbers only
  absl::Span<const std::string_view> choices = {};  ///< choices only
  /// May stand in place of a number ("off"), and is then the default; empty: none.
  std::string_view word = {};
  /// Refused unless another parameter has a certain value, and then not in the canonical text.
  std::optional<ParameterCondition> only_with = std::nullopt;
  /// A number, or the index of a choice; nullopt: `word`, or the parameter must be given.
  std::optional<double> default_value = std::nullopt;

  bool is_required() const { return !default_value.has_value() && word.empty(); }
};

struct PolicyDescriptor;
class DescribedPolicy;

/// The validated arguments of one policy, defaults filled in. A value.
class PolicyArguments {
 public:
  /// ParameterSpec::word.
  struct Word {};
  /// An integer or the index of a choice, a real number, the word, or what a name stands for.
  using Value = std::variant<int64_t, double, Word, std::shared_ptr<const PodGroups>>;

  /// `values` are in the order of descriptor.parameters, each of its parameter's type and range.
  PolicyArguments(const PolicyDescriptor& descriptor, std::vector<Value> values);

  /// Each aborts if the policy has no such parameter of that type, or it is the word.
  int64_t Integer(std::string_view name) const;
  double Real(std::string_view name) const;
  size_t Choice(std::string_view name) const;  ///< index in ParameterSpec::choices
  std::shared_ptr<const PodGroups> Groups(std::string_view name) const;

  /// nullopt: the word.
  std::optional<int64_t> IntegerOrWord(std::string_view name) const;
  std::optional<double> RealOrWord(std::string_view name) const;

  /// Whether a parameter's condition holds (ParameterSpec::only_with).
  bool Applies(const ParameterSpec& parameter) const;
  /// Whether parameter `index` of the descriptor has the number or choice that it has by default.
  bool IsDefault(size_t index) const;
  /// The same arguments but for one choice.
  PolicyArguments WithChoice(std::string_view name, size_t choice) const;

  /// `name(param=value,...)` with every parameter that applies; `name` alone where there are none.
  std::string ToString() const;
  const PolicyDescriptor& descriptor() const { return *descriptor_; }

 private:
  size_t Find(std::string_view name, ParameterType type) const;

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
  std::shared_ptr<const DescribedPolicy> (*make)(const PolicyArguments&) = nullptr;
};

/// What every registered policy shares: its name, its canonical text, its traits, and that it says
/// what it changes of a plan.
class DescribedPolicy : public Policy {
 public:
  explicit DescribedPolicy(const PolicyArguments& arguments)
      : name_(arguments.descriptor().name), text_(arguments.ToString()) {}
  std::string ToString() const final { return text_; }
  std::string_view name() const final { return name_; }

  /// What decides whether it composes with another policy.
  virtual PolicyTraits traits() const = 0;
  /// Makes of a plan the one that this policy wants: of that which keeps everything (`full`), or of
  /// what the policies have made of it that it is composed with (compression/composition.h). Who
  /// decides which tokens every layer keeps has the trait kDropsTokens: only one can.
  virtual void Apply(const PolicyContext& context, const SequenceLimits& limits,
                     CachePlan* plan) const = 0;
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const final;
  /// `ForPrompt`, as a policy that can be composed.
  virtual std::shared_ptr<const DescribedPolicy> Resolve(std::string_view /*text*/) const {
    return nullptr;
  }
  std::shared_ptr<const Policy> ForPrompt(std::string_view text) const final {
    return Resolve(text);
  }

 private:
  std::string_view name_;
  std::string text_;
};

/// What PolicyDescriptor::make is for a policy that needs no more than its arguments.
template <typename P>
std::shared_ptr<const DescribedPolicy> MakePolicy(const PolicyArguments& arguments) {
  return std::make_shared<P>(arguments);
}

/// "an odd integer from 1 to 127", "avg or max", "off or a number from 0 to 1".
std::string DescribeRange(const ParameterSpec& parameter);
/// "32", "avg"; "required" where there is no default.
std::string DescribeDefault(const ParameterSpec& parameter);
/// The canonical text of a number: shortest form that reads back to the same value.
std::string FormatNumber(double value);

}  // namespace ziggurat
