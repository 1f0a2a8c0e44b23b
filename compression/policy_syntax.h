// The grammar of the policy text form, without any knowledge of policies:
//
//   text     = term { "+" term }
//   term     = name [ "(" [ argument { "," argument } ] ")" ]
//   argument = name "=" value
//   name     = letter or "_", then letters, digits and "_"
//   value    = one or more characters other than space, "(", ")", "," and "="
//
// Space, tab and line ends may stand between any two of these.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// Longer texts are refused unread.
inline constexpr size_t kMaxPolicyTextBytes = 1024;

/// Views into the parsed text; columns are 1-based and count bytes.
struct ArgumentSyntax {
  std::string_view name;
  std::string_view value;
  size_t name_column = 0;
  size_t value_column = 0;
};
struct TermSyntax {
  std::string_view name;
  size_t column = 0;
  bool has_parentheses = false;
  std::vector<ArgumentSyntax> arguments;
};

/// At least one term. INVALID_ARGUMENT as PolicyTextError has it.
absl::StatusOr<std::vector<TermSyntax>> ParsePolicySyntax(std::string_view text);

/// INVALID_ARGUMENT: "compression policy, column N: MESSAGE", then the text and a caret under its
/// column. Bytes that can't be shown become '?', and only the neighbourhood of a long text is
/// shown.
absl::Status PolicyTextError(std::string_view text, size_t column, std::string_view message);

/// `text` in quotes, shortened and made printable, for messages.
std::string QuoteForMessage(std::string_view text);

}  // namespace ziggurat
