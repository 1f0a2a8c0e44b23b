// `ziggurat serve`: the daemon.
#include <stdio_ext.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compression/registry.h"
#include "model/checkpoint/model_config.h"
#include "model/decoder/llama_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "server/byte_size.h"
#include "server/cli/command.h"
#include "server/cli/device.h"
#include "server/cli/failure.h"
#include "server/cli/folder_name.h"
#include "server/cli/on_signal.h"
#include "server/cli/security_flags.h"
#include "server/cli/settings.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/log.h"
#include "server/machine_limits.h"
#include "server/signals.h"
#include "server/stop_tokens.h"
#include "server/version.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(When it serves it prints one line on stdout:
  ready grpc=127.0.0.1:50051 http=127.0.0.1:9400

Examples:
  ziggurat serve --model models/needle-llama
  ziggurat serve --model ~/Llama-3.2-1B --kv-cache-memory 4GiB --compression 'pyramidkv(budget=512)'
  ziggurat serve --model DIR --allow-compression full,snapkv
  ziggurat serve --model DIR --listen 0.0.0.0:50051 --tls-cert tls.crt --tls-key tls.key \
      --tls-client-ca ca.crt --auth-token-file tokens
  ziggurat serve --model DIR --listen 127.0.0.1:0 --http 127.0.0.1:0     # any free ports
  ZIGGURAT_KV_CACHE_MEMORY=4GiB ziggurat serve --config /etc/ziggurat.yaml --print-config

Every flag is also a variable, ZIGGURAT_KV_CACHE_MEMORY, and a line of the file that --config names,
`kv-cache-memory: 4GiB`. A flag counts before a variable, that before the file, that before the
default. docs/configuration.md has them all.

SIGTERM, SIGINT and SIGHUP end it in order: it says NOT_SERVING, finishes what it has for up to
--drain-timeout, and exits with 0. A second signal ends what runs at once.)";

struct ServeFlags {
  ServeConfig config;
  std::string config_file;
  bool print_config = false;
  std::string listen = FormatEndpoint(config.grpc);
  std::string http = FormatEndpoint(config.http);
  std::string kv_cache_memory = "512MiB";
  std::string dtype = "bf16";
  std::string prefill_tokens = "auto";
  std::vector<std::string> pod_groups;
};

// The flags that are not plain numbers or strings.
absl::Status FillConfig(const ServeFlags& flags, ServeConfig& config) {
  absl::StatusOr<Endpoint> grpc = ParseEndpoint(flags.listen);
  if (!grpc.ok()) return Prefixed("--listen", grpc.status());
  config.grpc = *grpc;
  absl::StatusOr<Endpoint> http = ParseEndpoint(flags.http);
  if (!http.ok()) return Prefixed("--http", http.status());
  config.http = *http;
  auto groups = LoadPodGroups(flags.pod_groups);
  if (!groups.ok()) return groups.status();
  config.resources.pod_groups = *std::move(groups);
  if (flags.kv_cache_memory.ends_with('%')) {
    absl::StatusOr<double> share = ParseMemoryShare(flags.kv_cache_memory);
    if (!share.ok()) return Prefixed("--kv-cache-memory", share.status());
    config.kv_cache_share = *share;
  } else {
    absl::StatusOr<size_t> bytes = ParseByteSize(flags.kv_cache_memory);
    if (!bytes.ok()) return Prefixed("--kv-cache-memory", bytes.status());
    config.kv_cache_bytes = *bytes;
  }
  const absl::StatusOr<ElementType> dtype = ParseElementType(flags.dtype);
  if (!dtype.ok()) return Prefixed("--dtype", dtype.status());
  config.dtype = *dtype;
  const absl::StatusOr<int> prefill_tokens = ParsePrefillTokens(flags.prefill_tokens);
  if (!prefill_tokens.ok()) return Prefixed("--prefill-tokens", prefill_tokens.status());
  config.prefill_tokens = *prefill_tokens;
  return Validate(config);
}

struct LoadedModel {
  std::unique_ptr<ModelRunner> runner;
  ServedModel served;
};

// What is put around every text must be tokens of the model.
absl::Status CheckTokensAroundTexts(const Tokenizer& tokenizer, int vocab_size) {
  for (const auto& [ids, where] :
       {std::pair(tokenizer.prefix_ids(), "before"), std::pair(tokenizer.suffix_ids(), "behind")}) {
    for (const int32_t id : ids) {
      if (id < vocab_size) continue;
      const absl::StatusOr<std::string_view> piece = tokenizer.IdToPiece(id);
      return absl::InvalidArgumentError(absl::StrCat(
          tokenizer.path().string(), ": the token '", std::string(piece.value_or("?")), "', id ",
          id, ", stands ", where, " every text, and the model has ", vocab_size, " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedModel> LoadModel(const ServeConfig& config) {
  LoadedModel loaded;
  absl::StatusOr<ModelConfig> model = LoadModelConfig(config.model);
  if (!model.ok()) return model.status();
  if (absl::Status status = CheckLimitsOfModel(
          config, model->MaxContextTokens(), model->num_layers,
          CacheGeometry::DefaultBlockBytes(model->num_kv_heads, model->padded_head_dim()));
      !status.ok()) {
    return status;
  }
  spdlog::info("model {}: {}", config.model.string(), model->Describe());
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(config.model);
  if (!tokenizer.ok()) return tokenizer.status();
  loaded.served.tokenizer = *std::move(tokenizer);
  if (absl::Status status = CheckTokensAroundTexts(*loaded.served.tokenizer, model->vocab_size);
      !status.ok()) {
    return status;
  }

  const int threads = ThreadCount(config.threads);
  if (const int cpus = MachineCpus(); threads > cpus) {
    spdlog::warn("--threads is {}, and there are {} CPUs for them: they will wait for each other",
                 threads, cpus);
  }
  loaded.served.name = FolderName(config.model);
  loaded.served.architecture = std::string(ArchitectureName(model->architecture));
  StopTokens stops = ChooseStopTokens(model->eos_token_ids, *loaded.served.tokenizer);
  spdlog::log(stops.ids.empty() ? spdlog::level::warn : spdlog::level::info, "stop tokens: {} ({})",
              stops.ids.empty() ? "none" : absl::StrJoin(stops.ids, ", "), stops.source);
  loaded.served.eos_token_ids = std::move(stops.ids);

  DecoderOptions options;
  options.threads = threads;
  options.short_prefill_tokens = config.short_prefill_tokens;
  options.element = config.dtype;
  const absl::StatusOr<int> device = ChooseDevice(config.device);
  if (!device.ok()) return device.status();
  const bool is_cpu = *device == DeviceChoice::kCpu;
  options.max_prefill_tokens = config.WorkspaceTokens(model->MaxContextTokens(), is_cpu);
  if (absl::Status status = CheckMemoryShare(config, is_cpu); !status.ok()) return status;
  if (is_cpu) {
    if (absl::Status status = CheckPoolFits(config, MachineMemoryBytes()); !status.ok()) {
      return status;
    }
  }
  absl::StatusOr<DeviceRunner> runner =
      LoadOnDevice(config.model, options, *device, config.max_running);
  if (!runner.ok()) return runner.status();
  loaded.runner = std::move(runner->runner);
  loaded.served.backend = std::move(runner->backend);
  std::error_code ignored;
  if (std::filesystem::exists(config.model / "adapter_config.json", ignored)) {
    spdlog::warn("adapter_config.json: adapters are not applied; merge it into the weights first");
  }
  spdlog::info("{} in {}, {} threads, {} vocabulary entries", loaded.served.backend,
               ElementTypeName(loaded.runner->shape().element), threads,
               loaded.runner->shape().vocab_size);
  return loaded;
}

// Waits for a signal, drains; a second signal hurries it. Whether the signal was that of a port
// that takes no more connections.
bool ServeUntilSignalled(TerminationSignals& signals, Daemon& daemon,
                         absl::Duration drain_timeout) {
  const int signal_number = signals.Wait();
  const bool has_port_failed = signals.is_own();
  spdlog::info("signal {}: draining for up to {} s", signal_number,
               absl::ToDoubleSeconds(drain_timeout));
  std::atomic<bool> has_drained = false;
  std::thread impatience([&] {
    while (!has_drained) {
      const int next = signals.Wait(absl::Milliseconds(50));
      // A terminal that is closed says so twice, by its shell and by the kernel; and that a port
      // fails while answers are finished is no reason to cut them off.
      if (next != 0 && next != SIGHUP && !signals.is_own()) daemon.HurryDrain();
    }
  });
  daemon.Drain(drain_timeout);
  has_drained = true;
  impatience.join();
  return has_port_failed;
}

// A connection takes one, and the usual limit of 1,024 is a shell's, for programs that wait with
// select().
void RaiseFileLimit() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Fail(const absl::Status& status, int exit_code) {
  return SayFailure("serve", status, exit_code);
}

int FailOfPorts() {
  return Fail(absl::UnavailableError("no more connections could be taken at a port: where files "
                                     "ran out, raise the limit of open ones (ulimit -n)"),
              kExitFailure);
}

// Says where the flag came from that is to blame.
absl::Status Located(const Settings& settings, const absl::Status& status) {
  return {status.code(), settings.Locate(std::string(status.message()))};
}

int Serve(ServeFlags& flags, CLI::App& command) {
  const absl::StatusOr<Settings> settings = Settings::Complete(command, ProcessEnvironment());
  if (!settings.ok()) return Fail(settings.status(), kExitUsage);
  if (flags.print_config) std::printf("%s", settings->ToYaml().c_str());
  ServeConfig& config = flags.config;
  if (absl::Status status = FillConfig(flags, config); !status.ok()) {
    return Fail(Located(*settings, status), kExitUsage);
  }
  SetUpLogging(*ParseLogLevel(config.log_level));
  RaiseFileLimit();
  for (const std::string& warning : settings->warnings()) spdlog::warn("{}", warning);
  if (flags.print_config) return kExitOk;
  TerminationSignals signals;  // before any other thread
  spdlog::info("ziggurat {}", VersionText());
  // Loading cannot be interrupted, and there is nobody to drain.
  std::optional<OnSignal> loading(std::in_place, signals, [&signals] {
    std::_Exit(signals.is_own() ? FailOfPorts() : kExitOk);
  });
  const auto fail = [&](const absl::Status& status) {
    loading.reset();  // a signal that comes now is no reason for it
    return Fail(Located(*settings, status), kExitFailure);
  };
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Create(config);
  if (!daemon.ok()) return fail(daemon.status());
  absl::StatusOr<LoadedModel> model = LoadModel(config);
  if (!model.ok()) return fail(model.status());
  // From here on a signal waits until it can be answered by draining.
  loading.reset();
  if (absl::Status status = (*daemon)->Serve(std::move(model->runner), std::move(model->served));
      !status.ok()) {
    return fail(status);
  }
  spdlog::info("KV cache: {} blocks of {}, {}", (*daemon)->engine().total_blocks(),
               FormatByteSize((*daemon)->engine().options().block_bytes), config.compression);
  std::printf("ready grpc=%s http=%s\n",
              FormatEndpoint({config.grpc.host, (*daemon)->grpc_port()}).c_str(),
              FormatEndpoint({config.http.host, (*daemon)->http_port()}).c_str());
  if (std::fflush(stdout) != 0) {
    spdlog::warn("the line that says so could not be written to stdout: {}", std::strerror(errno));
    __fpurge(stdout);  // and is not tried again
    std::clearerr(stdout);
  }
  if (ServeUntilSignalled(signals, **daemon, config.drain_timeout)) return FailOfPorts();
  spdlog::info("drained, good bye");
  return kExitOk;
}

// The flags, in the order of --help.

void AddFilesAndPorts(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--config", flags.config_file,
                  "File with these settings, a line `name: value` for each (YAML)")
      ->configurable(false)
      ->type_name("FILE");
  serve
      .add_flag("--print-config", flags.print_config,
                "Print every setting and where it comes from, check them, and end")
      ->configurable(false);
  serve
      .add_option("--model", flags.config.model,
                  "Folder of the model, in Hugging Face's format; must be given")
      ->type_name("DIR");
  serve.add_option("--listen", flags.listen, "Where gRPC listens; port 0: any free one")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  serve.add_option("--http", flags.http, "Where /metrics, /healthz, /readyz and the page are")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  AddSecurityFlags(serve, flags.config.security);
}

void AddModelAndCache(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--kv-cache-memory", flags.kv_cache_memory,
                  "Memory of the pool that all KV caches live in, e.g. 512MiB, 2GiB; on a GPU also "
                  "a share of what is free after loading, e.g. 90%")
      ->type_name("SIZE")
      ->capture_default_str();
  serve
      .add_option(
          "--compression", flags.config.compression,
          "Policy of requests that name none, e.g. 'pyramidkv(budget=512)'; `ziggurat policies` "
          "lists them")
      ->type_name("POLICY")
      ->capture_default_str();
  serve
      .add_option("--allow-compression", flags.config.allow_compression,
                  "Policies that requests may name, separated by commas (default: all)")
      ->allow_extra_args(false)
      ->type_name("LIST");
  serve
      .add_option("--pod-groups", flags.pod_groups,
                  "A calibration for pod(groups=NAME), made by 'ziggurat calibrate pod'; may be "
                  "given several times")
      ->type_name("NAME=FILE");
  serve
      .add_option("--dtype", flags.dtype,
                  "Weights, activations and cache in bf16 or f32; f32 takes twice the memory")
      ->type_name("TYPE")
      ->capture_default_str();
  serve
      .add_option("--device", flags.config.device,
                  "auto: the first GPU, or the CPU where there is none; cpu; cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  serve
      .add_option("--threads", flags.config.threads,
                  "Threads of computation; 0: one for each CPU it may use")
      ->capture_default_str();
}

void AddSeconds(CLI::App& serve, const char* flag, absl::Duration& time, const char* help) {
  serve
      .add_option_function<double>(
          flag,
          [&time, flag](double seconds) {
            if (std::isnan(seconds)) {
              throw CLI::ValidationError(flag, "nan is no time: must be seconds, such as 2.5");
            }
            time = absl::Seconds(seconds);
          },
          help)
      ->type_name("SECONDS")
      ->default_str(absl::StrCat(absl::ToDoubleSeconds(time)));
}

void AddLimits(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--max-running", flags.config.max_running,
                  "Requests let in at once, to run or to wait for prefill")
      ->capture_default_str();
  serve
      .add_option("--max-queue", flags.config.max_queue,
                  "Requests that wait for a place; more are refused")
      ->capture_default_str();
  AddSeconds(serve, "--max-queue-time", flags.config.max_queue_time,
             "Requests that have waited so long, and nothing of them was computed, are turned "
             "away, so that under overload the others are answered in time; 0: never");
  serve
      .add_option("--max-prompt-tokens", flags.config.max_prompt_tokens,
                  "Longest prompt; 0: what the model's context holds")
      ->capture_default_str();
  serve
      .add_option("--default-max-tokens", flags.config.default_max_tokens,
                  "Tokens generated where a request sets no limit")
      ->capture_default_str();
  serve
      .add_option(
          "--prefill-tokens", flags.prefill_tokens,
          "Prompt tokens that are computed as one batch; auto: 1024 on a CPU, 8192 on a GPU")
      ->type_name("TOKENS")
      ->capture_default_str();
  serve
      .add_option("--short-prefill-tokens", flags.config.short_prefill_tokens,
                  "Prompts of so many tokens in all are computed beside a longer one, instead of "
                  "behind it; 0: they wait")
      ->capture_default_str();
  AddSeconds(serve, "--prefill-slice", flags.config.prefill_slice,
             "Seconds that answers under way wait for prompts, from token to token; less "
             "lets them flow more evenly, and the first token of others come later");
  serve
      .add_option("--max-streams", flags.config.max_streams,
                  "Generate calls open at once; 0: twice --max-running and --max-queue")
      ->capture_default_str();
  serve
      .add_option("--max-message-bytes", flags.config.max_message_bytes,
                  "Largest message taken from a client")
      ->capture_default_str();
  AddSeconds(serve, "--drain-timeout", flags.config.drain_timeout,
             "Seconds that running requests get when the daemon is told to end");
}

void AddObservation(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--metrics-compat", flags.config.metrics_compat,
                  "vllm: /metrics gives the values under vLLM's names too")
      ->type_name("NAMES");
  serve
      .add_option("--page", flags.config.page,
                  "Whether the HTTP port serves / , a page that shows the cache")
      ->type_name("on|off")
      ->default_str("on");
  serve.add_flag("--check-integrity", flags.config.check_integrity,
                 "Prove after every step that no block is lost, and abort otherwise (slow)");
  serve.add_option("--log-level", flags.config.log_level, "trace, debug, info, warn, error or off")
      ->type_name("LEVEL")
      ->capture_default_str();
}

}  // namespace

Command AddServe(CLI::App& app) {
  CLI::App* serve = app.add_subcommand("serve", "Serve a model over gRPC");
  auto flags = std::make_shared<ServeFlags>();
  AddFilesAndPorts(*serve, *flags);
  AddModelAndCache(*serve, *flags);
  AddLimits(*serve, *flags);
  AddObservation(*serve, *flags);
  serve->footer(absl::StrCat(kExamples, "\n\nPolicies:\n", DescribePolicies()));
  return {serve, [flags, serve] { return Serve(*flags, *serve); }, /*computes=*/true};
}

}  // namespace ziggurat
