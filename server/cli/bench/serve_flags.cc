#include "server/cli/bench/serve_flags.h"

#include "absl/strings/str_cat.h"
#include "server/cli/bench/load/lengths.h"
#include "server/cli/validators.h"

namespace ziggurat::bench {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat serve --model models/needle-llama &

  # Closed loop: 16 clients, each asks again as soon as it has its answer. What is the most
  # throughput?
  ziggurat bench serve --clients 16 --requests 400 --input-tokens 512 --output-tokens 64

  # Open loop: 2 requests come each second, whatever the daemon does. Which latency do they see?
  ziggurat bench serve --rate 2 --duration 120 --input-tokens sharegpt --output-tokens sharegpt \
      --compression 'pyramidkv(budget=256)' --out load

  # Replay ten minutes of a recorded trace in one, at a quarter of its lengths.
  ziggurat bench serve --trace AzureLLMInferenceTrace_conv.csv --time-scale 0.1 \
      --length-scale 0.25 --duration 60 --out load

Lengths (--input-tokens, --output-tokens) are
  128             always so many tokens
  uniform:64:512  any number from 64 to 512, each as likely
  mean:200:4000   log-normal with a mean of 200, as sharegpt is, and none above 4000
  p50:200,p95:1500,p100:4000
                  half of them up to 200, 95 % up to 1500, all up to 4000; evenly between these
  sharegpt        log-normal with a mean of 161 tokens in and 338 out, as people talk with an
                  assistant; sigma of the logarithm 1
A trace is Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or Mooncake's JSON Lines
(timestamp in ms, input_length, output_length). Prompts are random tokens; every answer has exactly
the length that was drawn. Lengths that do not fit the model's context are cut and counted.

A request is good if it meets both goals: TTFT, counted from when it was due, and ITL, the MEAN time
between its tokens. Goodput by the 99th percentile and by the worst of its tokens stand beside it.

DIR gets result.json (all figures), requests.jsonl (a line for each request), latency.svg,
throughput.svg and cache.svg. docs/benchmarks.md defines every figure.)";

CLI::Validator Length(LengthSide side) {
  return CLI::Validator(
      [side](const std::string& text) {
        return std::string(LengthDistribution::Parse(text, side).status().message());
      },
      "");
}

void AddLoadFlags(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--clients", flags.clients,
                  "Closed loop: so many clients, each of which sends its next request when its "
                  "last one has ended")
      ->check(IntegerBetween(1, 100000))
      ->type_name("N");
  serve
      .add_option("--rate", flags.rate,
                  "Open loop: so many requests arrive each second, at random (Poisson)")
      ->check(NumberBetween(1e-6, 1e9))
      ->type_name("R");
  serve.add_option("--trace", flags.trace, "Replay: arrivals and lengths of a recorded trace")
      ->type_name("FILE");
  serve
      .add_option("--time-scale", flags.time_scale,
                  "Stretches the arrivals of the trace: 0.1 replays it ten times as fast")
      ->check(PositiveNumber())
      ->type_name("X");
  serve.add_option("--length-scale", flags.length_scale, "Scales the lengths of the trace")
      ->check(PositiveNumber())
      ->type_name("X");
  serve
      .add_option("--requests", flags.requests,
                  "Ends after so many (default: 100, or the whole trace; with --duration: any)")
      ->check(IntegerBetween(1, 100000000))
      ->type_name("N");
  serve
      .add_option("--duration", flags.duration,
                  "Sends none that is due after so many seconds; those under way are waited for")
      ->check(PositiveNumber())
      ->type_name("SECONDS");
  serve
      .add_option("--input-tokens", flags.input_tokens,
                  absl::StrCat("Length of prompts (default: ", kDefaultInput, ")"))
      ->check(Length(LengthSide::kInput))
      ->type_name("LENGTH");
  serve
      .add_option("--output-tokens", flags.output_tokens,
                  absl::StrCat("Length of answers (default: ", kDefaultOutput, ")"))
      ->check(Length(LengthSide::kOutput))
      ->type_name("LENGTH");
  serve
      .add_option("--seed", flags.seed,
                  "Of arrivals, lengths and prompts: the same seed makes the same load")
      ->capture_default_str();
}

}  // namespace

void AddServeFlags(CLI::App& serve, ServeFlags& flags) {
  AddServerFlags(serve, flags.server);
  AddLoadFlags(serve, flags);
  serve
      .add_option("--compression", flags.compression,
                  "Policy of every request, e.g. 'snapkv(budget=256)' (default: the daemon's)")
      ->check(Utf8Text())
      ->type_name("POLICY");
  serve
      .add_option("--ttft-goal", flags.goals.ttft_seconds,
                  "A good request has its first token within so many seconds")
      ->check(PositiveNumber())
      ->capture_default_str()
      ->type_name("SECONDS");
  serve
      .add_option("--itl-goal", flags.goals.itl_seconds,
                  "... and no more seconds between its tokens, on average")
      ->check(PositiveNumber())
      ->capture_default_str()
      ->type_name("SECONDS");
  serve
      .add_option("--deadline,--timeout", flags.timeout,
                  "Seconds that a request may take; then it has failed (default: any time)")
      ->check(PositiveNumber())
      ->type_name("SECONDS");
  serve.add_option("--warmup", flags.warmup, "Requests that are made before, and not counted")
      ->check(IntegerBetween(0, 100000))
      ->capture_default_str()
      ->type_name("N");
  serve.add_option("--out", flags.out, "Folder for result.json and pictures; made where absent")
      ->type_name("DIR");
  serve.footer(kExamples);
}

std::string WrongFlags(const ServeFlags& flags) {
  const int loads = (flags.clients ? 1 : 0) + (flags.rate ? 1 : 0) + (flags.trace.empty() ? 0 : 1);
  if (loads != 1) {
    return absl::StrCat(loads == 0 ? "which load? Name" : "name",
                        " one of --clients N (closed loop), --rate R (open loop) and --trace FILE "
                        "(replay)");
  }
  if (flags.trace.empty() && (flags.time_scale || flags.length_scale)) {
    return "--time-scale and --length-scale are for --trace";
  }
  if (!flags.trace.empty() && (flags.input_tokens || flags.output_tokens)) {
    return "--input-tokens and --output-tokens do not go with --trace, which has lengths of its "
           "own; --length-scale scales them";
  }
  return "";
}

}  // namespace ziggurat::bench
