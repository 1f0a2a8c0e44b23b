// `ziggurat eval`: what compression policies lose and save, measured against a running daemon.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "server/cli/call_status.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/command_line.h"
#include "server/cli/eval/report.h"
#include "server/cli/eval/result_log.h"
#include "server/cli/eval/resume.h"
#include "server/cli/eval/runner.h"
#include "server/cli/eval/task_file.h"
#include "server/cli/failure.h"
#include "server/cli/on_signal.h"
#include "server/cli/policy_check.h"
#include "server/cli/progress.h"
#include "server/cli/shell_quote.h"
#include "server/cli/terminal.h"
#include "server/cli/validators.h"
#include "server/printable.h"
#include "server/signals.h"

namespace ziggurat {
namespace {

using namespace ziggurat::eval;  // NOLINT(google-build-using-namespace): this is its command

constexpr char kExamples[] = R"(Examples:
  ziggurat serve --model models/needle-llama &
  ziggurat eval --tasks models/needle-llama/tasks.jsonl --out evaluation \
      --compression 'snapkv(budget=128,kernel=9)' \
      --compression 'pyramidkv(budget=128,kernel=9)'
  less evaluation/report.md

Every prompt is asked with every policy and with `full`, which each policy is set beside. A line of a
task file is an object such as
  {"task": "single", "length": 2048, "depth": 0.5, "prompt": "...", "answer": " 78474"}
where depth may be null. An answer is right if it is the right one to the letter.

The report is DIR/report.md, with report.json and pictures beside it. Each finished request is a line
of DIR/results.jsonl at once: after a break (Ctrl-C, say) the same command goes on from there, and a
policy, a file or a larger --limit that is added later costs only what is new.

Times mean what they say only with --concurrency 1 and a daemon that has nothing else to do.
docs/evaluation.md explains every column.)";

struct EvalFlags {
  ServerFlags server;
  std::vector<std::string> tasks;
  std::vector<std::string> compression;
  std::string out;
  std::optional<size_t> limit;
  int concurrency = 1;
  double deadline_seconds = 0;
  AskingOptions asking;
};

int Fail(const auto& what, int exit_code = kExitFailure) {
  return SayFailure("eval", what, exit_code);
}

// How a call that had to succeed ended. An exit code.
int FailCall(const grpc::Status& status, const EvalFlags& flags) {
  return Fail(DescribeError(status, flags.server), ExitCodeOf(status));
}

std::string Message(const absl::Status& status) {
  return PrintableMessage(std::string(status.message()));
}

// The files, each content once.
absl::StatusOr<std::vector<TaskFile>> ReadTaskFiles(const std::vector<std::string>& paths) {
  std::vector<TaskFile> files;
  std::set<std::string> hashes;
  for (const std::string& path : paths) {
    absl::StatusOr<TaskFile> file = ReadTaskFile(path);
    if (!file.ok()) return file.status();
    if (hashes.insert(file->hash).second) {
      files.push_back(*std::move(file));
    } else {
      std::fprintf(stderr, "%s: the same content was named before, left out\n", path.c_str());
    }
  }
  return files;
}

// Has the daemon judge every policy before anything runs. `full` comes first, the others in the
// order of the report; those that mean the same count once. An exit code.
int CheckPolicies(v1::Ziggurat::StubInterface& stub, const EvalFlags& flags,
                  std::vector<EvalPolicy>& policies) {
  std::vector<std::string> texts = {"full"};
  texts.insert(texts.end(), flags.compression.begin(), flags.compression.end());
  std::set<std::string> taken;
  int code = kExitOk;
  for (const std::string& text : texts) {
    EvalPolicy policy{.canonical = "", .name = absl::StrReplaceAll(text, {{" ", ""}})};
    if (policy.name.empty()) return Fail("--compression '': name a policy", kExitUsage);
    const grpc::Status status = CheckPolicy(stub, text, flags.asking.stop, policy.canonical);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return Fail(DescribeError(status, flags.server));
    }
    if (!status.ok()) {
      const std::string what = &text == &texts[0]
                                   ? "the policy that all are set beside, full"
                                   : absl::StrCat("--compression ", ShellQuoted(text));
      Fail(absl::StrCat(what, ": ", DescribeError(status, flags.server)));
      // What is asked wrongly stays so, whatever else could not be done.
      if (IsAskedWrongly(status.error_code())) code = kExitUsage;
      if (code == kExitOk) code = kExitFailure;
    } else if (taken.insert(policy.canonical).second) {
      policies.push_back(std::move(policy));
    }
  }
  if (code != kExitOk) return code;
  std::sort(policies.begin() + 1, policies.end(), [](const EvalPolicy& a, const EvalPolicy& b) {
    return PolicyBefore(a.canonical, b.canonical);
  });
  return kExitOk;
}

bool IsTerminal() { return isatty(STDERR_FILENO) == 1; }

// Chooses the questions and has the daemon count their tokens.
grpc::Status Prepare(v1::Ziggurat::StubInterface& stub, const EvalFlags& flags,
                     const std::vector<TaskFile>& files, std::vector<Asking>& askings,
                     RunInfo& info) {
  for (const TaskFile& file : files) {
    const std::vector<size_t> chosen =
        SpreadOverDepths(file.questions, flags.limit.value_or(file.questions.size()));
    info.files.emplace_back(&file, chosen.size());
    for (const size_t index : chosen) {
      Asking asking{.file = &file, .index = index, .stop = {}, .prompt_token_ids = {}};
      const grpc::Status status = PrepareAsking(stub, flags.asking, asking);
      if (!status.ok()) {
        return {status.error_code(),
                absl::StrCat(file.path, ", prompt ", index + 1, ": ", status.error_message())};
      }
      askings.push_back(std::move(asking));
    }
  }
  return grpc::Status::OK;
}

// Asks what is left and adds what comes to the results. An exit code; what was done is kept.
int Ask(v1::Ziggurat::StubInterface& stub, const EvalFlags& flags, const RunInfo& info,
        std::vector<Job> jobs, ResultLog& log, TerminationSignals& signals,
        std::map<ResultKey, Result>& results) {
  if (jobs.empty()) return kExitOk;
  RunnerOptions options{.concurrency = flags.concurrency,
                        .attention_recall = flags.asking.attention_recall};
  if (flags.deadline_seconds > 0) options.deadline = absl::Seconds(flags.deadline_seconds);
  ProgressLine line(stderr, IsTerminal(), TerminalColumns(STDERR_FILENO));
  Runner runner(stub, info.model, log, std::move(jobs), options);
  while (!runner.finished()) {
    if (signals.Wait(absl::Milliseconds(100)) != 0) runner.Stop();
    line.Update(runner.progress());
  }
  const absl::Status status = runner.Wait();
  const RunProgress progress = runner.progress();
  line.Finish(progress);
  for (Result& result : runner.TakeResults()) {
    ResultKey key = result.key;
    results.insert_or_assign(std::move(key), std::move(result));
  }
  if (status.ok()) return kExitOk;
  std::string why = Message(status);
  if (absl::IsUnavailable(status)) {
    why = DescribeError({grpc::StatusCode::UNAVAILABLE, why}, flags.server);
  }
  return Fail(absl::StrCat(why, "\n", progress.done, " of ", progress.total,
                           " requests are done and kept in ", log.path(),
                           ". The same command goes on from there:\n", info.command));
}

int Eval(const EvalFlags& flags, std::string command) {
  const absl::StatusOr<std::vector<TaskFile>> files = ReadTaskFiles(flags.tasks);
  if (!files.ok()) {
    return Fail(Message(files.status()), ExitCodeOf(files.status()));
  }
  RunInfo info{.command = std::move(command),
               .server = flags.server.address,
               .time = absl::Now(),
               .model = {},
               .files = {},
               .limit = flags.limit,
               .concurrency = flags.concurrency,
               .asking = flags.asking};
  const absl::StatusOr<ServerAccess> access = ReadServerAccess(flags.server);
  if (!access.ok()) return Fail(Message(access.status()));
  TerminationSignals signals;  // before gRPC starts threads
  const std::unique_ptr<v1::Ziggurat::Stub> connected = Connect(flags.server, *access);
  v1::Ziggurat::Stub& stub = *connected;
  std::optional<OnSignal> preparing(std::in_place, signals,
                                    [] { std::_Exit(Fail("stopped; nothing was asked yet")); });
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(30));
  grpc::Status status = stub.GetModel(&context, {}, &info.model);
  if (!status.ok()) return FailCall(status, flags);
  std::vector<EvalPolicy> policies;
  if (const int code = CheckPolicies(stub, flags, policies); code != kExitOk) return code;
  const absl::StatusOr<std::unique_ptr<ResultLog>> log = ResultLog::Open(flags.out);
  if (!log.ok()) return Fail(Message(log.status()));
  const bool has_heat_maps = absl::c_any_of(*files, [](const TaskFile& file) {
    return absl::c_any_of(file.questions, [](const Question& q) { return q.depth.has_value(); });
  });
  const PictureNames pictures =
      NamePictures(policies, has_heat_maps, flags.asking.attention_recall);
  if (absl::Status report = CheckReport(flags.out, pictures); !report.ok()) {
    return Fail(Message(report), ExitCodeOf(report));
  }
  std::vector<Asking> askings;
  status = Prepare(stub, flags, *files, askings, info);
  if (!status.ok()) return FailCall(status, flags);
  preparing.reset();

  if ((*log)->was_torn()) {
    std::fprintf(stderr, "%s: the last line was torn by a break, and is cut off\n",
                 (*log)->path().c_str());
  }
  Resumption resumption =
      Resume((*log)->earlier(), info.model, policies, askings, flags.asking.attention_recall);
  std::fputs(DescribeResumption(resumption, (*log)->path()).c_str(), stderr);
  std::fprintf(stderr, "%s (%s): prompts %zu, policies %zu, requests to make %zu\n",
               Printable(info.model.name()).c_str(), Printable(info.model.dtype()).c_str(),
               askings.size(), policies.size(), resumption.jobs.size());
  info.reused = resumption.settled.size();
  std::map<ResultKey, Result> results = std::move(resumption.settled);
  const int code = Ask(stub, flags, info, std::move(resumption.jobs), **log, signals, results);
  if (code != kExitOk) return code;

  const Summary summary = Summarize(info.model, policies, askings, results);
  if (absl::Status written = WriteReport(flags.out, info, summary); !written.ok()) {
    return Fail(Message(written));
  }
  int64_t failed = 0;
  int64_t asked = 0;
  for (const Row& row : summary.overall) {
    failed += row.failed;
    asked += row.prompts;
  }
  std::printf("%s\nreport: %s/report.md\n", ShortReport(summary).c_str(), flags.out.c_str());
  if (failed > 0) {
    std::printf(
        "%lld of %lld requests failed and count as wrong; the report says why, and the "
        "same command asks them again\n",
        static_cast<long long>(failed), static_cast<long long>(asked));
  }
  return failed == asked ? Fail("every request failed") : kExitOk;
}

}  // namespace

Command AddEval(CLI::App& app) {
  CLI::App* eval =
      app.add_subcommand("eval", "Measure what compression policies lose and save, and report it");
  auto flags = std::make_shared<EvalFlags>();
  AddServerFlags(*eval, flags->server);
  eval->add_option("--tasks", flags->tasks, "Task files, JSON Lines")
      ->required()
      ->expected(1, 1 << 20)
      ->type_name("FILE...");
  eval->add_option("--compression", flags->compression,
                   "A policy to measure, e.g. 'snapkv(budget=256)'; may be given more than once "
                   "(`ziggurat policies` lists them)")
      ->expected(1)
      ->take_all()
      ->check(Utf8Text())
      ->type_name("POLICY");
  eval->add_option("--out", flags->out, "Folder of the report; made where it is absent")
      ->required()
      ->type_name("DIR");
  eval->add_option("--limit", flags->limit,
                   "Prompts of each file, spread evenly over depths (default: all)")
      ->check(IntegerBetween(1, INT_MAX))
      ->type_name("N");
  eval->add_option("--concurrency", flags->concurrency, "Requests at once")
      ->check(IntegerBetween(1, 1024))
      ->capture_default_str()
      ->type_name("N");
  eval->add_flag("--attention-recall", flags->asking.attention_recall,
                 "Also measure what share of the attention falls on what each layer keeps");
  eval->add_option("--max-tokens", flags->asking.max_tokens,
                   "Most tokens of an answer (default: as many as the right answer has)")
      ->check(IntegerBetween(1, INT_MAX))
      ->type_name("N");
  eval->add_option("--stop", flags->asking.stop,
                   "An answer ends at this text, unless the right answer holds it; may be given "
                   "more than once (default: \".\")")
      ->expected(1)
      ->take_all()
      ->check(Utf8Text())
      ->type_name("TEXT");
  eval->add_option("--hold-back", flags->asking.hold_back,
                   "Tokens at the end of each prompt that are not sent: the model must write them "
                   "before the answer, with the compressed cache (default: 1 where the answer is "
                   "one token, which the uncompressed prefill would bring; else 0)")
      ->check(IntegerBetween(0, 1024))
      ->type_name("N");
  eval->add_option("--deadline,--timeout", flags->deadline_seconds,
                   "Seconds that a request may take; then it has failed (default: any time)")
      ->check(PositiveNumber())
      ->type_name("SECONDS");
  eval->footer(kExamples);
  return {eval, [flags, eval] { return Eval(*flags, CommandLineOf(*eval)); }};
}

}  // namespace ziggurat
