// The command line of `ziggurat bench serve`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "server/cli/bench/load/load_summary.h"
#include "server/cli/client.h"

namespace ziggurat::bench {

struct ServeFlags {
  ServerFlags server;
  std::optional<int> clients;
  std::optional<double> rate;
  std::string trace;
  std::optional<double> time_scale;
  std::optional<double> length_scale;
  std::optional<size_t> requests;
  std::optional<double> duration;
  std::optional<std::string> input_tokens;   ///< absent: kDefaultInput
  std::optional<std::string> output_tokens;  ///< absent: kDefaultOutput
  uint64_t seed = 0;
  std::string compression;
  Goals goals;
  std::optional<double> timeout;
  int warmup = 0;
  std::string out;
};

constexpr char kDefaultInput[] = "128";
constexpr char kDefaultOutput[] = "32";

/// Adds all of them, and what --help says besides. `flags` outlives the command.
void AddServeFlags(CLI::App& serve, ServeFlags& flags);

/// What CLI11 cannot see in one flag alone; empty: nothing is wrong.
std::string WrongFlags(const ServeFlags& flags);

}  // namespace ziggurat::bench
