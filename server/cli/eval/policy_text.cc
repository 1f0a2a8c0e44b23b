#include "server/cli/eval/policy_text.h"

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "compression/policy.h"

namespace ziggurat::eval {
namespace {

constexpr std::array<std::string_view, 7> kAmounts = {"bits",   "budget", "heavy",    "recent",
                                                      "retain", "start",  "threshold"};

struct Term {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> parameters;
};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<Term> Parse(std::string_view text) {
  std::vector<Term> terms;
  // A sign of a number ("1e+3") stands inside parentheses, the one that composes outside.
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != '+' || depth > 0)) continue;
    const std::string_view part = text.substr(begin, i - begin);
    begin = i + 1;
    const size_t open = std::min(part.find('('), part.size());
    Term term{.name = part.substr(0, open), .parameters = {}};
    if (open < part.size()) {
      const size_t close = std::min(part.rfind(')'), part.size());
      for (const std::string_view item :
           Split(part.substr(open + 1, close > open ? close - open - 1 : 0), ',')) {
        const size_t equals = std::min(item.find('='), item.size());
        if (item.empty()) continue;
        term.parameters.emplace_back(item.substr(0, equals),
                                     item.substr(std::min(equals + 1, item.size())));
      }
    }
    terms.push_back(std::move(term));
  }
  return terms;
}

// Numbers of the amounts, in order.
std::vector<double> Amounts(std::string_view text) {
  std::vector<double> amounts;
  for (const Term& term : Parse(text)) {
    for (const auto& [name, value] : term.parameters) {
      double number = 0;
      const bool is_amount = std::find(kAmounts.begin(), kAmounts.end(), name) != kAmounts.end();
      if (is_amount && absl::SimpleAtod(absl::string_view(value.data(), value.size()), &number)) {
        amounts.push_back(number);
      }
    }
  }
  return amounts;
}

}  // namespace

std::string TextOfAnyPrompt(const std::string& text) {
  const absl::StatusOr<std::shared_ptr<const Policy>> policy = ParsePolicy(text);
  return policy.ok() && (*policy)->wants_prompt_text() ? (*policy)->ToString() : "";
}

std::string PolicyFamily(std::string_view text) {
  std::string family;
  for (const Term& term : Parse(text)) {
    if (!family.empty()) family += '+';
    family += term.name;
  }
  return family;
}

std::string PolicyVariant(std::string_view text) {
  std::string variant;
  for (const Term& term : Parse(text)) {
    if (!variant.empty()) variant += '+';
    variant += term.name;
    std::string parameters;
    for (const auto& [name, value] : term.parameters) {
      if (std::find(kAmounts.begin(), kAmounts.end(), name) != kAmounts.end()) continue;
      if (!parameters.empty()) parameters += ',';
      parameters.append(name).append("=").append(value);
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
