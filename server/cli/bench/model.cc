// `ziggurat bench decode` and `ziggurat bench prefill`: a model in this process, without network.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/kernels/read_bandwidth.h"
#include "compression/registry.h"
#include "model/cuda/cuda_decoder.h"
#include "nlohmann/json.hpp"
#include "server/byte_size.h"
#include "server/cli/bench/engine_bench.h"
#include "server/cli/bench/subcommands.h"
#include "server/cli/device.h"
#include "server/cli/failure.h"
#include "server/cli/validators.h"
#include "server/cli/write_file.h"
#include "server/config.h"
#include "server/json_text.h"
#include "server/log.h"
#include "server/version.h"

namespace ziggurat {
namespace {

constexpr char kDecodeExamples[] = R"(Examples:
  ziggurat bench decode --model /tmp/llama-160m --batch 1,8,32 --context 256
  ziggurat bench decode --model /tmp/llama-160m --batch 4 --context 8192 \
      --compression full --compression 'pyramidkv(budget=512)' --compression kivi

A model to try it on:
  ziggurat make-model --shape llama-160m --context 16384 --out /tmp/llama-160m

A row is one batch of equal requests, prefilled and then decoded together. tokens/s counts the
tokens of all requests; "attention" and "engine" are shares of the engine thread's time (engine:
scheduling and sampling, all but the model); GB/s is what a step reads, weights and cache, by its
time. The machine's read bandwidth is measured in the same run and stands above the table; on a GPU
it is that of a copy, read and written bytes together. There "engine" is the share of a step in which
the GPU waits for the host, by its own clock: from the tokens of one step to the first kernel of the
next, less "edits", in which it copies and merges cached tokens. The share of attention is not known:
the engine thread does not wait for the parts of a step.

With --fill a row is as many requests as the pool holds at once, of --batch at most, with room
for 256 tokens more than are timed:
  ziggurat bench decode --model /tmp/llama-160m --fill --batch 64 --context 2048 \
      --kv-cache-memory 1GiB --compression full --compression 'pyramidkv(budget=512)')";

constexpr char kPrefillExamples[] = R"(Examples:
  ziggurat bench prefill --model /tmp/llama-160m --context 512,8192
  ziggurat bench prefill --model /tmp/llama-160m --batch 4 --context 8192 \
      --compression 'snapkv(budget=512)'

A model to try it on:
  ziggurat make-model --shape llama-160m --context 16384 --out /tmp/llama-160m

tokens/s counts the tokens of all prompts, from sending them all at once to the last first token.)";

constexpr size_t kBandwidthBytes = size_t{512} << 20;

struct ModelBenchFlags {
  std::string model;
  std::vector<int> batches = {1};
  std::vector<int> contexts = {512};
  std::vector<std::string> policies;
  std::vector<std::string> pod_groups;
  int tokens = 32;
  int repeats = 3;
  int threads = 0;
  int prefill_tokens = 8192;
  std::string device = "auto";
  std::string dtype = "bf16";
  std::string kv_cache_memory = "4GiB";
  std::string json;
  bool decodes = false;
  bool fill = false;

  const char* command() const { return decodes ? "decode" : "prefill"; }
};

struct NamedPolicy {
  std::string text;
  std::shared_ptr<const Policy> policy;
};

absl::StatusOr<bench::EngineBenchOptions> MakeOptions(const ModelBenchFlags& flags) {
  bench::EngineBenchOptions options;
  options.model = flags.model;
  // Before anything that takes time.
  const auto model = LoadModelConfig(flags.model);
  if (!model.ok()) return model.status();
  absl::StatusOr<size_t> bytes = ParseByteSize(flags.kv_cache_memory);
  if (!bytes.ok()) return Prefixed("--kv-cache-memory", bytes.status());
  options.kv_cache_bytes = *bytes;
  const absl::StatusOr<ElementType> dtype = ParseElementType(flags.dtype);
  if (!dtype.ok()) return Prefixed("--dtype", dtype.status());
  options.dtype = *dtype;
  for (const int context : flags.contexts) {
    absl::Status status =
        bench::CheckFits(context, flags.decodes ? flags.tokens : 0, model->MaxContextTokens());
    if (!status.ok()) return status;
  }
  const absl::StatusOr<int> device = ChooseDevice(flags.device);
  if (!device.ok()) return device.status();
  options.device = *device;
  options.threads = ThreadCount(flags.threads);
  options.prefill_tokens = flags.prefill_tokens;
  options.max_batch = *std::max_element(flags.batches.begin(), flags.batches.end());
  options.max_prompt_tokens = *std::max_element(flags.contexts.begin(), flags.contexts.end());
  return options;
}

absl::StatusOr<std::vector<NamedPolicy>> ParsePolicies(const ModelBenchFlags& flags) {
  PolicyResources resources;
  auto groups = LoadPodGroups(flags.pod_groups);
  if (!groups.ok()) return groups.status();
  resources.pod_groups = *std::move(groups);
  std::vector<NamedPolicy> policies;
  for (const std::string& text :
       flags.policies.empty() ? std::vector<std::string>{"full"} : flags.policies) {
    auto policy = ParsePolicy(text, resources);
    if (!policy.ok()) return policy.status();
    policies.push_back({text, *std::move(policy)});
  }
  return policies;
}

/// Bytes per second that the device's memory gives.
absl::StatusOr<double> Bandwidth(const bench::EngineBenchOptions& options) {
  if (options.device != DeviceChoice::kCpu) return MeasureCudaCopyBandwidth(options.device);
  std::vector<std::byte> memory(kBandwidthBytes, std::byte{1});
  return MeasureReadBandwidth(memory.data(), memory.size(), options.threads, 3);
}

/// The best of the repeats: what the machine can do when nothing else disturbs it.
absl::StatusOr<bench::EngineFigures> RunBest(bench::EngineBench& bench,
                                             const bench::EngineCase& which, int repeats) {
  absl::StatusOr<bench::EngineFigures> best;
  for (int i = 0; i < repeats; ++i) {
    absl::StatusOr<bench::EngineFigures> figures = bench.Run(which);
    if (!figures.ok()) return figures;
    const bool is_better =
        !best.ok() || (which.decode_tokens > 0
                           ? figures->decode_tokens_per_second > best->decode_tokens_per_second
                           : figures->prefill_tokens_per_second > best->prefill_tokens_per_second);
    if (is_better) best = figures;
  }
  return best;
}

void PrintHead(const ModelBenchFlags& flags, bool on_gpu) {
  absl::PrintF("| %-32s | %5s | %7s | %8s | ", "policy", "batch", "context", "tokens/s");
  if (flags.decodes) {
    absl::PrintF("%8s | %9s | %6s | %9s | %5s |\n", "ms/step", on_gpu ? "edits" : "attention",
                 "engine", "cache MiB", "GB/s");
    std::puts("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
  } else {
    absl::PrintF("%8s | %9s | %6s |\n", "seconds", "attention", "engine");
    std::puts("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
  }
}

/// The share of steps in which a device waits for the host.
double WaitsForHost(const bench::StepParts& parts) {
  return std::max(0.0, 1 - (parts.device.steps + parts.device.edits) / parts.total());
}

void PrintRow(const ModelBenchFlags& flags, const std::string& policy,
              const bench::EngineCase& which, const bench::EngineFigures& figures, bool on_gpu) {
  const bench::StepParts& parts = flags.decodes ? figures.decode_parts : figures.prefill_parts;
  const auto percent = [&](bool is_known, double share) {
    // What a step took is noted after its tokens have gone out: of a single one perhaps nothing
    // yet.
    if (!is_known || !(parts.total() > 0)) return std::string("-");
    return absl::StrFormat("%.1f %%", 100 * share);
  };
  const std::string attention = percent(
      !on_gpu || flags.decodes, (on_gpu ? parts.device.edits : parts.attention) / parts.total());
  const std::string engine =
      percent(!on_gpu || flags.decodes,
              on_gpu ? WaitsForHost(parts) : (parts.sample + parts.schedule) / parts.total());
  absl::PrintF("| %-32s | %5d | %7d | ", absl::StrCat("`", policy, "`"), figures.batch,
               which.context);
  if (flags.decodes) {
    absl::PrintF("%8.1f | %8.2f | %9s | %6s | %9.1f | %5.1f |\n", figures.decode_tokens_per_second,
                 1e3 * figures.decode_seconds / figures.steps, attention, engine,
                 static_cast<double>(figures.cache_bytes) / (1 << 20),
                 figures.bytes_per_second / 1e9);
  } else {
    absl::PrintF("%8.1f | %8.3f | %9s | %6s |\n", figures.prefill_tokens_per_second,
                 figures.prefill_seconds, attention, engine);
  }
  std::fflush(stdout);
}

nlohmann::json ToJson(const bench::StepParts& parts) {
  return {{"model", parts.model},
          {"attention", parts.attention},
          {"sample", parts.sample},
          {"schedule", parts.schedule}};
}

nlohmann::json ToJson(const std::string& policy, const bench::EngineCase& which,
                      const bench::EngineFigures& figures, bool on_gpu) {
  nlohmann::json row = {{"policy", policy},
                        {"batch", figures.batch},
                        {"context", which.context},
                        {"prefill_seconds", figures.prefill_seconds},
                        {"prefill_tokens_per_second", figures.prefill_tokens_per_second}};
  if (which.decode_tokens == 0) {
    if (!on_gpu) row["prefill_seconds_by_part"] = ToJson(figures.prefill_parts);
    return row;
  }
  row["decode_steps"] = figures.steps;
  row["decode_seconds"] = figures.decode_seconds;
  row["decode_tokens_per_second"] = figures.decode_tokens_per_second;
  if (on_gpu) {
    row["waits_for_host"] = WaitsForHost(figures.decode_parts);
    row["edits"] = figures.decode_parts.device.edits / figures.decode_parts.total();
  } else {
    row["decode_seconds_by_part"] = ToJson(figures.decode_parts);
  }
  row["cache_bytes"] = figures.cache_bytes;
  row["bytes_per_second"] = figures.bytes_per_second;
  return row;
}

int Fail(const ModelBenchFlags& flags, const absl::Status& status) {
  return SayFailure(absl::StrCat("bench ", flags.command()), status, ExitCodeOf(status));
}

absl::Status WriteReport(const ModelBenchFlags& flags, const nlohmann::json& report) {
  if (flags.json.empty()) return absl::OkStatus();
  return Prefixed("--json", ReplaceFile(flags.json, JsonText(report, 2) + '\n'));
}

int RunModelBench(const ModelBenchFlags& flags) {
  SetUpLogging(spdlog::level::warn);
  const auto options = MakeOptions(flags);
  if (!options.ok()) return Fail(flags, options.status());
  const auto policies = ParsePolicies(flags);
  if (!policies.ok()) return Fail(flags, policies.status());
  if (!flags.json.empty()) {
    if (absl::Status status = CheckReplaceable(flags.json); !status.ok()) {
      return Fail(flags, Prefixed("--json", status));
    }
  }
  // Before the model and its pool take the memory of a GPU.
  const absl::StatusOr<double> bandwidth = Bandwidth(*options);
  if (!bandwidth.ok()) return Fail(flags, bandwidth.status());
  auto bench = bench::EngineBench::Create(*options);
  if (!bench.ok()) return Fail(flags, bench.status());
  for (const NamedPolicy& policy : *policies) {
    absl::Status status = (*bench)->CheckServes(*policy.policy);
    if (!status.ok()) return Fail(flags, status);
  }

  const bool on_gpu = options->device != DeviceChoice::kCpu;
  absl::PrintF(
      "%s\n%s, %s, %d threads, weights of %.0f MiB; %s memory at %.1f GB/s; best of %d\n\n",
      (*bench)->model().Describe(), (*bench)->backend(),
      std::string(ElementTypeName((*bench)->element())), options->threads,
      static_cast<double>((*bench)->weight_bytes()) / (1 << 20), on_gpu ? "copies" : "reads",
      *bandwidth / 1e9, flags.repeats);
  nlohmann::json report = {{"version", VersionText()},
                           {"command", flags.command()},
                           {"model", (*bench)->model().Describe()},
                           {"backend", (*bench)->backend()},
                           {"element", ElementTypeName((*bench)->element())},
                           {"threads", options->threads},
                           {"weight_bytes", (*bench)->weight_bytes()},
                           {on_gpu ? "copy_bytes_per_second" : "read_bytes_per_second", *bandwidth},
                           {"rows", nlohmann::json::array()}};
  // Where it can be, each row is kept at once, whatever becomes of the next one.
  const bool keeps_rows = !flags.json.empty() && IsReplaced(flags.json);
  report["error"] = "broken off";
  PrintHead(flags, on_gpu);
  for (const int context : flags.contexts) {
    for (const int batch : flags.batches) {
      for (const NamedPolicy& policy : *policies) {
        const bench::EngineCase which{.policy = policy.policy,
                                      .batch = batch,
                                      .context = context,
                                      .decode_tokens = flags.decodes ? flags.tokens : 0,
                                      .fills_pool = flags.fill};
        const auto figures = RunBest(**bench, which, flags.repeats);
        if (!figures.ok()) {
          report["error"] = std::string(figures.status().message());
          const absl::Status written =
              report["rows"].empty() ? absl::OkStatus() : WriteReport(flags, report);
          if (!written.ok()) Fail(flags, written);
          return Fail(flags, figures.status());
        }
        PrintRow(flags, policy.text, which, *figures, on_gpu);
        report["rows"].push_back(ToJson(policy.text, which, *figures, on_gpu));
        const absl::Status kept = keeps_rows ? WriteReport(flags, report) : absl::OkStatus();
        if (!kept.ok()) return Fail(flags, kept);
      }
    }
  }
  report.erase("error");
  if (absl::Status status = WriteReport(flags, report); !status.ok()) return Fail(flags, status);
  return kExitOk;
}

Command AddModelBench(CLI::App* app, bool decodes) {
  auto flags = std::make_shared<ModelBenchFlags>();
  flags->decodes = decodes;
  app->add_option("--model", flags->model, "Folder of the model; weights may be random")
      ->required()
      ->type_name("DIR");
  app->add_option("--batch", flags->batches, "Requests at once, separated by commas")
      ->delimiter(',')
      ->check(IntegerBetween(1, 65536))
      ->capture_default_str();
  if (decodes) {
    app->add_flag("--fill", flags->fill,
                  "Time as many requests as the pool holds at once, at most --batch");
  }
  app->add_option("--context", flags->contexts, "Prompt tokens of each, separated by commas")
      ->delimiter(',')
      ->check(IntegerBetween(1, INT_MAX))
      ->capture_default_str();
  app->add_option("--compression", flags->policies, "Policy; may be given several times")
      ->type_name("POLICY")
      ->allow_extra_args(false);
  app->add_option("--pod-groups", flags->pod_groups, "A calibration for pod(groups=NAME)")
      ->type_name("NAME=FILE");
  if (decodes) {
    app->add_option("--tokens", flags->tokens, "Decode steps that are timed")
        ->check(IntegerBetween(1, 1000000))
        ->capture_default_str();
  }
  app->add_option("--repeats", flags->repeats, "Runs of each row; the best one counts")
      ->check(IntegerBetween(1, INT_MAX))
      ->capture_default_str();
  app->add_option("--device", flags->device,
                  "auto: the first GPU, or the CPU where there is none; cpu; cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  app->add_option("--threads", flags->threads,
                  "Threads of computation; 0: one for each CPU it may use")
      ->check(IntegerBetween(0, 1024))
      ->capture_default_str();
  app->add_option("--prefill-tokens", flags->prefill_tokens,
                  "Prompt tokens that are computed as one batch")
      ->check(IntegerBetween(1, INT_MAX))
      ->capture_default_str();
  app->add_option("--dtype", flags->dtype, "Weights, activations and cache in bf16 or f32")
      ->type_name("TYPE")
      ->capture_default_str();
  app->add_option("--kv-cache-memory", flags->kv_cache_memory, "Memory of the pool")
      ->type_name("SIZE")
      ->capture_default_str();
  app->add_option("--json", flags->json, "Also write the figures to this file")->type_name("FILE");
  app->footer(decodes ? kDecodeExamples : kPrefillExamples);
  return {app, [flags] { return RunModelBench(*flags); }, /*computes=*/true};
}

}  // namespace

Command AddBenchDecode(CLI::App& bench) {
  return AddModelBench(bench.add_subcommand("decode", "Time decode steps in this process"), true);
}

Command AddBenchPrefill(CLI::App& bench) {
  return AddModelBench(bench.add_subcommand("prefill", "Time prefill in this process"), false);
}

}  // namespace ziggurat
