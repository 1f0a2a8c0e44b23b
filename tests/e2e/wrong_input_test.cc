// Wrong input of every kind: a clear error that names what is wrong, and a daemon that was running
// keeps running.
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/pod_groups_file.h"
#include "tests/e2e/raw_grpc.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

// ---- A model that can't be loaded ---------------------------------------------------------------

/// A folder with the files of needle-llama, by links, any of which may be replaced.
class ModelFolder {
 public:
  ModelFolder() {
    for (const auto& entry : std::filesystem::directory_iterator(NeedleLlama())) {
      std::filesystem::create_symlink(entry.path(), path() / entry.path().filename());
    }
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  void Remove(const std::string& name) { std::filesystem::remove(path() / name); }
  std::string Read(const std::string& name) const { return ReadFile(path() / name); }
  void Replace(const std::string& name, const std::string& content) {
    Remove(name);
    WriteFile(path() / name, content);
  }
  void EditConfig(const std::function<void(json&)>& edit) {
    json config = json::parse(Read("config.json"));
    edit(config);
    Replace("config.json", config.dump());
  }
  /// Edits the JSON in front of the weights; offsets in it count from the end of the JSON.
  void EditWeightsHeader(const std::function<void(json&)>& edit) {
    const std::string file = Read("model.safetensors");
    const size_t length = HeaderLength(file);
    json header = json::parse(file.substr(8, length));
    edit(header);
    Replace("model.safetensors", WithHeader(header.dump(), file.substr(8 + length)));
  }
  static size_t HeaderLength(const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    return length;
  }
  static std::string WithHeader(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    file.append(header);
    file.append(data);
    return file;
  }

 private:
  TemporaryFolder folder_;
};

/// `ziggurat serve` refuses to start: soon, with an exit code of its own, and says all of `words`.
void ExpectRefusal(const Words& arguments, const Words& words) {
  Words command = {"serve"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  for (const char* flag : {"--listen", "--http"}) {
    if (std::find(arguments.begin(), arguments.end(), flag) == arguments.end()) {
      command.insert(command.end(), {flag, "127.0.0.1:0"});
    }
  }
  const CommandResult result = RunZiggurat(command, {}, absl::Seconds(20));
  EXPECT_GT(result.exit_code, 0) << "no refusal in time (-1) or success (0)\n" << result.err;
  EXPECT_LT(result.exit_code, 126) << "ended by a signal\n" << result.err;
  EXPECT_FALSE(absl::StrContains(result.out, "ready")) << result.out;
  for (const std::string& word : words) {
    EXPECT_THAT(result.err, testing::HasSubstr(word));
  }
}

struct BrokenModel {
  const char* name;
  std::function<void(ModelFolder&)> damage;
  Words words;
};

const char kNorm[] = "model.layers.3.input_layernorm.weight";

const BrokenModel kBrokenWeights[] = {
    {"half of the weights are missing",
     [](ModelFolder& m) {
       const std::string file = m.Read("model.safetensors");
       m.Replace("model.safetensors", file.substr(0, file.size() / 2));
     },
     {"model.safetensors", "truncated"}},
    {"one byte of the weights is missing",
     [](ModelFolder& m) {
       const std::string file = m.Read("model.safetensors");
       m.Replace("model.safetensors", file.substr(0, file.size() - 1));
     },
     {"model.safetensors", "truncated"}},
    {"the weights are empty",
     [](ModelFolder& m) { m.Replace("model.safetensors", ""); },
     {"model.safetensors"}},
    {"the weights end inside the header",
     [](ModelFolder& m) {
       m.Replace("model.safetensors", m.Read("model.safetensors").substr(0, 100));
     },
     {"model.safetensors", "header"}},
    {"the header's length is absurd",
     [](ModelFolder& m) {
       std::string file = m.Read("model.safetensors");
       std::fill_n(file.begin(), 8, '\xff');
       m.Replace("model.safetensors", file);
     },
     {"model.safetensors", "header"}},
    {"the header is no JSON",
     [](ModelFolder& m) {
       std::string file = m.Read("model.safetensors");
       std::fill_n(file.begin() + 8, 40, '?');
       m.Replace("model.safetensors", file);
     },
     {"model.safetensors", "JSON"}},
    {"the weights are another kind of file",
     [](ModelFolder& m) { m.Replace("model.safetensors", std::string(100000, 'x')); },
     {"model.safetensors"}},
    {"there are no weights",
     [](ModelFolder& m) { m.Remove("model.safetensors"); },
     {"model.safetensors"}},
    {"a tensor lies outside of the file",
     [](ModelFolder& m) {
       m.EditWeightsHeader([](json& h) { h[kNorm]["data_offsets"] = {1 << 28, (1 << 28) + 256}; });
     },
     {"model.safetensors", "tensor", "begins at byte"}},
    {"a tensor begins before its end",
     [](ModelFolder& m) {
       m.EditWeightsHeader([](json& h) { h[kNorm]["data_offsets"] = {512, 256}; });
     },
     {kNorm}},
    {"a tensor has more bytes than its shape",
     [](ModelFolder& m) { m.EditWeightsHeader([](json& h) { h[kNorm]["shape"] = {64}; }); },
     {kNorm}},
    {"a tensor has a negative shape",
     [](ModelFolder& m) { m.EditWeightsHeader([](json& h) { h[kNorm]["shape"] = {-128}; }); },
     {kNorm}},
    {"a tensor's shape overflows",
     [](ModelFolder& m) {
       m.EditWeightsHeader([](json& h) { h[kNorm]["shape"] = {1LL << 40, 1LL << 40}; });
     },
     {kNorm}},
    {"a tensor is of a type that we lack",
     [](ModelFolder& m) { m.EditWeightsHeader([](json& h) { h[kNorm]["dtype"] = "F8_E9M9"; }); },
     {kNorm, "F8_E9M9"}},
    {"a tensor is missing",
     [](ModelFolder& m) {
       m.EditWeightsHeader([](json& h) {
         h["model.layers.3.another.weight"] = h[kNorm];
         h.erase(kNorm);
       });
     },
     {kNorm}},
    {"a tensor does not fit the configuration",
     [](ModelFolder& m) { m.EditConfig([](json& c) { c["intermediate_size"] = 768; }); },
     {"model.layers.0.mlp.", "768", "384"}},
    {"a weight is no number",
     [](ModelFolder& m) {
       std::string file = m.Read("model.safetensors");
       const size_t length = ModelFolder::HeaderLength(file);
       const json header = json::parse(file.substr(8, length));
       const size_t start = header[kNorm]["data_offsets"][0].get<size_t>();
       file[8 + length + start + 6] = '\xc1';  // 0x7fc1: a NaN in bf16
       file[8 + length + start + 7] = '\x7f';
       m.Replace("model.safetensors", file);
     },
     {kNorm}},
};

const BrokenModel kBrokenFolders[] = {
    {"an architecture that we lack",
     [](ModelFolder& m) {
       m.EditConfig([](json& c) {
         c["architectures"] = {"FalconForCausalLM"};
         c["model_type"] = "falcon";
       });
     },
     {"FalconForCausalLM", "LlamaForCausalLM"}},
    {"no configuration", [](ModelFolder& m) { m.Remove("config.json"); }, {"config.json"}},
    {"a configuration that is no JSON",
     [](ModelFolder& m) { m.Replace("config.json", "{\"architectures\": ["); },
     {"config.json"}},
    {"a configuration without layers",
     [](ModelFolder& m) { m.EditConfig([](json& c) { c.erase("num_hidden_layers"); }); },
     {"config.json", "num_hidden_layers"}},
    {"a negative width",
     [](ModelFolder& m) { m.EditConfig([](json& c) { c["hidden_size"] = -128; }); },
     {"config.json", "hidden_size", "-128"}},
    {"more layers than there are weights",
     [](ModelFolder& m) { m.EditConfig([](json& c) { c["num_hidden_layers"] = 9; }); },
     {"model.layers.8."}},
    {"heads that do not divide",
     [](ModelFolder& m) { m.EditConfig([](json& c) { c["num_key_value_heads"] = 3; }); },
     {"num_key_value_heads", "3"}},
    {"a RoPE scaling that we lack",
     [](ModelFolder& m) {
       m.EditConfig([](json& c) { c["rope_scaling"] = {{"rope_type", "spiral"}, {"factor", 2}}; });
     },
     {"rope", "spiral"}},
    {"no tokenizer", [](ModelFolder& m) { m.Remove("tokenizer.json"); }, {"tokenizer.json"}},
    {"a tokenizer that is no JSON",
     [](ModelFolder& m) { m.Replace("tokenizer.json", "not a tokenizer"); },
     {"tokenizer.json"}},
    {"a tokenizer of a kind that we lack",
     [](ModelFolder& m) {
       json tokenizer = json::parse(m.Read("tokenizer.json"));
       tokenizer["model"]["type"] = "Crossword";
       m.Replace("tokenizer.json", tokenizer.dump());
     },
     {"tokenizer.json", "Crossword"}},
};

template <size_t n>
void ExpectRefusals(const BrokenModel (&models)[n]) {
  for (const BrokenModel& broken : models) {
    SCOPED_TRACE(broken.name);
    ModelFolder model;
    broken.damage(model);
    ExpectRefusal({"--model", model.path()}, broken.words);
  }
}

TEST(WrongInput, BrokenWeightsAreRefusedByName) { ExpectRefusals(kBrokenWeights); }
TEST(WrongInput, BrokenModelFoldersAreRefusedByName) { ExpectRefusals(kBrokenFolders); }

TEST(WrongInput, APathThatIsNoModelFolderIsRefused) {
  ExpectRefusal({"--model", "/no/such/folder"}, {"/no/such/folder"});
  ExpectRefusal({"--model", NeedleLlama() / "config.json"}, {"config.json"});
  TemporaryFolder empty;
  ExpectRefusal({"--model", empty.path()}, {empty.path(), "config.json"});
}

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
      {{"--dtype", "f8"}, {"--dtype", "f8", "bf16"}},
      {{"--threads", "-2"}, {"--threads", "-2"}},
      {{"--threads", "many"}, {"--threads", "many"}},
      {{"--max-running", "0"}, {"--max-running", "0"}},
      {{"--max-queue", "-1"}, {"--max-queue", "-1"}},
      {{"--max-prompt-tokens", "-5"}, {"--max-prompt-tokens", "-5"}},
      {{"--max-prompt-tokens", "99999"}, {"max_prompt_tokens", "99999", "4096"}},
      {{"--default-max-tokens", "0"}, {"--default-max-tokens", "0"}},
      {{"--prefill-tokens", "0"}, {"--prefill-tokens", "0"}},
      {{"--log-level", "loud"}, {"--log-level", "loud"}},
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
  };
  for (const auto& [flags, words] : cases) {
    SCOPED_TRACE(absl::StrCat(flags[0], " ", flags[1]));
    Words arguments = {"--model", model};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectRefusal(arguments, words);
  }
  ExpectRefusal({}, {"--model"});
}

constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

/// The request is refused with that code, and the message says all of `words`.
void ExpectWrong(Daemon& daemon, const v1::GenerateRequest& request, grpc::StatusCode code,
                 const Words& words) {
  const Generation generation = Generate(daemon, request);
  EXPECT_EQ(generation.status.error_code(), code) << generation.Describe();
  EXPECT_TRUE(generation.ids.empty());
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
      {{"mine=/no/such/file"}, {"mine", "/no/such/file"}},
      {{"mine=" + folder.path().string()}, {"mine", folder.path()}},
      {{"mine=" + path, "mine=" + path}, {"mine", "twice"}},
      {{"mine=" + file("")}, {"mine", "JSON"}},
      {{"mine=" + file(std::string(1 << 20, '['))}, {"mine", "JSON"}},
      {{"mine=" + file(std::string(17 << 20, ' '))}, {"mine", "17825792 bytes"}},
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
  v1::GenerateRequest request = TextRequest(" The old house", 2);
  request.set_compression("pod(groups=other)");
  ExpectWrong(daemon, request, kInvalid, {"groups=other", "4 layers", "8"});
  request.set_compression("int8");
  EXPECT_TRUE(Generate(daemon, request).ok());
}

TEST(WrongInput, APortInUseIsRefused) {
  START_DAEMON(daemon, {});
  const std::string model = NeedleLlama();
  ExpectRefusal({"--model", model, "--listen", daemon.grpc_address()},
                {std::to_string(daemon.grpc_port())});
  ExpectRefusal({"--model", model, "--http", daemon.http_address()},
                {std::to_string(daemon.http_port())});
  EXPECT_TRUE(Generate(daemon, TextRequest(" The old", 2)).ok()) << "the first daemon was hurt";
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
         r.set_text(PlainEnglish(1, 30000));  // more than a megabyte, to be classified
         r.set_compression("windowkv(budget=64)");
       },
       kInvalid,
       {"text", "tokens", "4095"}},
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
  while (many.size() < (1 << 20)) many += "int8+";
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
  const v1::GenerateRequest good = TextRequest(" The old house stood near the", 8);
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
  EXPECT_EQ(after.ids, before.ids);
  EXPECT_EMPTY_CACHE(daemon);
}

TEST(WrongInput, BytesThatAreNoMessageHurtNobody) {
  START_DAEMON(daemon, {});
  std::string response;
  EXPECT_FALSE(
      CallRaw(daemon.channel(), "/ziggurat.v1.Ziggurat/Generate", "\xff\xff\xff\xff", &response)
          .ok());
  EXPECT_FALSE(
      CallRaw(daemon.channel(), "/ziggurat.v1.Ziggurat/Tokenize", "\x0a\x7f", &response).ok());
  EXPECT_EQ(CallRaw(daemon.channel(), "/ziggurat.v1.Ziggurat/Fly", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  const std::string huge(17 << 20, 'x');
  EXPECT_EQ(Generate(daemon, TextRequest(huge, 1)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(-1);
  grpc::ClientContext context;
  v1::DetokenizeResponse text;
  const grpc::Status status = daemon.stub().Detokenize(&context, detokenize, &text);
  EXPECT_EQ(status.error_code(), kInvalid);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("-1"));
  EXPECT_EQ(daemon.HttpGet("/no/such/page").first, 404);
  EXPECT_TRUE(Generate(daemon, TextRequest(" The old", 2)).ok());
}

TEST(WrongInput, APolicyThatIsNotAllowedIsDenied) {
  START_DAEMON(daemon, {.flags = {"--allow-compression", "full,snapkv"}});
  v1::GenerateRequest request = TextRequest(" The old house", 2);
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
  v1::GenerateRequest request = IdsRequest(prompts.Make(400, random), 10);
  request.set_compression("full");  // 8 * ceil(409 / 16) = 208
  ExpectWrong(daemon, request, grpc::StatusCode::RESOURCE_EXHAUSTED, {"208", "100", "blocks"});
  request.set_compression("snapkv(budget=64)");
  EXPECT_TRUE(Generate(daemon, request).ok());
}

TEST(WrongInput, AFullQueueIsRefused) {
  START_DAEMON(daemon, {.flags = {"--max-running", "1", "--max-queue", "1"}});
  const v1::GenerateRequest request = TextRequest(" The old house", 3000);
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
  ExpectWrong(daemon, TextRequest(" The", 1), grpc::StatusCode::RESOURCE_EXHAUSTED, {"queue"});
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_TRUE(Generate(daemon, TextRequest(" The", 1)).ok());
}

}  // namespace
}  // namespace ziggurat::e2e
