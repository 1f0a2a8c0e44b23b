// Wrong input of every kind: a clear error that names what is wrong, and a daemon that was running
// keeps running.
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/pod_groups_file.h"
#include "tests/e2e/refusal.h"
#include "tests/support/raw_calls.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

// ---- Flags --------------------------------------------------------------------------------------

TEST(WrongInput, WrongFlagsAreRefusedByName) {
  const std::string model = NeedleLlama();
  const std::pair<Words, Words> cases[] = {
      {{"--colour", "blue"}, {"--colour"}},
      {{"--kv-cache-memory", "12parsecs"}, {"--kv-cache-memory", "12parsecs"}},
      {{"--kv-cache-memory", "-1GiB"}, {"--kv-cache-memory", "-1GiB"}},
      {{"--kv-cache-memory", "0"}, {"--kv-cache-memory", "0"}},
      {{"--kv-cache-memory", "nan"}, {"--kv-cache-memory", "nan"}},
      {{"--kv-cache-memory", "999999999TiB"}, {"--kv-cache-memory"}},
      {{"--kv-cache-memory", "4KiB"}, {"4096 bytes", "8 layers"}},
      {{"--kv-cache-memory", "10TiB", "--device", "cpu"},
       {"--kv-cache-memory is 10 TiB", "more than the memory of this machine"}},
      {{"--dtype", "f8"}, {"--dtype", "f8", "bf16"}},
      {{"--threads", "-2"}, {"--threads", "-2"}},
      {{"--threads", "many"}, {"--threads", "many"}},
      {{"--max-running", "0"}, {"--max-running", "0"}},
      {{"--max-queue", "-1"}, {"--max-queue", "-1"}},
      {{"--max-prompt-tokens", "-5"}, {"--max-prompt-tokens", "-5"}},
      {{"--max-prompt-tokens", "99999"}, {"--max-prompt-tokens is 99999", "99999", "4096"}},
      {{"--default-max-tokens", "0"}, {"--default-max-tokens", "0"}},
      {{"--prefill-tokens", "0"}, {"--prefill-tokens", "0"}},
      {{"--short-prefill-tokens", "-1"}, {"--short-prefill-tokens", "-1"}},
      {{"--prefill-slice", "-0.5"}, {"--prefill-slice", "-0.5", "from 0 to 60 seconds"}},
      {{"--prefill-slice", "61"}, {"--prefill-slice", "61"}},
      {{"--prefill-slice", "nan"}, {"--prefill-slice"}},
      {{"--drain-timeout", "nan"}, {"--drain-timeout", "nan is no time"}},
      {{"--prefill-slice", "soon"}, {"--prefill-slice", "soon"}},
      {{"--log-level", "loud"}, {"--log-level", "loud"}},
      {{"--auth-token-file", ""}, {"--auth-token-file", "empty"}},
      {{"--tls-client-ca", ""}, {"--tls-client-ca", "empty"}},
      {{"--listen", "127.0.0.1"}, {"--listen", "127.0.0.1"}},
      {{"--listen", "127.0.0.1:99999"}, {"--listen", "65535"}},
      {{"--http", "nowhere:abc"}, {"--http", "nowhere:abc"}},
      {{"--compression", "squash(budget=5)"}, {"--compression", "squash", "pyramidkv"}},
      {{"--compression", "snapkv(budget=4)"}, {"--compression", "column", "budget"}},
      {{"--compression", "snapkv(budget=64"}, {"--compression", "column"}},
      {{"--compression", "int8+fp8"}, {"--compression", "int8+fp8", "cannot be composed"}},
      {{"--compression", "pod(groups=mine)"}, {"--compression", "mine", "none was loaded"}},
      {{"--compression", "kivi(group=24)"}, {"--compression", "group=24", "32"}},
      {{"--compression", "minicache(start=7)"}, {"--compression", "start=7", "model of 8"}},
      {{"--allow-compression", "full,magic"}, {"--allow-compression", "magic"}},
      {{"--allow-compression", "full,,snapkv"}, {"--allow-compression: has no value"}},
      {{"--max-queue", "0100"}, {"--max-queue", "'0100'", "decimal"}},
      {{"--threads", "0x10"}, {"--threads", "'0x10'", "decimal"}},
      {{"--threads=1", "--threads=2"}, {"--threads is given 2 times"}},
      {{"--max-queue", "9999999999"}, {"--max-queue", "not so large"}},
      {{"--page", "2"}, {"--page", "'2'", "on or off"}},
      {{"--check-integrity=", "--allow-plain-text"}, {"--check-integrity is empty"}},
      {{"--allow-plain-text=5", "--check-integrity"},
       {"--allow-plain-text", "'5'", "true or false"}},
  };
  for (const auto& [flags, words] : cases) {
    SCOPED_TRACE(absl::StrCat(flags[0], " ", flags[1]));
    Words arguments = {"--model", model};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectRefusal(arguments, words);
  }
  ExpectRefusal({}, {"--model"});
}

TEST(WrongInput, WhatIsFoundWrongWhileLoadingIsNamedByItsLine) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "settings.yaml";
  WriteFile(file, "log-level: info\nmax-prompt-tokens: 99999\n");
  ExpectRefusal({"--model", NeedleLlama(), "--config", file},
                {"settings.yaml:2", "max-prompt-tokens is 99999"});
}

constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

/// The request is refused with that code, and the message says all of `words`.
void ExpectWrong(Daemon& daemon, const v1::GenerateRequest& request, grpc::StatusCode code,
                 const Words& words) {
  const Generation generation = Generate(daemon, request);
  EXPECT_EQ(generation.status.error_code(), code) << generation.Describe();
  EXPECT_TRUE(generation.token_ids.empty());
  EXPECT_FALSE(generation.result.has_value());
  for (const std::string& word : words) {
    EXPECT_THAT(generation.status.error_message(), testing::HasSubstr(word));
  }
}

TEST(WrongInput, WrongPodGroupsAreRefusedAtStart) {
  TemporaryFolder folder;
  int files = 0;
  const auto file = [&](const std::string& content) {
    const std::string path = folder / absl::StrCat("groups", ++files, ".json");
    WriteFile(path, content);
    return path;
  };
  const auto lowest = [](int layer, int) { return layer / 4 * 4; };
  const std::string good = PodGroupsJson(8, 2, lowest);
  const auto edited = [&](const std::function<void(json&)>& edit) {
    json groups = json::parse(good);
    edit(groups);
    return "mine=" + file(groups.dump());
  };
  const std::string path = file(good);
  const std::pair<Words, Words> cases[] = {
      {{path}, {"NAME=FILE", path}},
      {{"=" + path}, {"NAME=FILE"}},
      {{"two words=" + path}, {"two words", "NAME=FILE"}},
      {{"mine=/no/such/file"}, {"mine", "/no/such/file: no such file"}},
      {{"mine=" + folder.path().string()}, {"mine", folder.path()}},
      {{"mine=" + path, "mine=" + path}, {"mine", "twice"}},
      {{"mine=" + file("")}, {"mine", "JSON"}},
      {{"mine=" + file(std::string(1 << 20, '['))}, {"mine", "JSON"}},
      {{"mine=" + file(std::string(17 << 20, ' '))}, {"mine", "larger than the 16777216 bytes"}},
      {{"mine=" + file("[]")}, {"mine"}},
      {{edited([](json& g) { g["format"] = "something-else"; })}, {"format", "something-else"}},
      {{edited([](json& g) { g["version"] = 2; })}, {"version", "2"}},
      {{edited([](json& g) { g.erase("lowest"); })}, {"lowest"}},
      {{edited([](json& g) { g["num_layers"] = -8; })}, {"num_layers", "-8"}},
      {{edited([](json& g) { g["num_kv_heads"] = "two"; })}, {"num_kv_heads"}},
      {{edited([](json& g) { g["lowest"].erase(7); })}, {"lowest", "8 layers"}},
      {{edited([](json& g) { g["lowest"][3] = {0}; })}, {"lowest[3]", "2 heads"}},
      {{edited([](json& g) { g["lowest"][3][1] = 5; })}, {"lowest[3][1]", "5"}},
      {{edited([](json& g) { g["lowest"][2][0] = 1; })}, {"lowest[2][0]", "1"}},
      {{edited([](json& g) { g["lowest"][0][0] = 0.5; })}, {"lowest[0][0]", "0.5"}},
  };
  for (const auto& [texts, words] : cases) {
    SCOPED_TRACE(testing::PrintToString(words));
    Words command = {"serve",       "--model", NeedleLlama(), "--listen",
                     "127.0.0.1:0", "--http",  "127.0.0.1:0"};
    for (const std::string& text : texts) command.insert(command.end(), {"--pod-groups", text});
    const CommandResult result = RunZiggurat(command, {}, absl::Seconds(20));
    EXPECT_EQ(result.exit_code, 2) << "asked wrongly\n" << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr("--pod-groups"));
    for (const std::string& word : words) EXPECT_THAT(result.err, testing::HasSubstr(word));
  }
}

TEST(WrongInput, PodGroupsOfAnotherModelAreRefusedWhereTheyAreNamed) {
  TemporaryFolder folder;
  const std::string path = folder / "other.json";
  WriteFile(path, PodGroupsJson(4, 2, [](int, int) { return 0; }));
  ExpectRefusal({"--model", NeedleLlama(), "--pod-groups", "other=" + path, "--compression",
                 "pod(groups=other)"},
                {"--compression", "other", "4 layers", "8"});
  START_DAEMON(daemon, {.flags = {"--pod-groups", "other=" + path}});
  v1::GenerateRequest request = TextRequest(" The old house", 2, AtEos::kGoOn);
  request.set_compression("pod(groups=other)");
  ExpectWrong(daemon, request, kInvalid, {"groups=other", "4 layers", "8"});
  request.set_compression("int8");
  EXPECT_TRUE(Generate(daemon, request).ok());
}

TEST(WrongInput, APortInUseIsRefused) {
  START_DAEMON(daemon, {});
  const std::string model = NeedleLlama();
  ExpectRefusal({"--model", model, "--listen", daemon.grpc_address()},
                {std::to_string(daemon.grpc_port()), "Address already in use"});
  ExpectRefusal({"--model", model, "--http", daemon.http_address()},
                {std::to_string(daemon.http_port()), "Address already in use"});
  EXPECT_TRUE(Generate(daemon, TextRequest(" The old", 2, AtEos::kGoOn)).ok())
      << "the first daemon was hurt";
}

TEST(WrongInput, WrongCommandsAreRefusedByName) {
  const std::pair<Words, Words> cases[] = {
      {{"fly"}, {"fly"}},
      {{"tokenize", "--tokenizer", "/no/such/folder"}, {"/no/such/folder"}},
      {{"make-model", "--shape", "moebius", "--out", "/tmp"}, {"moebius"}},
      {{"generate", "--colour", "blue", "x"}, {"--colour"}},
      {{"generate", "--server", "127.0.0.1:1", "x"}, {"127.0.0.1:1"}},
      {{"cache", "--server", "127.0.0.1:1"}, {"127.0.0.1:1"}},
  };
  for (const auto& [command, words] : cases) {
    SCOPED_TRACE(absl::StrCat(command.front(), " ", command.back()));
    const CommandResult result = RunZiggurat(command, {}, absl::Seconds(20));
    EXPECT_GT(result.exit_code, 0) << result.out;
    EXPECT_LT(result.exit_code, 126) << result.err;
    for (const std::string& word : words) EXPECT_THAT(result.err, testing::HasSubstr(word));
  }
}

// ---- Requests -----------------------------------------------------------------------------------

struct WrongRequest {
  std::function<void(v1::GenerateRequest&)> spoil;
  grpc::StatusCode code;
  Words words;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<WrongRequest> WrongRequests() {
  using R = v1::GenerateRequest;
  std::vector<WrongRequest> wrong = {
      {[](R& r) { r.clear_input(); }, kInvalid, {"text", "token_ids"}},
      {[](R& r) { r.mutable_token_ids(); }, kInvalid, {"token_ids", "empty"}},
      {[](R& r) { r.mutable_token_ids()->add_ids(1024); }, kInvalid, {"token_ids", "1024"}},
      {[](R& r) { r.mutable_token_ids()->add_ids(-7); }, kInvalid, {"token_ids", "-7"}},
      {[](R& r) { r.mutable_token_ids()->mutable_ids()->Resize(4096, 5); },
       kInvalid,
       {"token_ids", "4096", "4095"}},
      {[](R& r) { r.set_text(PlainEnglish(1, 2000)); }, kInvalid, {"text", "tokens", "4095"}},
      {[](R& r) {
         r.set_text(PlainEnglish(1, 13500));  // half a megabyte, to be classified
         r.set_compression("windowkv(budget=64)");
       },
       kInvalid,
       {"text", "tokens", "4095"}},
      {[](R& r) {
         r.set_text(PlainEnglish(1, 30000));  // more than a megabyte, which is not even parsed
         r.set_compression("windowkv(budget=64)");
       },
       kInvalid,
       {"the request", "tokens", "4095"}},
      {[](R& r) { r.set_max_tokens(0); }, kInvalid, {"max_tokens", "0"}},
      {[](R& r) { r.set_max_tokens(-3); }, kInvalid, {"max_tokens", "-3"}},
      {[](R& r) { r.set_max_tokens(1 << 30); }, kInvalid, {"max_tokens", "1073741824"}},
      {[](R& r) { r.set_min_tokens(-1); }, kInvalid, {"min_tokens", "-1"}},
      {[](R& r) { r.set_min_tokens(50); }, kInvalid, {"min_tokens", "50"}},
      {[](R& r) { r.set_logprobs(21); }, kInvalid, {"logprobs", "21"}},
      {[](R& r) { r.set_logprobs(-1); }, kInvalid, {"logprobs", "-1"}},
      {[](R& r) { r.add_stop(std::string()); }, kInvalid, {"stop", "empty"}},
      {[](R& r) { r.add_stop(std::string(257, 'x')); }, kInvalid, {"stop", "257"}},
      {[](R& r) {
         for (int i = 0; i < 17; ++i) r.add_stop(std::string(1, 'x'));
       },
       kInvalid,
       {"stop", "17"}},
      {[](R& r) { r.add_stop_token_ids(4000); }, kInvalid, {"stop_token_ids", "4000"}},
      {[](R& r) { r.set_request_id("two words"); }, kInvalid, {"request_id"}},
      {[](R& r) { r.set_request_id(std::string(129, 'x')); }, kInvalid, {"request_id", "128"}},
      {[](R& r) { r.set_compression("squash"); }, kInvalid, {"compression", "squash", "column 1"}},
      {[](R& r) { r.set_compression("snapkv(budget=abc)"); },
       kInvalid,
       {"compression", "budget", "abc", "column 15"}},
      {[](R& r) { r.set_compression("snapkv(budget=64,windo=8)"); },
       kInvalid,
       {"compression", "windo", "column 18"}},
      {[](R& r) { r.set_compression("pyramidkv(budget=8,window=32)"); },
       kInvalid,
       {"compression", "budget", "window"}},
      {[](R& r) { r.set_compression("pyramidkv(budget=64,beta=0)"); },
       kInvalid,
       {"compression", "beta", "0"}},
      {[](R& r) { r.set_compression("pyramidkv(budget=nan)"); }, kInvalid, {"compression", "nan"}},
      {[](R& r) { r.set_compression("snapkv(budget=64,kernel=4)"); },
       kInvalid,
       {"compression", "kernel", "4", "odd"}},
      {[](R& r) { r.set_compression("full()()"); }, kInvalid, {"compression", "column"}},
      {[](R& r) { r.set_compression(std::string(100000, '(')); }, kInvalid, {"compression"}},
  };
  // Policies: the parameters of each just outside of their range, values of the wrong kind, what
  // does not suit the model, and what does not compose.
  std::string many;
  while (many.size() < 500'000) many += "int8+";
  const std::pair<std::string, Words> policies[] = {
      {"pod", {"groups", "fours", "heads", "single"}},
      {"pod(groups=nobody)", {"column 12", "nobody", "single, fours, heads"}},
      {"pod(groups=/etc/passwd)", {"column 12", "/etc/passwd", "loaded"}},
      {"pod(groups=fours,sinks=-1)", {"column 24", "sinks", "-1"}},
      {"pod(groups=fours,recent=0)", {"recent", "0"}},
      {"pod(groups=fours,skip=2)", {"skip", "2", "off"}},
      {"kivi(bits=3)", {"column 11", "bits", "3", "4 or 2"}},
      {"kivi(group=1)", {"group", "1"}},
      {"kivi(group=24)", {"group=24", "divide", "32"}},
      {"kivi(residual=-1)", {"residual", "-1"}},
      {"int8(bits=4)", {"int8", "bits"}},
      {"h2o(heavy=0)", {"heavy", "0"}},
      {"h2o(recent=0)", {"recent", "0"}},
      {"minicache(retain=1.5)", {"retain", "1.5"}},
      {"minicache(t=nan)", {"t=", "nan"}},
      {"minicache(tail=0)", {"tail", "0"}},
      {"minicache(start=7)", {"start=7", "8"}},
      {"minicache(retain_by=size)", {"retain_by", "size", "count", "threshold"}},
      {"simlayerkv(threshold=-0.1)", {"threshold", "-0.1"}},
      {"simlayerkv(decide=later)", {"decide", "later", "prefill", "decode"}},
      {"simlayerkv(last=0)", {"last", "0"}},
      {"squeeze", {"budget"}},
      {"squeeze(budget=4)", {"budget", "4"}},
      {"squeeze(budget=10,p=0.3)", {"budget", "p=0.3"}},
      {"windowkv(budget=16,observe=16)", {"budget=16", "observe=16"}},
      {"windowkv(budget=64,task=poetry)", {"task", "poetry", "aggregation"}},
      {"windowkv(budget=64,review=0)", {"review", "0", "auto"}},
      {"pyramidkv(budget=64,shape=cube)", {"shape", "cube", "entropy"}},
      {"int8+fp8", {"column 6", "int8+fp8", "only one"}},
      {"int8+int8", {"int8+int8", "twice"}},
      {"full+kivi", {"full+kivi", "write kivi alone"}},
      {"h2o+kivi", {"column 5", "h2o+kivi", "h2o+int8"}},
      {"streaming+snapkv(budget=64)", {"streaming+snapkv", "only one"}},
      {"minicache+snapkv(budget=64)", {"minicache+snapkv", "both layers"}},
      {"minicache+streaming", {"minicache+streaming", "ring"}},
      {"minicache+simlayerkv", {"minicache+simlayerkv", "lazy"}},
      {"pod(groups=fours)+minicache", {"pod+minicache", "keys"}},
      {"pod(groups=fours)+streaming", {"pod+streaming", "another segment"}},
      {"pod(groups=fours)+simlayerkv", {"pod+simlayerkv", "lazy"}},
      {"pod(groups=heads)+pyramidkv(budget=64)", {"pod+pyramidkv", "heads"}},
      {"simlayerkv(decide=decode)+snapkv(budget=64)", {"simlayerkv+snapkv", "decide=prefill"}},
      {"snapkv(budget=64)+", {"column 19", "end of the text"}},
      {"+int8", {"column 1"}},
      {"int8++fp8", {"column 6"}},
      {"int8+fp9", {"column 6", "fp9", "fp8"}},
      {many, {"column 1025", "1024 are allowed"}},
      {std::string("int8\0+fp8", 9), {"column 5"}},
  };
  for (const auto& [policy, words] : policies) {
    Words all = words;
    if (!absl::StrContains(policy, "start=7") && !absl::StrContains(policy, "group=24")) {
      all.push_back("compression policy, column ");
    }
    wrong.push_back({[text = policy](R& r) { r.set_compression(text); }, kInvalid, all});
  }
  // Each sampling parameter just outside of its range, and as no number at all.
  using S = v1::SamplingParameters;
  const std::pair<std::function<void(S&)>, Words> sampling[] = {
      {[](S& s) { s.set_temperature(-0.5f); }, {"temperature", "-0.5"}},
      {[](S& s) { s.set_temperature(101); }, {"temperature", "101"}},
      {[](S& s) { s.set_temperature(kNan); }, {"temperature", "nan"}},
      {[](S& s) { s.set_temperature(kInfinity); }, {"temperature", "inf"}},
      {[](S& s) { s.set_top_k(-1); }, {"top_k", "-1"}},
      {[](S& s) { s.set_top_p(0); }, {"top_p", "0"}},
      {[](S& s) { s.set_top_p(1.5f); }, {"top_p", "1.5"}},
      {[](S& s) { s.set_top_p(kNan); }, {"top_p", "nan"}},
      {[](S& s) { s.set_min_p(-0.25f); }, {"min_p", "-0.25"}},
      {[](S& s) { s.set_min_p(kNan); }, {"min_p", "nan"}},
      {[](S& s) { s.set_repetition_penalty(0); }, {"repetition_penalty", "0"}},
      {[](S& s) { s.set_repetition_penalty(-2); }, {"repetition_penalty", "-2"}},
      {[](S& s) { s.set_repetition_penalty(kNan); }, {"repetition_penalty", "nan"}},
      {[](S& s) { s.set_presence_penalty(3); }, {"presence_penalty", "3"}},
      {[](S& s) { s.set_frequency_penalty(-3); }, {"frequency_penalty", "-3"}},
      {[](S& s) { s.set_frequency_penalty(kNan); }, {"frequency_penalty", "nan"}},
  };
  for (const auto& [spoil, words] : sampling) {
    wrong.push_back({[spoil](R& r) { spoil(*r.mutable_sampling()); }, kInvalid, words});
  }
  return wrong;
}

TEST(WrongInput, WrongRequestsAreRefusedByNameAndHurtNobody) {
  const PodGroupsFiles groups;
  START_DAEMON(daemon, {.flags = groups.Flags()});
  const v1::GenerateRequest good = TextRequest(" The old house stood near the", 8, AtEos::kGoOn);
  const Generation before = Generate(daemon, good);
  ASSERT_TRUE(before.ok()) << before.Describe();
  for (const WrongRequest& wrong : WrongRequests()) {
    SCOPED_TRACE(testing::PrintToString(wrong.words));
    v1::GenerateRequest request = good;
    wrong.spoil(request);
    ExpectWrong(daemon, request, wrong.code, wrong.words);
  }
  EXPECT_TRUE(daemon.is_running());
  const Generation after = Generate(daemon, good);
  ASSERT_TRUE(after.ok()) << after.Describe();
  EXPECT_EQ(after.token_ids, before.token_ids);
  EXPECT_EMPTY_CACHE(daemon);
}

TEST(WrongInput, BytesThatAreNoMessageHurtNobody) {
  START_DAEMON(daemon, {});
  const auto call = [&](const char* method, const std::string& bytes) {
    return CallFromBytes(daemon.channel(), OurMethod(method), bytes).status;
  };
  EXPECT_FALSE(call("Generate", "\xff\xff\xff\xff").ok());
  EXPECT_FALSE(call("Tokenize", "\x0a\x7f").ok());
  EXPECT_FALSE(call("Tokenize", "\x0a\x01\xff").ok()) << "no UTF-8";
  EXPECT_EQ(call("Fly", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const std::string huge(17 << 20, 'x');
  EXPECT_EQ(Generate(daemon, TextRequest(huge, 1, AtEos::kGoOn)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(-1);
  grpc::ClientContext context;
  v1::DetokenizeResponse text;
  const grpc::Status status = daemon.stub().Detokenize(&context, detokenize, &text);
  EXPECT_EQ(status.error_code(), kInvalid);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("-1"));
  EXPECT_EQ(daemon.HttpGet("/no/such/page").first, 404);
  EXPECT_TRUE(Generate(daemon, TextRequest(" The old", 2, AtEos::kGoOn)).ok());
  EXPECT_THAT(daemon.LoggedErrors(), testing::IsEmpty()) << "a client's mistake is none of ours";
}

TEST(WrongInput, APolicyThatIsNotAllowedIsDenied) {
  START_DAEMON(daemon, {.flags = {"--allow-compression", "full,snapkv"}});
  v1::GenerateRequest request = TextRequest(" The old house", 2, AtEos::kGoOn);
  request.set_compression("pyramidkv(budget=64)");
  ExpectWrong(daemon, request, grpc::StatusCode::PERMISSION_DENIED, {"pyramidkv", "full, snapkv"});
  request.set_compression("snapkv(budget=64)");
  EXPECT_TRUE(Generate(daemon, request).ok());
}

TEST(WrongInput, ARequestThatCanNeverFitIsRefusedWithTheNumbers) {
  // 4096 bytes hold 16 tokens of one of the 8 layers; 100 blocks in all.
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = "409600"});
  const PromptSource prompts(daemon);
  std::mt19937 random(1);
  v1::GenerateRequest request = IdRequest(prompts.Make(400, random), 10, AtEos::kGoOn);
  request.set_compression("full");  // 8 * ceil(409 / 16) = 208
  ExpectWrong(daemon, request, grpc::StatusCode::RESOURCE_EXHAUSTED, {"208", "100", "blocks"});
  request.set_compression("snapkv(budget=64)");
  EXPECT_TRUE(Generate(daemon, request).ok());
}

TEST(WrongInput, AFullQueueIsRefused) {
  START_DAEMON(daemon, {.flags = {"--max-running", "1", "--max-queue", "1"}});
  const v1::GenerateRequest request = TextRequest(" The old house", 3000, AtEos::kGoOn);
  std::vector<std::shared_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_shared<grpc::ClientContext>());
    clients.emplace_back([&daemon, &request, context = contexts.back()] {
      Generate(daemon, request, {.context = context});
    });
    // One runs, then one waits.
    EXPECT_TRUE(PollUntil(absl::Seconds(20), [&] {
      const v1::GetCacheResponse cache = daemon.GetCache();
      return cache.running() == 1 && cache.waiting() == static_cast<uint32_t>(i);
    })) << daemon.GetCache().ShortDebugString();
  }
  ExpectWrong(daemon, TextRequest(" The", 1, AtEos::kGoOn), grpc::StatusCode::RESOURCE_EXHAUSTED,
              {"queue"});
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_TRUE(Generate(daemon, TextRequest(" The", 1, AtEos::kGoOn)).ok());
}

}  // namespace
}  // namespace ziggurat::e2e
