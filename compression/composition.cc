#include "compression/composition.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace ziggurat {
namespace {

absl::Status Refuse(std::string_view first, std::string_view second) {
  const std::string pair = fmt::format("{}+{}", first, second);
  if (first == second) {
    return absl::InvalidArgumentError(pair + " names the same policy twice");
  }
  if (first == "full" || second == "full") {
    const std::string_view other = first == "full" ? second : first;
    return absl::InvalidArgumentError(fmt::format(
        "{0} is the same as {1}, since full adds nothing: write {1} alone", pair, other));
  }
  return absl::InvalidArgumentError(
      pair + " cannot be composed: both decide which tokens every layer keeps, and only one can");
}

}  // namespace

absl::StatusOr<ComposedTerm> ComposePolicies(const ComposedTerm& first,
                                             const ComposedTerm& second) {
  // The same policy twice never means anything, whatever it composes with.
  if (first.descriptor != second.descriptor) {
    for (const ComposedTerm* term : {&second, &first}) {
      if (term->descriptor->compose == nullptr) continue;
      absl::StatusOr<std::shared_ptr<const Policy>> policy =
          term->descriptor->compose(first.policy, second.policy);
      if (!policy.ok()) return policy.status();
      return ComposedTerm{term->descriptor, *std::move(policy)};
    }
  }
  return Refuse(first.descriptor->name, second.descriptor->name);
}

}  // namespace ziggurat
