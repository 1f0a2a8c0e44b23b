#include "tests/e2e/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ziggurat::e2e {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(2);

/// Between fork and exec: only what is safe there.
[[noreturn]] void Exec(char* const* argv, const char* in, const char* out, const char* err,
                       pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);  // the parent was gone before the call above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(open(in, O_RDONLY | O_CLOEXEC), 0);
  dup2(open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 1);
  dup2(open(err, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 2);
  // The descriptors of the test (its channels to other daemons) are not the child's business.
  for (int fd = 3; fd < 4096; ++fd) close(fd);
  execv(argv[0], argv);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::vector<std::string> argv,
                                                                  std::string_view stdin_text) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(argv[0], ": ", std::strerror(errno)));
  }
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess());
  const std::string in = child->folder_ / "stdin";
  const std::string out = child->folder_ / "stdout";
  const std::string err = child->folder_ / "stderr";
  WriteFile(in, stdin_text);
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  child->pid_ = fork();
  if (child->pid_ < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (child->pid_ == 0) Exec(pointers.data(), in.c_str(), out.c_str(), err.c_str(), parent);
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || exit_code_.has_value()) return;
  Signal(SIGKILL);
  Wait(absl::Seconds(10));
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0 && !exit_code_.has_value()) kill(pid_, signal);
}

std::optional<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!exit_code_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (absl::Now() >= deadline) {
      return std::nullopt;
    } else {
      absl::SleepFor(kPollInterval);
    }
  }
  return exit_code_;
}

std::string ChildProcess::stdout_text() const { return ReadFileIfThere(folder_ / "stdout"); }
std::string ChildProcess::stderr_text() const { return ReadFileIfThere(folder_ / "stderr"); }

CommandResult RunZiggurat(const std::vector<std::string>& arguments, std::string_view stdin_text,
                          absl::Duration timeout) {
  std::vector<std::string> argv = {Binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto child = ChildProcess::Start(std::move(argv), stdin_text);
  if (!child.ok()) return {127, "", child.status().ToString()};
  const std::optional<int> exit_code = (*child)->Wait(timeout);
  return {exit_code.value_or(-1), (*child)->stdout_text(), (*child)->stderr_text()};
}

}  // namespace ziggurat::e2e
