#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/character_sets.h"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ziggurat {
namespace {

struct NamedSet {
  absl::string_view name;
  absl::string_view members;
};

/// [:name:]. PCRE2's own POSIX classes have other members beyond ASCII.
constexpr std::array<NamedSet, 12> kPosixSets = {{{"alnum", "\\p{Alphabetic}\\p{Nd}"},
                                                  {"alpha", "\\p{Alphabetic}"},
                                                  {"ascii", "\\x{00}-\\x{7F}"},
                                                  {"blank", "\\t\\p{Zs}"},
                                                  {"cntrl", "\\p{Cc}"},
                                                  {"digit", "\\p{Nd}"},
                                                  {"lower", "\\p{Lowercase}"},
                                                  {"punct", "\\p{P}\\p{S}"},
                                                  {"space", "\\p{White_Space}"},
                                                  {"upper", "\\p{Uppercase}"},
                                                  {"word", kWordMembers},
                                                  {"xdigit", kHexDigitMembers}}};

constexpr std::array<absl::string_view, 38> kCategories = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "LC", "Ll", "Lm", "Lo", "Lt", "Lu",
    "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf",
    "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

/// Case, spaces, hyphens and underscores do not matter in names of properties.
std::string NormalizedName(absl::string_view name) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(name, {{" ", ""}, {"-", ""}, {"_", ""}}));
}

bool IsKnownToPcre2(absl::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

}  // namespace

std::optional<std::string> PosixSetMembers(absl::string_view name) {
  for (const NamedSet& set : kPosixSets) {
    if (set.name == name) return std::string(set.members);
  }
  return std::nullopt;
}

std::optional<std::string> PropertyMembers(absl::string_view name) {
  const std::string normalized = NormalizedName(name);
  if (normalized == "punct") return "\\p{P}";     // the category, unlike [:punct:]
  if (normalized == "word") return std::nullopt;  // outside classes it is not what it is inside
  if (std::optional<std::string> members = PosixSetMembers(normalized)) return members;
  for (const absl::string_view category : kCategories) {
    if (absl::AsciiStrToLower(category) == normalized) return absl::StrCat("\\p{", category, "}");
  }
  if (!std::all_of(normalized.begin(), normalized.end(), absl::ascii_isalnum)) return std::nullopt;
  // \p{Han} is the Script property in Oniguruma, but Script_Extensions in PCRE2.
  for (const absl::string_view kind : {"sc:", ""}) {
    std::string property = absl::StrCat("\\p{", kind, normalized, "}");
    if (IsKnownToPcre2(property)) return property;
  }
  return std::nullopt;
}

bool IsOneProperty(absl::string_view members) {
  return members.substr(0, 3) == "\\p{" && members.find('}') + 1 == members.size();
}

}  // namespace ziggurat
