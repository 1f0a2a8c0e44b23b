#include "model/checkpoint/random_tokenizer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/output_file.h"

namespace ziggurat {

namespace {

using nlohmann::json;

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

/// GPT-2's alphabet of bytes: printable ones stand for themselves, the others are numbered from
/// U+0100 in ascending order.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (printable(byte)) return Utf8(static_cast<uint32_t>(byte));
  uint32_t place = 0;
  for (int b = 0; b < byte; ++b) place += printable(b) ? 0 : 1;
  return Utf8(0x100 + place);
}

json SpecialToken(int32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json Vocabulary(int vocab_size) {
  json vocabulary = {{"<|bos|>", kRandomBos}, {"<|eos|>", kRandomEos}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteSymbol(byte)] = kRandomFirstByte + byte;
  for (int id = kMinRandomVocab; id < vocab_size; ++id) {
    vocabulary[absl::StrCat(ByteSymbol(' '), "w", id)] = id;
  }
  return vocabulary;
}

}  // namespace

absl::Status WriteTextFile(const std::filesystem::path& path, const std::string& text) {
  absl::StatusOr<OutputFile> file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(text.data(), text.size()); !status.ok()) return status;
  return file->Close();
}

absl::Status WriteRandomTokenizer(int vocab_size, int context_tokens,
                                  const std::filesystem::path& dir) {
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const json bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  const json second_bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 1}}}};
  const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const json post_processor = {{"type", "TemplateProcessing"},
                               {"single", {bos, first}},
                               {"pair", {bos, first, second_bos, second}},
                               {"special_tokens",
                                {{"<|bos|>",
                                  {{"id", "<|bos|>"},
                                   {"ids", json::array({kRandomBos})},
                                   {"tokens", json::array({"<|bos|>"})}}}}}};
  const json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", Vocabulary(vocab_size)},
                      {"merges", json::array()}};
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {SpecialToken(kRandomBos, "<|bos|>"), SpecialToken(kRandomEos, "<|eos|>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", post_processor},
      {"decoder", byte_level},
      {"model", model}};
  const json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", "<|bos|>"},
                       {"eos_token", "<|eos|>"},
                       {"model_max_length", context_tokens},
                       {"clean_up_tokenization_spaces", false}};
  absl::Status status = WriteTextFile(dir / "tokenizer.json", tokenizer.dump() + "\n");
  if (!status.ok()) return status;
  return WriteTextFile(dir / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace ziggurat
