// The commands of the binary, as they are typed.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/pod_groups_file.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

TEST(Cli, VersionNamesCommitAndBackends) {
  const CommandResult result = RunZiggurat({"--version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::StartsWith("ziggurat 0."));
  EXPECT_THAT(result.out, testing::HasSubstr("\nbackends: cpu-"));
}

TEST(Cli, HelpNamesEveryCommandAndPolicy) {
  const CommandResult result = RunZiggurat({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* command :
       {"serve", "generate", "tokenize", "cache", "make-model", "plan", "policies"}) {
    EXPECT_THAT(result.out, testing::HasSubstr(command));
  }
  const CommandResult serve = RunZiggurat({"serve", "--help"});
  EXPECT_EQ(serve.exit_code, 0);
  for (const char* word : {"--model",
                           "--listen",
                           "--http",
                           "--kv-cache-memory",
                           "--compression",
                           "--dtype",
                           "--threads",
                           "--max-running",
                           "--max-queue",
                           "--max-queue-time",
                           "--max-prompt-tokens",
                           "--default-max-tokens",
                           "--prefill-tokens",
                           "--prefill-slice",
                           "--short-prefill-tokens",
                           "--allow-compression",
                           "--log-level",
                           "--pod-groups",
                           "full",
                           "streaming",
                           "snapkv",
                           "pyramidkv",
                           "windowkv",
                           "h2o",
                           "squeeze",
                           "simlayerkv",
                           "minicache",
                           "pod",
                           "kivi",
                           "int8",
                           "fp8"}) {
    EXPECT_THAT(serve.out, testing::HasSubstr(word));
  }
}

TEST(Cli, PoliciesAreListedAndDescribed) {
  EXPECT_THAT(RunZiggurat({"serve", "--help"}).out,
              testing::HasSubstr(RunZiggurat({"policies"}).out));
  const CommandResult two = RunZiggurat({"policies", "kivi", "full"});
  EXPECT_EQ(two.exit_code, 0);
  EXPECT_THAT(two.out, testing::StartsWith("kivi(bits=4,group=32,residual=32)\n"));
  EXPECT_THAT(two.out, testing::HasSubstr("bits: of a code; 4 or 2; default 4"));
  EXPECT_THAT(two.out, testing::EndsWith("\nfull\n    keeps everything\n"));
  const CommandResult unknown = RunZiggurat({"policies", "full", "snapvk"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, testing::StartsWith("ziggurat policies: unknown policy 'snapvk' (did "
                                               "you mean 'snapkv'?); known are fp8, full"));
}

TEST(Cli, HelpSaysWhatNumbersMayBeAndWhatIsOff) {
  std::string help = RunZiggurat({"generate", "--help"}).out;
  const auto is_space = [](char c) { return c == ' ' || c == '\n'; };
  help.erase(std::unique(help.begin(), help.end(),
                         [&](char a, char b) { return is_space(a) && is_space(b); }),
             help.end());
  std::replace(help.begin(), help.end(), '\n', ' ');
  for (const char* words :
       {"from 1 to what the context has left (default: the daemon's --default-max-tokens",
        "From 0 to 100; 0 (default): the most", "0 (default): all", "above 0, to 1 (default): all",
        "from 0 (default): all, to 1", "above 0, to 10; 1 (default): off",
        "from -2 to 2; 0 (default): off", "from 0 to 20 (default: none)"}) {
    EXPECT_THAT(help, testing::HasSubstr(words));
  }
  const std::string kernels = RunZiggurat({"bench", "kernels", "--help"}).out;
  for (const char* words : {"decode/FORMAT/D:SIZE/group:N", "gemm/", "granite (tiles"}) {
    EXPECT_THAT(kernels, testing::HasSubstr(words));
  }
}

TEST(Cli, TokenizeGoesThereAndBack) {
  const std::string model = NeedleLlama();
  const std::string text = " The passkey of Dora Todd is 78474.\nZażółć 🏛 <|eos|> end";
  const CommandResult ids = RunZiggurat({"tokenize", "--tokenizer", model}, text);
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  const CommandResult back =
      RunZiggurat({"tokenize", "--tokenizer", model, "--decode", "--special"}, ids.out);
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.out, text);
}

TEST(Cli, GenerateJsonIsOneObjectThatAgreesWithTheApi) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const std::string prompt = PlainEnglish(3, 30);
  const std::string policy = "pyramidkv(budget=64)";
  v1::GenerateRequest request = TextRequest(prompt, 20, AtEos::kGoOn);
  request.set_compression(policy);
  request.set_echo_prompt_token_ids(true);
  const Generation expected = Generate(daemon, request);
  ASSERT_TRUE(expected.ok()) << expected.Describe();

  const std::vector<std::string> flags = {"generate",
                                          "--server",
                                          daemon.grpc_address(),
                                          "--json",
                                          "--compression",
                                          policy,
                                          "--max-tokens",
                                          "20",
                                          "--ignore-eos",
                                          "--temperature",
                                          "0"};
  std::vector<std::string> with_argument = flags;
  with_argument.push_back(prompt);
  for (const CommandResult& result : {RunZiggurat(with_argument), RunZiggurat(flags, prompt)}) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json object = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(object.is_object()) << result.out;
    EXPECT_EQ(object["prompt_token_ids"].get<std::vector<int32_t>>(), expected.prompt_token_ids);
    EXPECT_EQ(object["token_ids"].get<std::vector<int32_t>>(), expected.token_ids);
    EXPECT_EQ(object["text"].get<std::string>(), expected.text);
    EXPECT_EQ(object["finish_reason"].get<std::string>(), "length");
    EXPECT_EQ(object["usage"]["prompt_tokens"].get<int>(),
              static_cast<int>(expected.prompt_token_ids.size()));
    EXPECT_EQ(object["usage"]["completion_tokens"].get<int>(), 20);
    ASSERT_TRUE(object.contains("cache")) << result.out;
    EXPECT_EQ(object["cache"]["layers"].size(), 8u);
    EXPECT_EQ(object["cache"]["blocks"].get<uint64_t>(), expected.result->cache().blocks());
  }
}

TEST(Cli, GenerateStreamsTheTextAndSeedsRepeat) {
  START_DAEMON(daemon, {});
  const Generation expected =
      Generate(daemon, TextRequest(" The old house stood", 12, AtEos::kGoOn));
  ASSERT_TRUE(expected.ok());
  const CommandResult greedy =
      RunZiggurat({"generate", "--server", daemon.grpc_address(), "--max-tokens", "12",
                   "--ignore-eos", " The old house stood"});
  ASSERT_EQ(greedy.exit_code, 0) << greedy.err;
  EXPECT_THAT(greedy.out, testing::HasSubstr(expected.text));
  const auto draw = [&](const char* seed) {
    return RunZiggurat({"generate", "--server", daemon.grpc_address(), "--max-tokens", "30",
                        "--temperature", "1.5", "--seed", seed, "--ignore-eos", " The old house"});
  };
  EXPECT_EQ(draw("7").out, draw("7").out);
  EXPECT_NE(draw("7").out, draw("8").out);
}

TEST(Cli, GenerateTakesThePromptBehindAStopText) {
  START_DAEMON(daemon, {});
  for (const char* flag : {"--stop", "--stop-token-id"}) {
    const CommandResult result =
        RunZiggurat({"generate", "--server", daemon.grpc_address(), "--max-tokens", "3", "--json",
                     flag, "5", " The old house stood"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json answer = json::parse(result.out);
    const Generation expected =
        Generate(daemon, TextRequest(" The old house stood", 1, AtEos::kGoOn));
    EXPECT_EQ(answer["usage"]["prompt_tokens"].get<uint64_t>(),
              expected.result->usage().prompt_tokens());
  }
}

TEST(Cli, WrongFlagsAreNamedWithWhatIsAllowed) {
  const std::string model = NeedleLlama().string();
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"generate", "--deadline", "nan", "x"}, "'nan' must be a number above 0 and below 1e9"},
      {{"health", "--timeout", "nan"}, "'nan' must be a number from 0.01 to 3600"},
      {{"health", "--address", "127.0.0.1:116487"}, "the port must be from 1 to 65535, not 116487"},
      {{"generate", "--server", "", "x"}, "--server is empty"},
      {{"generate", "--server", "localhost", "x"}, "--server: 'localhost' has no port: must be"},
      {{"generate", "--server", ":50051", "x"}, "--server: ':50051' has no host: must be"},
      {{"generate", "--server", "[::1:50051", "x"}, "--server: '[::1:50051' has no host: must be"},
      {{"generate", "--seed", "-1", "x"}, "'-1' must be an integer from 0 to 18446744073709551615"},
      {{"bench", "serve", "--seed", "-1"}, "'-1' must be an integer from 0 to"},
      {{"generate", "--max-tokens", "010", "x"}, "'010' must be a decimal integer"},
      {{"serve", "--page", "maybe"},
       "ziggurat serve: --page: 'maybe' is no switch: must be on or off"},
      {{"serve", "--threads", "x"}, "--threads: 'x' is no integer"},
      {{"serve", "--threads=", "--print-config"}, "ziggurat serve: --threads is empty"},
      {{"generate", "x", "--max-tokens=", "--json"}, "ziggurat generate: --max-tokens is empty"},
      {{"serve", "--model", model, "--kv-cache-memory", "99999999TiB"}, "must be below 2^63 bytes"},
      {{"serve", "--model", model, "--drain-timeout", "nan"}, "must be seconds, such as 2.5"},
      {{"serve", "--check-integrity=x"}, "--check-integrity: 'x' is no switch: must be true or"},
      {{"bench", "scheduler", "--layers", "16,many"},
       "--layers: 'many' must be an integer from 1 to 1024"},
      {{"generate", "\xff"}, "prompt: the text is not valid UTF-8: byte 0xff at offset 0"},
      {{"generate", "--request-id", "\xff", "x"}, "--request-id: the text is not valid UTF-8"},
      {{"generate", "--stop", "a", "--stop", "b\xff", "x"}, "--stop: the text is not valid UTF-8"},
      {{"generate", "--compression", "\xff", "x"}, "--compression: the text is not valid UTF-8"},
      {{"generate", "--top-p", "most", "x"}, "--top-p: 'most' is no number"},
      {{"--foo"}, "ziggurat: '--foo' is no flag; `ziggurat --help` lists"},
      {{"--foo", "serve"}, "'--foo' is no flag; `ziggurat serve --help` lists"},
      {{"--model=x", "serve"}, "'--model' must stand behind 'serve'"},
      {{"serve", "--modle", "x"}, "serve: '--modle' is no flag (did you mean '--model'?); `zig"},
      {{"serve", "--zz", "1", "--listne=x", "y"},
       "'--zz' is no flag; '--listne' is no flag (did you mean '--listen'?); 'y' was not expected"},
      {{"eval", "--taks", "x", "--out", "y"}, "'--taks' is no flag (did you mean '--tasks'?)"},
      {{"generate", "hi", "there"}, "'there' was not expected"},
      {{"plan", "--model", model, "--memory", ""}, "--memory is empty"},
      {{"bench", "decode", "--model", ""}, "--model is empty"},
      {{"bench", "foo"}, "ziggurat bench: 'foo' is no command; `ziggurat bench --help` lists"},
      {{"genrate", "x"}, "ziggurat: 'genrate' is no command (did you mean 'generate'?); `ziggurat"},
      {{"bench", "kernels", "--filter", "("}, "--filter '(' is no regular expression"},
      {{"bench", "serve", "--clients", "0"},
       "ziggurat bench serve: --clients: '0' must be an integer from"},
      {{"bench", "serve", "--clients", "\x1b[31m"}, "\\x1b[31m"},
      {{"\x1b[31mfoo"}, "\\x1b[31mfoo"}};
  for (const auto& [arguments, message] : wrong) {
    const CommandResult result = RunZiggurat(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, testing::HasSubstr(message));
    EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("\x1b")));
  }
}

TEST(Cli, CommandsCallTheSameThingByTheSameName) {
  // A value that is refused shows that the flag was known.
  const std::pair<std::vector<std::string>, const char*> flags[] = {
      {{"health", "--server"}, "--server"},
      {{"health", "--address"}, "--server"},
      {{"cache", "--address"}, "--server"},
      {{"eval", "--deadline"}, "--deadline"},
      {{"eval", "--timeout"}, "--deadline"},
      {{"bench", "serve", "--deadline"}, "--deadline"},
      {{"bench", "serve", "--timeout"}, "--deadline"}};
  for (auto [arguments, name] : flags) {
    arguments.emplace_back("nowhere");
    const CommandResult result = RunZiggurat(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, testing::HasSubstr(absl::StrCat(name, ": 'nowhere'"))) << arguments[0];
  }
}

TEST(Cli, OutputThatIsLostIsNoSuccess) {
  for (const char* command :
       {R"("$0" plan --model "$1" > /dev/full)", R"("$0" --help > /dev/full)"}) {
    auto shell = ChildProcess::Start({"/bin/sh", "-c", command, Binary(), NeedleLlama()});
    ASSERT_TRUE(shell.ok()) << shell.status();
    EXPECT_EQ((*shell)->Wait(absl::Seconds(60)), 1) << command;
    EXPECT_THAT((*shell)->stderr_text(), testing::HasSubstr("could not be written"));
  }
}

TEST(Cli, StandardStreamsMayBeClosed) {
  const TemporaryFolder folder;
  const std::string out = (folder / "out").string();
  const auto run = [&](const std::string& command) {
    auto shell = ChildProcess::Start({"/bin/sh", "-c", command, Binary(), NeedleLlama(), out});
    EXPECT_TRUE(shell.ok()) << shell.status();
    return shell.ok() ? (*shell)->Wait(absl::Seconds(60)) : -1;
  };
  EXPECT_EQ(run(R"("$0" tokenize --tokenizer "$1" < /dev/null > "$2" 2>&-)"), 0);
  EXPECT_EQ(run(R"("$0" tokenize --tokenizer "$1" > "$2" <&-)"), 1);
  EXPECT_EQ(run(R"("$0" plan --model "$1" >&-)"), 1) << "lost output is no success";
  // What is written goes to no file that is opened meanwhile.
  EXPECT_EQ(run(R"("$0" bench decode --model "$1" --batch 1 --context 8 --tokens 4 --repeats 1 )"
                R"(--kv-cache-memory 4MiB --json "$2" <&- >&- 2>&-)"),
            1);
  EXPECT_FALSE(nlohmann::json::parse(ReadFile(out), nullptr, false).is_discarded());
}

TEST(Cli, AFolderMayHaveAnyName) {
  const TemporaryFolder folder;
  const std::filesystem::path model = folder /
                                      "mod\xff"
                                      "el";
  std::filesystem::create_directory(model);
  std::filesystem::copy(NeedleLlama() / "config.json", model / "config.json");
  const CommandResult plan = RunZiggurat({"plan", "--model", model, "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_FALSE(nlohmann::json::parse(plan.out, nullptr, false).is_discarded());
}

TEST(Cli, AnAnswerThatNobodyTakesIsCancelled) {
  START_DAEMON(daemon, {});
  auto shell = ChildProcess::Start(
      {"/bin/sh", "-c",
       R"("$0" generate " The old house" --max-tokens 3000 --ignore-eos --server "$1" > /dev/full)",
       Binary(), daemon.grpc_address()});
  ASSERT_TRUE(shell.ok()) << shell.status();
  EXPECT_EQ((*shell)->Wait(absl::Seconds(60)), 1);
  EXPECT_THAT((*shell)->stderr_text(), testing::HasSubstr("could not be written"));
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Metrics()["ziggurat_requests_finished_total{reason=\"length\"}"], 0);
}

/// Takes connections and never says a word.
class SilentServer {
 public:
  SilentServer() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, name, size), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    EXPECT_EQ(getsockname(socket_, name, &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~SilentServer() { close(socket_); }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;

  const std::string& address() const { return address_; }
  bool WaitForConnection() const {
    pollfd connection{.fd = socket_, .events = POLLIN, .revents = 0};
    return poll(&connection, 1, 60'000) == 1;
  }

 private:
  const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string address_;
};

TEST(Cli, CtrlCIsObeyedWhileNobodyAnswers) {
  const TemporaryFolder folder;
  WriteFile(folder / "tasks.jsonl", R"({"task": "t", "length": 1, "prompt": "x", "answer": "y"})");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bench", "serve", "--clients", "1"},
        {"eval", "--tasks", folder / "tasks.jsonl", "--out", folder / "out"},
        {"generate", "x"}}) {
    const SilentServer server;
    std::vector<std::string> argv = {Binary()};
    argv.insert(argv.end(), command.begin(), command.end());
    argv.insert(argv.end(), {"--server", server.address()});
    auto process = ChildProcess::Start(argv);
    ASSERT_TRUE(process.ok()) << process.status();
    ASSERT_TRUE(server.WaitForConnection()) << (*process)->stderr_text();
    (*process)->Signal(SIGINT);
    EXPECT_EQ((*process)->Wait(absl::Seconds(5)), 1) << command[0];
    EXPECT_NE((*process)->stderr_text(), "");
  }
}

TEST(Cli, AFileThatKeepsACommandWaitingKeepsItFromNoSignal) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";  // that nobody writes
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "x", "--token-file", pipe},
        {"generate", "x", "--tls-ca", pipe},
        {"bench", "serve", "--clients", "1", "--token-file", pipe},
        {"eval", "--tasks", pipe, "--out", folder / "out"},
        {"cache", "--watch", "--token-file", pipe}}) {
    std::vector<std::string> argv = {Binary()};
    argv.insert(argv.end(), command.begin(), command.end());
    auto process = ChildProcess::Start(argv);
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_FALSE((*process)->Wait(absl::Milliseconds(500)).has_value()) << command[0];
    (*process)->Signal(SIGTERM);
    EXPECT_EQ((*process)->Wait(absl::Seconds(10)), 128 + SIGTERM) << command[0];
  }
}

TEST(Cli, TheSameMistakeHasTheSameExitCode) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"generate", "x"},
                                                  {"cache"},
                                                  {"health"},
                                                  {"bench", "serve", "--clients", "1"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--token-file", "/no/such/file"});
    EXPECT_EQ(RunZiggurat(arguments).exit_code, 1) << command[0];
  }
  const std::string model = NeedleLlama();
  for (const char* ids : {"x", "99999999"}) {
    EXPECT_EQ(RunZiggurat({"tokenize", "--tokenizer", model, "--decode"}, ids).exit_code, 2) << ids;
  }
  EXPECT_EQ(RunZiggurat({"tokenize", "--tokenizer", "/no/such/folder"}).exit_code, 1);
}

TEST(Cli, GenerateSaysWhatTheDaemonRefused) {
  START_DAEMON(daemon, {});
  const CommandResult result = RunZiggurat({"generate", "--server", daemon.grpc_address(),
                                            "--compression", "squash(budget=3)", " The old house"});
  EXPECT_GT(result.exit_code, 0);
  EXPECT_LT(result.exit_code, 126);
  EXPECT_THAT(result.err, testing::HasSubstr("squash"));
}

/// Full cells (U+2588) of a line: blocks in use.
size_t FullCells(const std::string& line) {
  size_t cells = 0;
  for (size_t at = line.find("█"); at != std::string::npos; at = line.find("█", at + 1)) ++cells;
  return cells;
}

/// Lines of a picture that begin with the number of a layer, by that number.
std::map<int, std::string> LayerLines(const std::string& picture) {
  std::map<int, std::string> lines;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(picture, '\n'))) {
    const size_t digit = line.find_first_not_of(' ');
    if (digit == std::string::npos || line[digit] < '0' || line[digit] > '7') continue;
    if (digit + 1 < line.size() && line[digit + 1] != ' ') continue;
    lines.emplace(line[digit] - '0', line);
  }
  return lines;
}

TEST(Cli, CacheDrawsALayerLongerTheMoreItHolds) {
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = "16MiB"});
  const PromptSource prompts(daemon);
  std::mt19937 random(1);
  v1::GenerateRequest request = IdRequest(prompts.Make(1500, random), 2500, AtEos::kGoOn);
  request.set_compression("pyramidkv(budget=512)");
  CommandResult picture;
  Generate(daemon, request, {.on_message = [&](const Generation& so_far) {
             if (so_far.token_ids.empty()) return true;
             picture = RunZiggurat({"cache", "--server", daemon.grpc_address()});
             return false;
           }});
  ASSERT_EQ(picture.exit_code, 0) << picture.err;
  std::printf("%s\n", picture.out.c_str());
  EXPECT_THAT(picture.out, testing::HasSubstr("1 running"));
  const std::map<int, std::string> lines = LayerLines(picture.out);
  ASSERT_EQ(lines.size(), 8u) << picture.out;
  for (int l = 1; l < 8; ++l) {
    EXPECT_LE(FullCells(lines.at(l)), FullCells(lines.at(l - 1))) << "layer " << l;
  }
  EXPECT_GT(FullCells(lines.at(0)), FullCells(lines.at(7)));
}

TEST(Cli, ReportsSayWhatLayersHold) {
  const PodGroupsFiles groups;
  START_DAEMON(daemon, {.dtype = "bf16", .flags = groups.Flags()});
  const std::string prompt = PlainEnglish(3, 50);
  const auto report = [&](const std::string& policy, const std::vector<std::string>& flags) {
    std::vector<std::string> command = {
        "generate",     "--server", daemon.grpc_address(), "--max-tokens", "20",
        "--ignore-eos", "--report", "--compression",       policy};
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult result = RunZiggurat(command, prompt);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::printf("%s", result.out.substr(result.out.find("layer  blocks")).c_str());
    return result.out;
  };
  const std::string plain = report("full", {});
  EXPECT_THAT(plain, testing::HasSubstr("layers 0-7   bf16 "));
  for (const char* word : {"lazy", "merged", "keys of", "evicted", "quantized", "recall", "int"}) {
    EXPECT_THAT(plain, testing::Not(testing::HasSubstr(word)));
  }
  const std::string lazy =
      report("simlayerkv(threshold=0.6,sinks=4,recent=60)+kivi(bits=4)", {"--attention-recall"});
  EXPECT_THAT(lazy, testing::ContainsRegex("layers? [0-9-]+ +lazy, .* evicted"));
  EXPECT_THAT(lazy,
              testing::ContainsRegex("int4 384 \\+ bf16 [0-9]+, 384 quantized, recall 1.000"));
  const std::string merged = report("minicache(retain=0.1)", {});
  EXPECT_THAT(merged, testing::HasSubstr("layer 5      merged with layer 4, bf16-merged "));
  EXPECT_THAT(merged, testing::HasSubstr("layer 4      merged with layer 5, bf16-merged "));
  const std::string shared = report("pod(groups=fours,sinks=4,recent=60)", {});
  EXPECT_THAT(shared, testing::HasSubstr("layers 5-7   keys of layer 4, bf16-values "));
  EXPECT_THAT(shared, testing::ContainsRegex("distant +[0-9]+ attentions"));
}

TEST(Cli, AttentionRecallNeedsSomethingThatShowsIt) {
  const CommandResult result =
      RunZiggurat({"generate", "--server", "127.0.0.1:1", "--attention-recall", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("--report"));
  const CommandResult logprobs =
      RunZiggurat({"generate", "--server", "127.0.0.1:1", "--logprobs", "2", "x"});
  EXPECT_EQ(logprobs.exit_code, 2);
  EXPECT_THAT(logprobs.err, testing::HasSubstr("--json"));
}

TEST(Cli, WhatTheDaemonNeverGivesIsAskedWrongly) {
  START_DAEMON(daemon, {});
  const CommandResult result = RunZiggurat(
      {"generate", "--server", daemon.grpc_address(), "--compression", "nosuchpolicy", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("nosuchpolicy"));
}

TEST(Cli, JsonHoldsWhatTheReportOfEachLayerHolds) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const CommandResult result = RunZiggurat(
      {"generate", "--server", daemon.grpc_address(), "--max-tokens", "20", "--ignore-eos",
       "--json", "--attention-recall", "--compression", "minicache(retain=0.1)+int8"},
      PlainEnglish(3, 50));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json cache = json::parse(result.out)["cache"];
  EXPECT_EQ(cache["distant_attentions"], 0);
  EXPECT_FALSE(cache["layers"][3].contains("merged_with"));
  const json& layer = cache["layers"][5];
  EXPECT_EQ(layer["merged_with"], 4);
  EXPECT_EQ(layer["keys_of"], json::array());
  EXPECT_EQ(layer["lazy"], false);
  EXPECT_EQ(layer["attention_recall"], 1.0);
  EXPECT_EQ(layer["quantized_tokens"], layer["tokens"]);
  EXPECT_EQ(layer["formats"].size(), 2u);
  uint64_t tokens = 0;
  for (const json& format : layer["formats"]) tokens += format["tokens"].get<uint64_t>();
  EXPECT_EQ(layer["tokens"], tokens);
}

TEST(Cli, MakeModelIsServed) {
  TemporaryFolder folder;
  const CommandResult made =
      RunZiggurat({"make-model", "--out", folder / "model", "--layers", "3", "--hidden-size", "64",
                   "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--intermediate-size",
                   "96", "--vocab-size", "512", "--context", "256"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  START_DAEMON(daemon, {.model = folder / "model"});
  const v1::GetModelResponse model = daemon.GetModel();
  EXPECT_EQ(model.num_layers(), 3u);
  EXPECT_EQ(model.hidden_size(), 64u);
  EXPECT_EQ(model.max_context_tokens(), 256u);
  const Generation generation = Generate(daemon, TextRequest("Any text will do", 20, AtEos::kGoOn));
  EXPECT_TRUE(generation.ok()) << generation.Describe();
  EXPECT_EQ(generation.token_ids.size(), 20u);
}

}  // namespace
}  // namespace ziggurat::e2e
