// `ziggurat bench serve`: load against a running daemon, as its clients see it.
#include <cstdio>

#include "server/cli/bench/subcommands.h"

namespace ziggurat {

Command AddBenchServe(CLI::App& bench) {
  CLI::App* serve = bench.add_subcommand("serve", "Put a running daemon under load");
  return {serve, [] {
            std::fputs("ziggurat bench serve: not there yet\n", stderr);
            return kExitFailure;
          }};
}

}  // namespace ziggurat
