// The binary `ziggurat`.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention/cpu_level.h"
#include "model/cuda/cuda_decoder.h"
#include "server/cli/command.h"
#include "server/cli/spin_limit.h"
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

bool HasCommand(const CLI::App& app, const std::string& name) {
  const auto commands =
      app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
  return !commands.empty();
}

/// The command that was asked for, or nullptr.
const Command* FindParsed(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    return command.subcommands.empty() ? &command : FindParsed(command.subcommands);
  }
  return nullptr;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Ziggurat serves language models with a KV cache that is paged per layer out of one pool.",
      "ziggurat");
  app.set_version_flag("--version", Version, "Version, commit and attention backends");
  app.require_subcommand(1);
  const std::vector<Command> commands = {
      AddServe(app),     AddGenerate(app),  AddTokenize(app), AddCache(app),  AddEval(app),
      AddMakeModel(app), AddCalibrate(app), AddBench(app),    AddHealth(app), AddPlan(app)};
  app.footer(kExamples);  // commands that are added later would inherit it
  if (argc > 1 && argv[1][0] != '-' && !HasCommand(app, argv[1])) {
    std::fprintf(stderr, "ziggurat: '%s' is no command; `ziggurat --help` lists them\n", argv[1]);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive as exceptions too, with exit code 0.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const Command* command = FindParsed(commands);
  if (command == nullptr) return kExitUsage;
  if (command->computes) LimitSpinning(argv);
  return command->run();
}

}  // namespace
}  // namespace ziggurat

int main(int argc, char** argv) { return ziggurat::Main(argc, argv); }
