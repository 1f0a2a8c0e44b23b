// Tokenizer folders for tests: small ones made on the spot, and the bundled one.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "tests/support/files.h"

namespace ziggurat {

/// A folder that is removed with the object.
class TokenizerDir {
 public:
  void Write(std::string_view name, std::string_view content) const;
  void Write(std::string_view name, const nlohmann::json& content) const;
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

std::filesystem::path NeedleDir();

/// tokenizer.json of a byte-level BPE over all 256 bytes (id = rank in GPT-2's alphabet) with the
/// merges "h e", "l l", "he ll", "hell o", "Ġ hello" and the special token <|end|> behind them.
nlohmann::json ByteLevelTokenizer();

/// tokenizer.json in the manner of Llama 2: Prepend and Replace, byte fallback, <unk> <s> </s> = 0
/// 1 2, bytes 3..258, then characters and the merges of "▁hello" and "▁world".
nlohmann::json SentencePieceTokenizer();

/// The tokens of `text` as they stand in the vocabulary.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text,
                                const EncodeOptions& options = {});

/// Loads a tokenizer.json, with a tokenizer_config.json beside it unless that is null; the test
/// fails, and null comes back, if that fails.
std::unique_ptr<Tokenizer> LoadJson(const nlohmann::json& tokenizer_json,
                                    const nlohmann::json& config = nullptr);

}  // namespace ziggurat
