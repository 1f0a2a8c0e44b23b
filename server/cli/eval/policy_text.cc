#include "server/cli/eval/policy_text.h"

#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "compression/policy_syntax.h"
#include "compression/registry.h"
#include "model/absl_view.h"

namespace ziggurat::eval {
namespace {

/// A text that is no policy is a name.
std::vector<TermSyntax> Parse(std::string_view text) {
  absl::StatusOr<std::vector<TermSyntax>> terms = ParsePolicySyntax(text);
  if (terms.ok()) return *std::move(terms);
  return {TermSyntax{.name = text, .column = 1, .has_parentheses = false, .arguments = {}}};
}

/// Says how much is kept; of a policy that only the daemon knows nothing does.
bool IsAmount(const TermSyntax& term, const ArgumentSyntax& argument) {
  const PolicyDescriptor* policy = FindPolicy(term.name);
  return policy != nullptr &&
         absl::c_any_of(policy->parameters, [&](const ParameterSpec& parameter) {
           return parameter.is_amount && parameter.name == argument.name;
         });
}

// Numbers of the amounts, in order.
std::vector<double> Amounts(std::string_view text) {
  std::vector<double> amounts;
  for (const TermSyntax& term : Parse(text)) {
    for (const ArgumentSyntax& argument : term.arguments) {
      double number = 0;
      if (IsAmount(term, argument) && absl::SimpleAtod(AbslView(argument.value), &number)) {
        amounts.push_back(number);
      }
    }
  }
  return amounts;
}

}  // namespace

std::string PolicyFamily(std::string_view text) {
  std::string family;
  for (const TermSyntax& term : Parse(text)) {
    if (!family.empty()) family += '+';
    family += term.name;
  }
  return family;
}

std::string PolicyVariant(std::string_view text) {
  std::string variant;
  for (const TermSyntax& term : Parse(text)) {
    if (!variant.empty()) variant += '+';
    variant += term.name;
    std::string parameters;
    for (const ArgumentSyntax& argument : term.arguments) {
      if (IsAmount(term, argument)) continue;
      if (!parameters.empty()) parameters += ',';
      parameters.append(argument.name).append("=").append(argument.value);
    }
    if (!parameters.empty()) variant.append("(").append(parameters).append(")");
  }
  return variant;
}

bool PolicyBefore(std::string_view a, std::string_view b) {
  const auto key = [](std::string_view text) {
    return std::tuple(text != "full", PolicyFamily(text), PolicyVariant(text), Amounts(text),
                      std::string(text));
  };
  return key(a) < key(b);
}

std::string PolicySlug(std::string_view text) {
  constexpr size_t kMaxLength = 100;
  std::string slug;
  for (const char c : text) {
    if (slug.size() == kMaxLength) break;
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      slug += absl::ascii_tolower(static_cast<unsigned char>(c));
    } else if (c == '.') {
      slug += '_';  // 0.9 is not 9
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "policy" : slug;
}

}  // namespace ziggurat::eval
