#include "tests/model/tokenizer_files.h"

#include <cstdio>
#include <vector>

#include "model/tokenizer/byte_level.h"

namespace ziggurat {
namespace {

using nlohmann::json;

json AddedTokenJson(int id, std::string_view content) {
  return {{"id", id},           {"content", std::string(content)},
          {"special", true},    {"single_word", false},
          {"lstrip", false},    {"rstrip", false},
          {"normalized", false}};
}

/// Gives ids in the order of adding.
class VocabularyBuilder {
 public:
  int Add(const std::string& piece) {
    vocab_[piece] = next_;
    return next_++;
  }
  void Merge(const std::string& left, const std::string& right) {
    merges_.push_back(left + " " + right);
    Add(left + right);
  }
  const json& vocab() const { return vocab_; }
  const json& merges() const { return merges_; }
  int size() const { return next_; }

 private:
  json vocab_ = json::object();
  json merges_ = json::array();
  int next_ = 0;
};

}  // namespace

void TokenizerDir::Write(std::string_view name, std::string_view content) const {
  WriteFile(folder_ / name, content);
}

void TokenizerDir::Write(std::string_view name, const json& content) const {
  Write(name, std::string_view(content.dump()));
}

std::filesystem::path NeedleDir() { return ZIGGURAT_SOURCE_DIR "/models/needle-llama"; }

json ByteLevelTokenizer() {
  VocabularyBuilder pieces;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string character;
    AppendByteLevel(std::string_view(&c, 1), &character);
    pieces.Add(character);
  }
  pieces.Merge("h", "e");
  pieces.Merge("l", "l");
  pieces.Merge("he", "ll");
  pieces.Merge("hell", "o");
  pieces.Merge("Ġ", "hello");
  return {
      {"added_tokens", json::array({AddedTokenJson(pieces.size(), "<|end|>")})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", pieces.vocab()}, {"merges", pieces.merges()}}}};
}

json SentencePieceTokenizer() {
  VocabularyBuilder pieces;
  for (const char* special : {"<unk>", "<s>", "</s>"}) pieces.Add(special);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    pieces.Add(name);
  }
  for (const char* character : {"▁", "h", "e", "l", "o", "w", "r", "d", "é"}) pieces.Add(character);
  pieces.Merge("▁", "h");
  pieces.Merge("▁h", "e");
  pieces.Merge("l", "l");
  pieces.Merge("▁he", "ll");
  pieces.Merge("▁hell", "o");
  pieces.Merge("▁", "w");
  pieces.Merge("o", "r");
  pieces.Merge("▁w", "or");
  pieces.Merge("▁wor", "l");
  pieces.Merge("▁worl", "d");
  const json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"added_tokens", json::array({AddedTokenJson(0, "<unk>"), AddedTokenJson(1, "<s>"),
                                        AddedTokenJson(2, "</s>")})},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", json::array({begin, text})},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", pieces.vocab()},
            {"merges", pieces.merges()}}}};
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text,
                                const EncodeOptions& options) {
  std::vector<std::string> pieces;
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  for (const int32_t id : ids.value_or(std::vector<int32_t>())) {
    pieces.emplace_back(tokenizer.IdToPiece(id).value());
  }
  return pieces;
}

std::unique_ptr<Tokenizer> LoadJson(const json& tokenizer_json, const json& config) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", tokenizer_json);
  if (!config.is_null()) dir.Write("tokenizer_config.json", config);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace ziggurat
