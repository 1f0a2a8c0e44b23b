#include "model/tokenizer/metaspace.h"

#include "absl/strings/str_cat.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

absl::StatusOr<Metaspace> ParseMetaspace(const nlohmann::json& component) {
  Metaspace metaspace;
  const absl::StatusOr<std::string> replacement =
      StringMember(component, "replacement", metaspace.replacement, "Metaspace");
  if (!replacement.ok()) return replacement.status();
  size_t end = 0;
  if (!replacement->empty()) ReadUtf8(*replacement, &end);
  if (replacement->empty() || end != replacement->size()) {
    return absl::InvalidArgumentError("\"replacement\" of Metaspace must be one character");
  }
  metaspace.replacement = *replacement;

  // Files of before 2023 say only whether there is a prefix.
  const absl::StatusOr<bool> prefix = BoolMember(component, "add_prefix_space", true, "Metaspace");
  if (!prefix.ok()) return prefix.status();
  const absl::StatusOr<std::string> scheme =
      StringMember(component, "prepend_scheme", *prefix ? "always" : "never", "Metaspace");
  if (!scheme.ok()) return scheme.status();
  if (*scheme == "always") {
    metaspace.prepend = Metaspace::Prepend::kAlways;
  } else if (*scheme == "first") {
    metaspace.prepend = Metaspace::Prepend::kFirst;
  } else if (*scheme == "never") {
    metaspace.prepend = Metaspace::Prepend::kNever;
  } else {
    return UnsupportedComponent("prepend_scheme of Metaspace", *scheme, "always, first, never");
  }
  // Its opposite, true and "never", is what older versions of the original wrote themselves.
  if (!*prefix && metaspace.prepend != Metaspace::Prepend::kNever) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"prepend_scheme\" of Metaspace is '", *scheme,
        "', which \"add_prefix_space\": false contradicts: only 'never' goes with it"));
  }
  return metaspace;
}

}  // namespace ziggurat
