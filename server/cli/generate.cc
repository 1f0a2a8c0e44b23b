// `ziggurat generate`: one request to a daemon, streamed to the terminal.
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"
#include "nlohmann/json.hpp"
#include "server/cli/cache_picture.h"
#include "server/cli/call_status.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/on_signal.h"
#include "server/cli/standard_input.h"
#include "server/cli/validators.h"
#include "server/json_text.h"
#include "server/message_json.h"
#include "server/signals.h"

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kReportColumns = 78;

constexpr char kExamples[] = R"(Examples:
  ziggurat generate "Once upon a time" --max-tokens 40
  ziggurat generate --temperature 0.8 --top-p 0.95 --seed 7 < prompt.txt
  ziggurat generate "..." --compression 'pyramidkv(budget=512)' --json
  ziggurat generate "..." --compression 'simlayerkv+kivi(bits=4)' --report --attention-recall

The prompt is the argument, or else all of stdin, line breaks and all; it is UTF-8. Ctrl-C
cancels the request.)";

struct GenerateFlags {
  ServerFlags server;
  std::optional<std::string> prompt;
  std::string request_id;
  std::string compression;
  std::optional<int> max_tokens;
  std::optional<int> min_tokens;
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;
  std::optional<int> logprobs;
  std::vector<std::string> stop;
  std::vector<int> stop_token_ids;
  std::optional<double> deadline_seconds;
  bool plain = false;
  bool ignore_eos = false;
  bool json = false;
  bool report = false;
  bool attention_recall = false;
};

v1::GenerateRequest MakeRequest(const GenerateFlags& flags, const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_request_id(flags.request_id);
  request.set_text(prompt);
  request.set_plain_text(flags.plain);
  request.set_compression(flags.compression);
  request.set_ignore_eos(flags.ignore_eos);
  request.set_echo_prompt_token_ids(flags.json);
  request.set_report_attention_recall(flags.attention_recall);
  request.mutable_stop()->Add(flags.stop.begin(), flags.stop.end());
  request.mutable_stop_token_ids()->Add(flags.stop_token_ids.begin(), flags.stop_token_ids.end());
  if (flags.max_tokens) request.set_max_tokens(*flags.max_tokens);
  if (flags.min_tokens) request.set_min_tokens(*flags.min_tokens);
  if (flags.logprobs) request.set_logprobs(*flags.logprobs);
  v1::SamplingParameters& sampling = *request.mutable_sampling();
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling.set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling.set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling.set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling.set_seed(*flags.seed);
  return request;
}

// "FINISH_REASON_STOP" -> "stop"
std::string FinishReasonText(v1::FinishReason reason) {
  const std::string name = v1::FinishReason_Name(reason);
  return absl::AsciiStrToLower(name.substr(std::string("FINISH_REASON_").size()));
}

// What has come of the answer, gathered for --json.
struct Answer {
  Json prompt_token_ids = Json::array();
  Json token_ids = Json::array();
  Json logprobs = Json::array();
  std::string text;

  void Add(const v1::GenerateChunk& chunk) {
    for (const int32_t id : chunk.prompt_token_ids()) prompt_token_ids.push_back(id);
    for (const int32_t id : chunk.token_ids()) token_ids.push_back(id);
    for (const v1::TokenLogprobs& token : chunk.logprobs()) logprobs.push_back(MessageJson(token));
    text += chunk.text();
  }

  Json ToObject(const v1::GenerateResult& result, bool with_logprobs) const {
    Json object = {{"request_id", result.request_id()},
                   {"prompt_token_ids", prompt_token_ids},
                   {"token_ids", token_ids},
                   {"text", text},
                   {"finish_reason", FinishReasonText(result.finish_reason())}};
    if (result.has_stop_string()) object["stop_string"] = result.stop_string();
    if (result.has_stop_token_id()) object["stop_token_id"] = result.stop_token_id();
    if (with_logprobs) object["logprobs"] = logprobs;
    object["usage"] = MessageJson(result.usage());
    object["timings"] = MessageJson(result.timings());
    object["cache"] = MessageJson(result.cache());
    return object;
  }
};

bool Print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

int Fail(const auto& what, int exit_code = kExitFailure) {
  return SayFailure("generate", what, exit_code);
}

int Generate(const GenerateFlags& flags) {
  if (flags.attention_recall && !flags.report && !flags.json) {
    return Fail("--attention-recall is shown by --report or --json", kExitUsage);
  }
  if (flags.logprobs && !flags.json) return Fail("--logprobs are shown by --json", kExitUsage);
  const absl::StatusOr<std::string> prompt = flags.prompt ? *flags.prompt : ReadStandardInput();
  if (!prompt.ok()) return Fail(prompt.status());
  if (const absl::Status status = ValidateUtf8(*prompt); !status.ok()) {
    return Fail(Prefixed("prompt", status), kExitUsage);
  }
  const absl::StatusOr<ServerAccess> access = ReadServerAccess(flags.server);
  if (!access.ok()) return Fail(access.status());
  TerminationSignals signals;  // before gRPC starts threads
  const std::unique_ptr<v1::Ziggurat::Stub> stub = Connect(flags.server, *access);
  grpc::ClientContext context;
  if (flags.deadline_seconds) SetDeadline(context, absl::Seconds(*flags.deadline_seconds));
  std::atomic<bool> has_stopped = false;
  const OnSignal cancel(signals, [&] {
    has_stopped = true;
    context.TryCancel();
  });
  const auto stream = stub->Generate(&context, MakeRequest(flags, *prompt));
  v1::GenerateResponse response;
  Answer answer;
  std::optional<v1::GenerateResult> result;
  bool is_lost = false;  // nobody takes what is printed, as is said in the end
  while (stream->Read(&response)) {
    if (response.has_result()) {
      result = response.result();
      continue;
    }
    answer.Add(response.chunk());
    if (flags.json) continue;
    if (Print(response.chunk().text())) continue;
    is_lost = true;
    context.TryCancel();
  }
  const grpc::Status status = stream->Finish();
  if (is_lost) return kExitFailure;
  if (!flags.json && !answer.text.empty()) std::fputc('\n', stdout);
  if (has_stopped && !status.ok()) return Fail("stopped");
  if (!status.ok()) {
    return Fail(DescribeError(status, flags.server), ExitCodeOf(status));
  }
  if (!result) return Fail("the answer has no end");
  if (flags.json) {
    std::printf("%s\n", JsonText(answer.ToObject(*result, flags.logprobs.has_value())).c_str());
  }
  if (flags.report) std::fputs(DrawReport(result->cache(), kReportColumns).c_str(), stdout);
  return kExitOk;
}

}  // namespace

Command AddGenerate(CLI::App& app) {
  CLI::App* generate = app.add_subcommand("generate", "Send a prompt to a daemon");
  auto flags = std::make_shared<GenerateFlags>();
  generate->add_option("prompt", flags->prompt, "The prompt; without it, stdin")->check(Utf8Text());
  AddServerFlags(*generate, flags->server);
  generate
      ->add_option(
          "--compression", flags->compression,
          "Compression policy, e.g. 'snapkv(budget=256)' (default: the daemon's); `ziggurat "
          "policies` lists them")
      ->check(Utf8Text())
      ->type_name("POLICY");
  generate->add_option("--max-tokens", flags->max_tokens,
                       "Most tokens to generate, from 1 to what the context has left (default: the "
                       "daemon's --default-max-tokens, or what the context has left)");
  generate->add_option("--min-tokens", flags->min_tokens,
                       "No stop before this many tokens, from 0 to --max-tokens (default: 0)");
  generate->add_option("--temperature", flags->temperature,
                       "From 0 to 100; 0 (default): the most probable token");
  generate->add_option("--top-k", flags->top_k,
                       "Only the K most probable tokens; 0 (default): all");
  generate->add_option(
      "--top-p", flags->top_p,
      "Only the most probable that reach P together; above 0, to 1 (default): all");
  generate->add_option(
      "--min-p", flags->min_p,
      "Only those at least P times the most probable; from 0 (default): all, to 1");
  generate->add_option("--repetition-penalty", flags->repetition_penalty,
                       "Over prompt and output; above 0, to 10; 1 (default): off");
  generate->add_option("--presence-penalty", flags->presence_penalty,
                       "Over the output; from -2 to 2; 0 (default): off");
  generate->add_option("--frequency-penalty", flags->frequency_penalty,
                       "Over the output; from -2 to 2; 0 (default): off");
  generate->add_option("--seed", flags->seed, "Same seed, same text");
  generate->add_option("--stop", flags->stop, "End at this text; may be given more than once")
      ->allow_extra_args(false)
      ->check(Utf8Text())
      ->type_name("TEXT");
  generate
      ->add_option("--stop-token-id", flags->stop_token_ids,
                   "End at this token; may be given more than once")
      ->allow_extra_args(false);
  generate->add_flag("--plain", flags->plain,
                     "Special tokens written out in the prompt are ordinary text");
  generate->add_flag("--ignore-eos", flags->ignore_eos, "Do not end at the model's stop tokens");
  generate->add_option(
      "--logprobs", flags->logprobs,
      "With --json: log probabilities, and those of the N best, from 0 to 20 (default: "
      "none)");
  generate->add_option("--deadline", flags->deadline_seconds, "Give up after so many seconds")
      ->check(PositiveNumber())
      ->type_name("SECONDS");
  generate->add_option("--request-id", flags->request_id, "For the daemon's log lines")
      ->check(Utf8Text());
  generate->add_flag("--json", flags->json,
                     "Print one JSON object: token ids, text, usage, timings, cache report");
  generate
      ->add_flag("--report", flags->report,
                 "Draw the cache that the request held, and say what is in it, after the text")
      ->excludes("--json");
  generate->add_flag("--attention-recall", flags->attention_recall,
                     "With --report or --json: the share of the last prompt tokens' attention that "
                     "falls on what each layer kept");
  generate->footer(kExamples);
  return {generate, [flags] { return Generate(*flags); }};
}

}  // namespace ziggurat
