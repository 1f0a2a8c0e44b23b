// `ziggurat bench kernels`: kernels against the limits of the machine.
#include <memory>
#include <string>
#include <vector>

#include "attention/cpu_level.h"
#include "bench/kernels/kernels_bench.h"
#include "server/cli/bench/subcommands.h"
#include "server/cli/device.h"
#include "server/cli/failure.h"
#include "server/cli/validators.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat bench kernels
  ziggurat bench kernels --filter 'decode/(bf16|int4)/'
  ziggurat bench kernels --filter 'decode/int4/' --in-cache --threads 1
  ziggurat bench kernels --filter gemm
  ziggurat bench kernels --filter sample/

Names, of which --filter matches any part:
  decode/FORMAT/D:SIZE/group:N      attention of one new token, from the cache
  prefill/DTYPE/D:SIZE/tokens:2048  attention of a prompt
  column_sums/DTYPE/D:SIZE/tokens:2048
                                    the statistic of h2o
  sample/HOW/vocab:SIZE             drawing a token; greedy, greedy-logprobs, temperature, top_k,
                                    top_p, min_p
  gemm/bf16/2048x8192/rows:N        a matrix product
FORMAT is bf16, f32, bf16-merged, int8, fp8, int4, int4-merged or int2; D the size of a head, 64 or
128; group how many query heads a KV head has, 1, 3 (as llama-160m of make-model), 4 or 8.

Levels are instructions of CPUs, each with those before it: avx2, avx512, avx512bf16 (and VNNI,
VBMI), zen4 and zen5 (the same, used as these AMD CPUs like it), amx (tiles, Intel since Sapphire
Rapids), granite (tiles for fewer queries, since Granite Rapids).

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
  app->add_option("--threads", flags->options.threads, "Threads; 0: one for each CPU it may use")
      ->check(IntegerBetween(0, 1024))
      ->capture_default_str();
  app->add_option("--gigabytes", flags->options.gigabytes, "Memory that the caches fill")
      ->check(NumberBetween(0.25, 256))
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
