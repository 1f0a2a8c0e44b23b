// `ziggurat bench`: how fast a daemon, and what it is made of, is.
#include <utility>
#include <vector>

#include "server/cli/bench/subcommands.h"
#include "server/cli/command.h"

namespace ziggurat {

Command AddBench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed, throughput and latency");
  bench->require_subcommand(1);
  std::vector<Command> commands = {AddBenchDecode(*bench), AddBenchPrefill(*bench),
                                   AddBenchScheduler(*bench), AddBenchServe(*bench)};
#ifdef ZIGGURAT_HAS_BENCHMARKS
  commands.push_back(AddBenchKernels(*bench));
#endif
  return {.app = bench, .subcommands = std::move(commands)};
}

}  // namespace ziggurat
