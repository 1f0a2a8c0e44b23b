// Policies by their text.
#pragma once

#include <string>
#include <string_view>

namespace ziggurat::eval {

/// A policy of the evaluation.
struct EvalPolicy {
  std::string canonical = {};  ///< with every parameter; what is sent
  std::string name = {};       ///< as it was asked for, without spaces: short
};

/// The names without parameters: "simlayerkv+snapkv". Of a text that is no policy, the text.
std::string PolicyFamily(std::string_view text);
/// The text without the parameters that say how much is kept (ParameterSpec::is_amount): policies
/// of one variant are points of one line.
std::string PolicyVariant(std::string_view text);

/// The order of rows: `full` first, then by family, variant and numbers (budget=64 before
/// budget=256).
bool PolicyBefore(std::string_view a, std::string_view b);

/// The text for a file name: letters, digits and dashes, at most 100.
std::string PolicySlug(std::string_view text);

}  // namespace ziggurat::eval
