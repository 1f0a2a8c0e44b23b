#include "server/cli/settings.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/cli/wrong_flags.h"
#include "server/settings_file.h"

namespace ziggurat {
namespace {

constexpr char kPrefix[] = "ZIGGURAT_";
constexpr char kConfig[] = "config";
constexpr char kCommandLine[] = "command line";
constexpr char kDefault[] = "default";
/// What the clients of the same binary read, and a daemon may inherit.
constexpr char kTokenOfClients[] = "ZIGGURAT_TOKEN";

struct Given {
  std::vector<std::string> values;
  std::string source;
};
using GivenByKey = std::map<std::string, Given>;

bool IsFlag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

bool IsList(const CLI::Option& option) { return option.get_type_name() == "LIST"; }

std::vector<CLI::Option*> Configurable(CLI::App& command) {
  return command.get_options([](const CLI::Option* option) {
    return option->get_configurable() && !option->get_lnames().empty();
  });
}

std::vector<std::string> KeysOf(CLI::App& command) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : Configurable(command)) keys.push_back(option->get_lnames()[0]);
  return keys;
}

/// A variable of a shell that is not set, mostly: 0 and "" would be worse than an error.
absl::Status RefuseEmpty(const std::string& key, const Given& given) {
  if (!absl::c_linear_search(given.values, "")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(given.source == kCommandLine ? "" : absl::StrCat(given.source, ": "), "--", key,
                   ": has no value"));
}

/// Gives the option what its flag on the command line would have given it.
absl::Status Apply(CLI::Option& option, const Given& given) {
  const std::string& key = option.get_lnames()[0];
  const auto wrong = [&](const std::string& what) {
    const std::string flag = absl::StrCat("--", key);
    return absl::InvalidArgumentError(absl::StrCat(
        given.source, ": ", absl::StrContains(what, flag) ? "" : absl::StrCat(flag, ": "), what));
  };
  if (IsFlag(option) && given.values.size() != 1) return wrong("takes true or false, no list");
  if (given.values.empty()) return wrong("the list is empty: leave it out");
  if (option.get_items_expected_max() == 1 && given.values.size() > 1) {
    return wrong("takes one value, no list");
  }
  try {
    for (const std::string& value : given.values) {
      if (!IsFlag(option)) {
        option.add_result(value);
      } else if (const std::optional<std::string> parsed = ParseSwitch(value)) {
        option.add_result(option.get_flag_value(key, *parsed));
      } else {
        return wrong(absl::StrCat("'", value, "' is neither true nor false"));
      }
    }
    option.run_callback();
  } catch (const CLI::ConversionError&) {
    return wrong(DescribeConversion(option));
  } catch (const CLI::Error& error) {
    return wrong(error.what());
  }
  return absl::OkStatus();
}

/// Whether the variable names a file of certificates, keys or tokens: without one nothing would be
/// asked of clients.
bool MustHaveValue(CLI::App& command, const std::string& variable) {
  return absl::c_any_of(Configurable(command), [&](const CLI::Option* option) {
    return option->get_type_name() == "FILE" && VariableName(option->get_lnames()[0]) == variable;
  });
}

/// Variables with our prefix that say something, or must.
std::map<std::string, std::string> OurVariables(CLI::App& command,
                                                const std::vector<std::string>& environment) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : environment) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (!absl::StartsWith(parts.first, kPrefix)) continue;
    if (!parts.second.empty() || MustHaveValue(command, parts.first)) variables.insert(parts);
  }
  return variables;
}

GivenByKey FromEnvironment(const std::map<std::string, std::string>& variables,
                           const std::vector<std::string>& keys,
                           std::vector<std::string>* warnings) {
  GivenByKey given;
  std::vector<std::string> names = {VariableName(kConfig)};
  std::vector<std::string> spelled = {kConfig};
  for (const std::string& key : keys) {
    names.push_back(VariableName(key));
    spelled.push_back(absl::StrReplaceAll(key, {{"-", "_"}}));
    if (const auto it = variables.find(names.back()); it != variables.end()) {
      given[key] = {{it->second}, it->first};
    }
  }
  for (const auto& [name, value] : variables) {
    if (absl::c_linear_search(names, name) || IsServiceVariable(name) || name == kTokenOfClients) {
      continue;
    }
    // Their common beginning makes no two of them alike.
    const std::optional<std::string> nearest =
        NearestName(absl::AsciiStrToLower(name.substr(std::size(kPrefix) - 1)), spelled);
    warnings->push_back(absl::StrCat(
        "the variable ", name, " sets nothing",
        nearest ? absl::StrCat("; the nearest that does is ", VariableName(*nearest)) : ""));
  }
  return given;
}

absl::StatusOr<GivenByKey> FromFile(const std::string& path, const std::vector<std::string>& keys) {
  auto settings = ReadSettingsFile(path);
  if (!settings.ok()) return settings.status();
  GivenByKey given;
  for (FileSetting& setting : *settings) {
    const std::string place = absl::StrCat(path, ":", setting.line);
    if (!absl::c_linear_search(keys, setting.key)) {
      const std::optional<std::string> nearest = NearestName(setting.key, keys);
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": '", setting.key, "' is no setting; ",
                       nearest ? absl::StrCat("the nearest is '", *nearest, "'")
                               : "`ziggurat serve --help` lists them"));
    }
    given[setting.key] = {std::move(setting.values), place};
  }
  return given;
}

/// The file named by flag or variable, if any.
absl::StatusOr<GivenByKey> FromNamedFile(CLI::App& command,
                                         const std::map<std::string, std::string>& variables,
                                         const std::vector<std::string>& keys) {
  const CLI::Option* option = command.get_option(absl::StrCat("--", kConfig));
  const auto variable = variables.find(VariableName(kConfig));
  const bool by_flag = option->count() > 0;
  if (!by_flag && variable == variables.end()) return GivenByKey();
  auto given = FromFile(by_flag ? option->results().back() : variable->second, keys);
  if (given.ok() || !absl::IsNotFound(given.status())) return given;
  return absl::NotFoundError(absl::StrCat(by_flag ? absl::StrCat("--", kConfig) : variable->first,
                                          ": ", given.status().message()));
}

std::vector<std::string> DefaultOf(const CLI::Option& option) {
  if (IsFlag(option)) return {"false"};
  if (option.get_default_str().empty()) return {};
  return {option.get_default_str()};
}

}  // namespace

absl::StatusOr<Settings> Settings::Complete(CLI::App& command,
                                            const std::vector<std::string>& environment) {
  Settings settings;
  const std::vector<std::string> keys = KeysOf(command);
  const std::map<std::string, std::string> variables = OurVariables(command, environment);
  const GivenByKey by_variable = FromEnvironment(variables, keys, &settings.warnings_);
  const absl::StatusOr<GivenByKey> by_file = FromNamedFile(command, variables, keys);
  if (!by_file.ok()) return by_file.status();
  for (CLI::Option* option : Configurable(command)) {
    const std::string& key = option->get_lnames()[0];
    Given given{DefaultOf(*option), kDefault};
    if (option->count() > 0) {
      given = {option->reduced_results(), kCommandLine};
    } else if (const auto variable = by_variable.find(key); variable != by_variable.end()) {
      given = variable->second;
    } else if (const auto line = by_file->find(key); line != by_file->end()) {
      given = line->second;
    }
    if (IsList(*option) && !given.values.empty()) {
      // One text may hold several. CLI11 would split it too, and drop empty ones.
      given.values = absl::StrSplit(absl::StrJoin(given.values, ","), ',');
      option->clear();
    }
    if (absl::Status status = RefuseEmpty(key, given); !status.ok()) return status;
    if (given.source != kDefault && option->count() == 0) {
      if (absl::Status status = Apply(*option, given); !status.ok()) return status;
    }
    if (option->count() > 0) given.values = option->reduced_results();
    settings.all_.push_back({key, std::move(given.values), std::move(given.source)});
  }
  return settings;
}

std::string Settings::Locate(std::string_view message) const {
  std::string text(message);
  if (!absl::StartsWith(text, "--")) return text;
  const std::string key = text.substr(2, text.find_first_of(" :'") - 2);
  for (const Setting& setting : all_) {
    if (setting.key != key || setting.source == kCommandLine || setting.source == kDefault)
      continue;
    return absl::StrCat(setting.source, ": ", text);
  }
  return text;
}

std::string Settings::ToYaml() const {
  std::vector<std::string> lines;
  size_t width = 0;
  for (const Setting& setting : all_) {
    const bool is_set = !setting.values.empty();
    lines.push_back(is_set ? absl::StrCat(setting.key, ": ", WriteSettingValue(setting.values))
                           : absl::StrCat("# ", setting.key, ":"));
    width = std::max(width, lines.back().size());
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i].resize(width, ' ');
    absl::StrAppend(&text, lines[i], "  # ", all_[i].values.empty() ? "not set" : all_[i].source,
                    "\n");
  }
  return text;
}

std::string VariableName(std::string_view key) {
  return absl::StrCat(kPrefix,
                      absl::StrReplaceAll(absl::AsciiStrToUpper(std::string(key)), {{"-", "_"}}));
}

bool IsServiceVariable(const std::string& name) {
  static const std::regex kService(
      "ZIGGURAT(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|"
      "PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)");
  // The expression recurses for each character; Kubernetes' names have at most 63 of their own.
  return name.size() <= 256 && std::regex_match(name, kService);
}

std::vector<std::string> ProcessEnvironment() {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    variables.emplace_back(*entry);
  }
  return variables;
}

}  // namespace ziggurat
