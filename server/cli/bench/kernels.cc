// `ziggurat bench kernels`: kernels against the limits of the machine.
#include <memory>
#include <string>
#include <vector>

#include "attention/cpu_level.h"
#include "bench/kernels/kernels_bench.h"
#include "server/cli/bench/subcommands.h"
#include "server/cli/device.h"
#include "server/cli/failure.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat bench kernels
  ziggurat bench kernels --filter 'decode/(bf16|int4)/'
  ziggurat bench kernels --filter 'decode/int4/' --in-cache --threads 1
  ziggurat bench kernels --filter gemm
  ziggurat bench kernels --filter sample/

percent_of_read is a kernel's share of the read bandwidth, which is measured first, on the same
memory; ns_per_token what a thread takes for what one KV head holds of a token;
percent_of_onednn the share of oneDNN's own product with weights packed for just that number of
rows. Best of a few runs each, or of a thousand with --in-cache. The whole table takes some
minutes.)";

struct KernelsFlags {
  KernelsBenchOptions options;
  std::string level;
};

int RunKernels(KernelsFlags flags) {
  const auto fail = [](const std::string& message, int code) {
    return SayFailure("bench kernels", message, code);
  };
  if (const auto best = DetectCpuLevel(); best.ok()) {
    flags.options.level = *best;
  } else {
    return fail(std::string(best.status().message()), kExitFailure);
  }
  for (CpuLevel level : kCpuLevels) {
    if (flags.level == CpuLevelName(level)) flags.options.level = level;
  }
  flags.options.threads = ThreadCount(flags.options.threads);
  const absl::Status status = RunKernelsBench(flags.options);
  return status.ok() ? kExitOk : fail(std::string(status.message()), kExitUsage);
}

}  // namespace

Command AddBenchKernels(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("kernels", "Kernels against the limits of the machine");
  auto flags = std::make_shared<KernelsFlags>();
  flags->options.threads = 0;
  app->add_option("--filter", flags->options.filter, "Regular expression over the names")
      ->type_name("REGEX");
  app->add_option("--threads", flags->options.threads, "Threads; 0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option("--gigabytes", flags->options.gigabytes, "Memory that the caches fill")
      ->capture_default_str();
  app->add_flag("--in-cache", flags->options.in_cache,
                "Decode attention over 256 tokens a thread, which a second-level cache of 2 MiB "
                "holds: what its arithmetic takes");
  std::vector<std::string> names;
  for (CpuLevel level : kCpuLevels) names.emplace_back(CpuLevelName(level));
  app->add_option("--level", flags->level, "Instructions of the kernels (default: the best)")
      ->check(CLI::IsMember(names));
  app->footer(kExamples);
  return {app, [flags] { return RunKernels(*flags); }, /*computes=*/true};
}

}  // namespace ziggurat
