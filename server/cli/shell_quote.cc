#include "server/cli/shell_quote.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/printable.h"

namespace ziggurat {

std::string ShellQuoted(const std::string& word) {
  constexpr char kSafe[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  if (Printable(word) != word) {
    const std::string plain = absl::StrReplaceAll(word, {{"\\", "\\\\"}, {"'", "\\'"}});
    return absl::StrCat("$'", Printable(plain), "'");
  }
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace ziggurat
