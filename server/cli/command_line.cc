#include "server/cli/command_line.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cli/shell_quote.h"

namespace ziggurat {
namespace {

constexpr char kNewLine[] = " \\\n ";

}  // namespace

std::string FullName(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name()
                           : absl::StrCat(FullName(*parent), " ", command.get_name());
}

const CLI::App& DeepestParsed(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : DeepestParsed(*parsed.front());
}

std::string CommandLineOf(const CLI::App& command) {
  std::string line = FullName(command);
  const char* before = "";  // the next flag
  for (const CLI::Option* option : command.get_options()) {
    std::vector<std::string> values = option->results();
    if (values.empty() && !option->get_default_str().empty()) {
      values = {option->get_default_str()};
    }
    if (values.empty() || option->get_lnames().empty()) continue;
    const std::string name = absl::StrCat(" --", option->get_lnames().front());
    if (option->get_items_expected_max() == 0) {
      if (option->as<bool>()) line += std::exchange(before, "") + name;
      continue;
    }
    // Those that take one value each time stand on lines of their own where there are several.
    const bool repeats = option->get_items_expected_max() == 1;
    const bool has_own_lines = values.size() > 1 && repeats;
    if (has_own_lines) before = kNewLine;
    for (const std::string& value : values) {
      if (repeats || &value == &values.front()) absl::StrAppend(&line, before, name);
      absl::StrAppend(&line, " ", ShellQuoted(value));
      before = has_own_lines ? kNewLine : "";
    }
  }
  return line;
}

}  // namespace ziggurat
