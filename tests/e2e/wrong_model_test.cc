// Model folders that cannot be loaded: a clear error that names the file and what is wrong with it.
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/e2e/refusal.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

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
    {"weights that overflow",
     [](ModelFolder& m) {
       std::string file = m.Read("model.safetensors");
       const size_t length = ModelFolder::HeaderLength(file);
       const json header = json::parse(file.substr(8, length));
       const json offsets = header["model.norm.weight"]["data_offsets"];
       // 0x7f7f: the largest bf16
       std::fill(file.begin() + 8 + length + offsets[0].get<size_t>(),
                 file.begin() + 8 + length + offsets[1].get<size_t>(), '\x7f');
       m.Replace("model.safetensors", file);
     },
     {"no finite logit", "weights"}},
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
    {"a token before every text that the model lacks",
     [](ModelFolder& m) {
       m.Replace("tokenizer_config.json", R"({"bos_token": "<new>", "add_bos_token": true,
                 "added_tokens_decoder": {"5000": {"content": "<new>", "special": true}}})");
     },
     {"tokenizer.json", "'<new>'", "before every text"}},
    {"what a clone without Git LFS has",
     [](ModelFolder& m) {
       m.Replace("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
     },
     {"model.safetensors", "git lfs pull"}},
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

}  // namespace
}  // namespace ziggurat::e2e
