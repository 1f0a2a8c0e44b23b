// The subcommands of the binary. Each lives in a file of its own.
#pragma once

#include <functional>
#include <vector>

#include "CLI/CLI.hpp"

namespace ziggurat {

/// Exit codes of every command.
constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;  ///< it was asked rightly and could not be done
constexpr int kExitUsage = 2;    ///< it was asked wrongly

/// A registered subcommand and what it does once the flags are parsed: that, an exit code being
/// what `run` returns, or one of its own subcommands.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run = nullptr;
  bool computes = false;  ///< runs a model in this process
  std::vector<Command> subcommands = {};
};

Command AddServe(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddCache(CLI::App& app);
Command AddEval(CLI::App& app);
Command AddMakeModel(CLI::App& app);
Command AddCalibrate(CLI::App& app);
Command AddBench(CLI::App& app);
Command AddHealth(CLI::App& app);
Command AddPlan(CLI::App& app);
Command AddPolicies(CLI::App& app);

}  // namespace ziggurat
