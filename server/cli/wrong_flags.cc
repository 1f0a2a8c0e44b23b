#include "server/cli/wrong_flags.h"

#include <cstdint>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "compression/edit_distance.h"
#include "server/cli/command_line.h"

namespace ziggurat {
namespace {

/// Without what its checks add behind a colon.
std::string TypeName(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find(':'));
}

bool IsFlagWord(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

/// What a value of this option must be. Options with a type name of their own that stands for a
/// number call it by what it counts.
enum class Kind { kSwitch, kNumber, kInteger };

Kind KindOf(const CLI::Option& option) {
  static const std::set<std::string> kNumbers = {"FLOAT", "SECONDS", "X", "R", "SHARE", "PERCENT"};
  const std::string type = TypeName(option);
  if (option.get_items_expected_max() == 0 || type == "BOOLEAN" || absl::StrContains(type, "|")) {
    return Kind::kSwitch;
  }
  return kNumbers.count(type) > 0 ? Kind::kNumber : Kind::kInteger;
}

/// The words of a switch: those of its type name, "on|off", or else of a flag.
std::string WordsOf(const CLI::Option& option) {
  const std::string type = TypeName(option);
  return absl::StrContains(type, "|") ? absl::StrReplaceAll(type, {{"|", " or "}})
                                      : "true or false";
}

/// The value that is to blame: of a list the first that is none of its kind.
std::string WrongValue(const CLI::Option& option, Kind kind) {
  for (const std::string& value : option.results()) {
    double number = 0;
    int64_t integer = 0;
    const bool is_right = kind == Kind::kNumber ? absl::SimpleAtod(value, &number)
                                                : absl::SimpleAtoi(value, &integer);
    if (!is_right) return value;
  }
  return absl::StrJoin(option.results(), ",");
}

bool IsTooLarge(const std::string& integer) {
  const size_t sign = absl::StartsWith(integer, "-") ? 1 : 0;
  return integer.size() > sign + 9 && absl::c_all_of(integer.substr(sign), absl::ascii_isdigit);
}

std::vector<std::string> FlagNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// "'--modle' is no flag (did you mean '--model'?)".
std::string DescribeUnknownFlag(const std::string& word, const CLI::App& command,
                                const CLI::App& deepest) {
  const std::string flag = word.substr(0, word.find('='));
  const std::vector<std::string> theirs = FlagNames(deepest);
  if (&command != &deepest && absl::c_linear_search(theirs, flag)) {
    return absl::StrCat("'", flag, "' must stand behind '", deepest.get_name(), "'");
  }
  return absl::StrCat("'", flag, "' is no flag", DidYouMean(flag, theirs));
}

/// What one command did not take. A word behind a flag that is none is its value, most likely.
std::vector<std::string> DescribeWordsOf(const CLI::App& command, const CLI::App& deepest) {
  std::vector<std::string> parts;
  bool is_behind_flag = false;
  for (const std::string& word : command.remaining()) {
    if (IsFlagWord(word)) {
      parts.push_back(DescribeUnknownFlag(word, command, deepest));
    } else if (!is_behind_flag) {
      parts.push_back(absl::StrCat("'", word, "' was not expected"));
    }
    is_behind_flag = IsFlagWord(word) && !absl::StrContains(word, "=");
  }
  return parts;
}

bool IsInteger(const CLI::Option& option) {
  static const std::set<std::string> kIntegers = {"INT", "UINT", "N"};
  return kIntegers.count(TypeName(option)) > 0;
}

/// Of a text that CLI11 takes for an integer: why it should not. Empty otherwise.
std::string WhyNotDecimal(const std::string& text, bool is_unsigned) {
  const std::string digits = text.substr(text[0] == '-' ? 1 : 0);
  const bool has_prefix = digits.size() > 1 && absl::StrContains("0+ \t", digits.substr(0, 1));
  if (has_prefix) return absl::StrCat("'", text, "' must be a decimal integer, such as 8");
  const bool is_integer = absl::c_all_of(digits, absl::ascii_isdigit);
  uint64_t value = 0;
  if (is_unsigned && is_integer && !absl::SimpleAtoi(text, &value)) {
    return absl::StrCat("'", text, "' must be an integer from 0 to 18446744073709551615");
  }
  return "";
}

}  // namespace

std::optional<std::string> NearestName(const std::string& word,
                                       const std::vector<std::string>& names) {
  return NearestName(word, names, word.size() / 3);
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& names) {
  const std::optional<std::string> nearest = NearestName(word, names);
  return nearest ? absl::StrCat(" (did you mean '", *nearest, "'?)") : "";
}

std::string DescribeConversion(const CLI::Option& option) {
  const Kind kind = KindOf(option);
  const std::string value =
      absl::StrCat(option.get_name(), ": '", WrongValue(option, kind), "' is no ");
  switch (kind) {
    case Kind::kSwitch:
      return absl::StrCat(value, "switch: must be ", WordsOf(option));
    case Kind::kNumber:
      return absl::StrCat(value, "number: must be one such as 0.5");
    case Kind::kInteger:
      break;
  }
  return absl::StrCat(value, "integer that it takes: must be one such as 8",
                      IsTooLarge(WrongValue(option, kind)) ? ", and not so large" : "");
}

std::string DescribeRepetition(const CLI::Option& option) {
  return absl::StrCat(option.get_name(), " is given ", option.count(),
                      " times: it may be given once");
}

std::optional<std::string> ParseSwitch(const std::string& text) {
  const std::string word = absl::AsciiStrToLower(text);
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return "true";
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (word == no) return "false";
  }
  return std::nullopt;
}

void RefuseOddValues(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (IsInteger(*option)) {
      const bool is_unsigned = TypeName(*option) == "UINT";
      option->check([is_unsigned](const std::string& text) {
        return text.empty() ? "" : WhyNotDecimal(text, is_unsigned);
      });
    } else if (KindOf(*option) == Kind::kSwitch) {
      option->check([words = WordsOf(*option)](const std::string& text) {
        return ParseSwitch(text) ? "" : absl::StrCat("'", text, "' is no switch: must be ", words);
      });
    }
  }
  for (CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    RefuseOddValues(*command);
  }
}

std::string FlagWordWithoutValue(absl::Span<char* const> words) {
  for (const std::string word : words) {
    if (word == "--") break;
    if (absl::StartsWith(word, "--") && absl::EndsWith(word, "=")) {
      return word.substr(0, word.size() - 1);
    }
  }
  return "";
}

std::string DescribeUnknownCommand(const CLI::App& app, absl::Span<char* const> words) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty() || words.empty() || words[0][0] == '-') return "";
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    if (command->get_name() == words[0]) return DescribeUnknownCommand(*command, words.subspan(1));
    names.push_back(command->get_name());
  }
  return absl::StrCat(FullName(app), ": '", words[0], "' is no command",
                      DidYouMean(words[0], names), "; `", FullName(app), " --help` lists them");
}

std::string DescribeUnknownWords(const CLI::App& app) {
  const CLI::App& deepest = DeepestParsed(app);
  std::vector<std::string> parts;
  for (const CLI::App* command = &app;; command = command->get_subcommands().front()) {
    for (std::string& part : DescribeWordsOf(*command, deepest)) parts.push_back(std::move(part));
    if (command == &deepest) break;
  }
  if (parts.empty()) return "";
  return absl::StrCat(FullName(deepest), ": ", absl::StrJoin(parts, "; "), "; `", FullName(deepest),
                      " --help` lists what is");
}

}  // namespace ziggurat
