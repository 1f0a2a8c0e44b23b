// The subcommands of `ziggurat bench`, one file each.
#pragma once

#include "CLI/CLI.hpp"
#include "server/cli/command.h"

namespace ziggurat {

/// Decode steps and prefill of a model in this process.
Command AddBenchDecode(CLI::App& bench);
Command AddBenchPrefill(CLI::App& bench);
/// Kernels against the limits of the machine; only in builds with google-benchmark.
Command AddBenchKernels(CLI::App& bench);
/// What a step costs outside the model.
Command AddBenchScheduler(CLI::App& bench);
/// Load against a running daemon, as its clients see it.
Command AddBenchServe(CLI::App& bench);

}  // namespace ziggurat
