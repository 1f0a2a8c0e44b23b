// Flags, environment and configuration file as one: every flag of a command can also be given as
// a variable or as a line of a file, without a word about it where the flag is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// One flag's value, after all that may set it has been asked.
struct Setting {
  std::string key;                  ///< the flag without its dashes: "kv-cache-memory"
  std::vector<std::string> values;  ///< as text; none: it is not set and has no default
  std::string source;  ///< "default", "command line", "ZIGGURAT_KV_CACHE_MEMORY", "FILE:LINE"
};

/// A command's flags after parsing, completed: flag before environment before file before default.
/// The file is what --config or ZIGGURAT_CONFIG names. Flags that are not `configurable` (help and
/// those that ask for another action) can be given on the command line only.
class Settings {
 public:
  /// `command` has been parsed and has an option --config; the variables bound to its options are
  /// set by this. `environment` holds "NAME=value"; an empty value is as good as none.
  /// INVALID_ARGUMENT and NOT_FOUND say which variable, or which line of which file, is wrong.
  static absl::StatusOr<Settings> Complete(CLI::App& command,
                                           const std::vector<std::string>& environment);

  const std::vector<Setting>& all() const { return all_; }  ///< in the order of --help
  /// One for each variable that looks like ours and is not. It is not refused, since whoever starts
  /// a process may pass on what others need; what Kubernetes sets for a Service is not even named.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// `message` with the place that its flag came from in front, where it begins with the name of a
  /// flag that was not given on the command line: "FILE:3: --listen: ...".
  std::string Locate(std::string_view message) const;

  /// A file that configures the same, with the source of every value as a comment.
  std::string ToYaml() const;

 private:
  std::vector<Setting> all_;
  std::vector<std::string> warnings_;
};

/// "ZIGGURAT_KV_CACHE_MEMORY" of "kv-cache-memory".
std::string VariableName(std::string_view key);

/// Whether Kubernetes sets such a variable for a Service whose name begins with "ziggurat":
/// ZIGGURAT_SERVICE_HOST, ZIGGURAT_PORT, ZIGGURAT_PORT_50051_TCP_ADDR, ...
bool IsServiceVariable(const std::string& name);

/// The environment of this process.
std::vector<std::string> ProcessEnvironment();

}  // namespace ziggurat
