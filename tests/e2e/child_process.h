// A program that a test runs.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/e2e/environment.h"

namespace ziggurat::e2e {

/// Runs from Start until it exits; killed at the latest when this object or the test process dies,
/// whichever way. Not thread-safe, but for the two texts.
class ChildProcess {
 public:
  /// argv[0] is the path. `stdin_text` is what it reads. NOT_FOUND where there is no such program.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv,
                                                             std::string_view stdin_text = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  /// The exit code (128 + number where a signal ended it), or nullopt where it still runs after
  /// `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  /// What it has written so far.
  std::string stdout_text() const;
  std::string stderr_text() const;

 private:
  ChildProcess() = default;

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

/// What a command did that was run to its end.
struct CommandResult {
  int exit_code = -1;  ///< -1: killed after the timeout
  std::string out;
  std::string err;
};

/// Runs `ziggurat ARGUMENTS...`.
CommandResult RunZiggurat(const std::vector<std::string>& arguments,
                          std::string_view stdin_text = {},
                          absl::Duration timeout = absl::Seconds(60));

}  // namespace ziggurat::e2e
