// `ziggurat plan`: what fits, before there is a daemon.
#include <cstdio>
#include <memory>
#include <string>

#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/plan/planner.h"
#include "server/cli/validators.h"
#include "server/json_text.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat plan --model ~/Llama-3.1-8B --memory 48GiB
  ziggurat plan --model ~/Llama-3.1-8B --memory 48GiB --input-tokens p50:1800,p95:7000,p100:16000 \
      --output-tokens mean:250:2000 --max-tokens 1024 --clients 64 \
      --compression full --compression 'pyramidkv(budget=1024)' --compression 'kivi(bits=4)'
  ziggurat plan --model ~/Llama-3.1-8B --kv-cache-memory 8GiB --trace conversations.csv --json
  ziggurat plan --model ~/Llama-3.1-8B --memory 48GiB --rate 3 --request-seconds 20

DIR needs no more than config.json. Lengths are as in `ziggurat bench serve --help`, and so are
traces. Blocks are counted by the code that admits requests in the daemon, of this version and with
these flags; docs/operations.md has a worked example.)";

struct PlanFlags {
  plan::PlanOptions options;
  bool json = false;
};

int RunPlan(const PlanFlags& flags) {
  const absl::StatusOr<plan::Plan> plan = plan::MakePlan(flags.options);
  if (!plan.ok()) {
    return SayFailure("plan", plan.status(), ExitCodeOf(plan.status()));
  }
  std::printf("%s%s", (flags.json ? JsonText(PlanJson(*plan), 2) : PlanText(*plan)).c_str(),
              flags.json ? "\n" : "");
  return kExitOk;
}

void AddTrafficFlags(CLI::App& app, plan::PlanOptions& flags) {
  CLI::Option* input = app.add_option("--input-tokens", flags.input_tokens, "Lengths of prompts")
                           ->type_name("LENGTH")
                           ->capture_default_str();
  CLI::Option* output = app.add_option("--output-tokens", flags.output_tokens, "Lengths of answers")
                            ->type_name("LENGTH")
                            ->capture_default_str();
  app.add_option("--max-tokens", flags.max_tokens,
                 "The limit that requests set, and so reserve (default: what they generate)")
      ->check(IntegerBetween(1, 1 << 30))
      ->type_name("N");
  CLI::Option* trace = app.add_option("--trace", flags.trace, "Lengths of a recorded trace instead")
                           ->excludes(input)
                           ->excludes(output)
                           ->type_name("FILE");
  app.add_option("--length-scale", flags.length_scale, "Scales the lengths of the trace")
      ->needs(trace)
      ->check(NumberBetween(1e-6, 1e6))
      ->capture_default_str()
      ->type_name("X");
  app.add_option("--clients", flags.clients, "Requests that are to run at once")
      ->check(IntegerBetween(1, plan::kMostRunning))
      ->type_name("N");
  app.add_option("--rate", flags.rate, "Instead: so many requests come each second ...")
      ->check(NumberBetween(1e-6, 1e6))
      ->type_name("R");
  app.add_option("--request-seconds", flags.request_seconds,
                 "... and each takes so long, by `bench serve` or ziggurat_request_seconds")
      ->check(NumberBetween(1e-6, 1e6))
      ->type_name("SECONDS");
  app.add_option("--lazy-layers", flags.lazy_share,
                 "Share of the layers that are found lazy, from 0 to 1, for policies that test "
                 "them; a cache "
                 "report says it")
      ->check(NumberBetween(0, 1))
      ->capture_default_str()
      ->type_name("SHARE");
  app.add_option("--seed", flags.seed, "Of the lengths that are drawn")->capture_default_str();
}

}  // namespace

Command AddPlan(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "Say what fits into memory, by policy");
  auto flags = std::make_shared<PlanFlags>();
  plan::PlanOptions& options = flags->options;
  ServeConfig& config = options.config;
  command->add_option("--model", config.model, "Folder with the model's config.json")
      ->required()
      ->type_name("DIR");
  command->add_option("--memory", options.memory, "Of the machine or the container: divides it")
      ->type_name("SIZE");
  command
      ->add_option("--kv-cache-memory", options.kv_cache_memory,
                   "Of the pool (default: what --memory leaves, else 512MiB)")
      ->type_name("SIZE");
  command
      ->add_option("--spare", options.spare_percent,
                   "Percent of --memory that stay free, from 0 to 90")
      ->check(NumberBetween(0, 90))
      ->capture_default_str()
      ->type_name("PERCENT");
  command
      ->add_option("--compression", options.policies,
                   "Policy; may be given several times (default: ten to compare)")
      ->type_name("POLICY")
      ->allow_extra_args(false);
  command->add_option("--pod-groups", options.pod_groups, "As for serve")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  AddTrafficFlags(*command, options);
  command->add_option("--dtype", options.dtype, "As for serve")
      ->type_name("TYPE")
      ->capture_default_str();
  command->add_option("--max-running", config.max_running, "As for serve")->capture_default_str();
  command->add_option("--max-queue", config.max_queue, "As for serve")->capture_default_str();
  command->add_option("--max-prompt-tokens", config.max_prompt_tokens, "As for serve")
      ->capture_default_str();
  command->add_option("--prefill-tokens", options.prefill_tokens, "As for serve")
      ->type_name("TOKENS")
      ->capture_default_str();
  command->add_option("--short-prefill-tokens", config.short_prefill_tokens, "As for serve")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "All figures, as one JSON object");
  command->footer(kExamples);
  return {command, [flags] { return RunPlan(*flags); }};
}

}  // namespace ziggurat
