// The binary `ziggurat`.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "attention/cpu_level.h"
#include "model/cuda/cuda_decoder.h"
#include "server/cli/command.h"
#include "server/cli/command_line.h"
#include "server/cli/spin_limit.h"
#include "server/cli/wrong_flags.h"
#include "server/printable.h"
#include "server/version.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat serve --model models/needle-llama
  ziggurat generate "Once upon a time" --max-tokens 40
  ziggurat generate --compression 'pyramidkv(budget=512)' < prompt.txt
  ziggurat cache --watch
  ziggurat eval --tasks tasks.jsonl --compression 'snapkv(budget=256)' --out evaluation

`ziggurat COMMAND --help` says more about each.)";

// Commit and kernels: what a bug report needs.
std::string Version() {
  std::vector<std::string> backends;
  for (CpuLevel level : SupportedCpuLevels()) {
    backends.push_back(absl::StrCat("cpu-", CpuLevelName(level)));
  }
  if (HasCuda()) backends.emplace_back("cuda");
  return absl::StrCat("ziggurat ", VersionText(), "\nbackends: ", absl::StrJoin(backends, ", "));
}

/// As far as the commands were told.
std::string NameOfParsed(const CLI::App& app) { return FullName(DeepestParsed(app)); }

/// The command that was asked for, or nullptr.
const Command* FindParsed(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    return command.subcommands.empty() ? &command : FindParsed(command.subcommands);
  }
  return nullptr;
}

/// The name of a flag that was given without a value, as an unset variable of a shell does; empty:
/// there is none. Words beside the flags, such as a prompt, may be empty.
std::string FlagWithoutValue(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() || option->get_expected_min() == 0) continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) return option->get_name();
    }
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (std::string flag = FlagWithoutValue(*command); !flag.empty()) return flag;
  }
  return "";
}

int FailOfEmptyFlag(const CLI::App& app, const std::string& flag) {
  std::fprintf(stderr, "%s: %s is empty\n", NameOfParsed(app).c_str(), Printable(flag).c_str());
  return kExitUsage;
}

/// Why the command line cannot be taken. What is unknown counts before what is missing, which may
/// have been meant by it.
std::string WhyNot(const CLI::App& app, const CLI::ParseError& error) {
  if (std::string unknown = DescribeUnknownWords(app); !unknown.empty()) return unknown + "\n";
  if (error.get_name() == "ConversionError") {
    for (const CLI::Option* option : DeepestParsed(app).get_options()) {
      if (!absl::StrContains(error.what(), absl::StrCat(": ", option->get_name(), " = "))) continue;
      return absl::StrCat(NameOfParsed(app), ": ", DescribeConversion(*option), "\n");
    }
  }
  if (error.get_name() == "ArgumentMismatch") {
    for (const CLI::Option* option : DeepestParsed(app).get_options()) {
      if (option->get_items_expected_max() != 1 || option->count() < 2) continue;
      return absl::StrCat(NameOfParsed(app), ": ", DescribeRepetition(*option), "\n");
    }
  }
  std::ostringstream text;
  app.exit(error, std::cout, text);
  return absl::StrCat(NameOfParsed(app), ": ", text.str());
}

/// What was printed, by std::cout too, may not have arrived: a full disk, a closed pipe.
int AfterFlush(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "ziggurat: the output could not be written\n");
  return exit_code == kExitOk ? kExitFailure : exit_code;
}

/// Says what the system would not give, whichever thread asked for it.
[[noreturn]] void EndWithoutResources() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "ziggurat: there is no more memory\n");
    std::_Exit(kExitFailure);
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "ziggurat: no more threads, memory or files, or another limit of the system: %s\n",
                 error.what());
    std::_Exit(kExitFailure);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ziggurat: %s\n", error.what());
  } catch (...) {
  }
  std::abort();
}

/// Weights are read where their files are mapped, which gives a signal where read() gives an error.
/// Any other one ends the process as it always does.
void EndWithoutFile(int signal, siginfo_t* info, void* /*context*/) {
  if (info->si_code == BUS_ADRERR) {
    constexpr char kText[] =
        "ziggurat: a file of the model was cut while it was read, or its disk cannot be read\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
    std::_Exit(kExitFailure);
  }
  raise(signal);
}

/// So that no file or socket gets the number of a standard stream that the caller has closed, and
/// with it what is printed. Input and output stay as good as closed: opened the wrong way round,
/// they fail. What is said on the way goes nowhere.
void OpenStandardStreams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free is this one.
    if (open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

// Libraries open descriptors as they are loaded: this is called before.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const open_standard_streams)() = OpenStandardStreams;

int Main(int argc, char** argv) {
  std::set_terminate(EndWithoutResources);
  struct sigaction on_bus_error = {};
  on_bus_error.sa_sigaction = EndWithoutFile;
  on_bus_error.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &on_bus_error, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  CLI::App app(
      "Ziggurat serves language models with a KV cache that is paged per layer out of one pool.",
      "ziggurat");
  app.set_version_flag("--version", Version, "Version, commit and attention backends");
  app.require_subcommand(1);
  const std::vector<Command> commands = {AddServe(app),     AddGenerate(app), AddTokenize(app),
                                         AddCache(app),     AddEval(app),     AddMakeModel(app),
                                         AddCalibrate(app), AddBench(app),    AddHealth(app),
                                         AddPlan(app),      AddPolicies(app)};
  app.footer(kExamples);  // commands that are added later would inherit it
  RefuseOddValues(app);
  const absl::Span<char* const> words(argv + 1, static_cast<size_t>(std::max(argc - 1, 0)));
  if (const std::string wrong = DescribeUnknownCommand(app, words); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", Printable(wrong).c_str());
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive as exceptions too, with exit code 0.
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return AfterFlush(kExitOk);
    }
    // A flag of a number would have taken the next word for its value.
    const std::string flag = FlagWordWithoutValue(words);
    if (!flag.empty()) return FailOfEmptyFlag(app, flag);
    std::fprintf(stderr, "%s", PrintableLines(WhyNot(app, error)).c_str());
    return kExitUsage;
  }
  std::string flag = FlagWordWithoutValue(words);
  if (flag.empty()) flag = FlagWithoutValue(app);
  if (!flag.empty()) return FailOfEmptyFlag(app, flag);
  const Command* command = FindParsed(commands);
  if (command == nullptr) return kExitUsage;
  if (command->computes) LimitSpinning(argv);
  return AfterFlush(command->run());
}

}  // namespace
}  // namespace ziggurat

// NOLINTNEXTLINE(bugprone-exception-escape): EndWithoutResources says what it was.
int main(int argc, char** argv) { return ziggurat::Main(argc, argv); }
