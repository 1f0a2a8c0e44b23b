// `ziggurat tokenize`: text in, ids out, and back. No daemon, no model.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

struct TokenizeCommand {
  std::filesystem::path tokenizer_dir;
  bool decode = false;             ///< ids in, text out
  bool add_special_tokens = true;  ///< BOS, where the model wants it
  bool parse_special = true;       ///< encoding: special tokens written out in the text are tokens
  bool skip_special = true;        ///< decoding: special tokens give no text
  bool show_pieces = false;        ///< encoding: one line for each token, id and piece
};

/// Writes what `input` becomes to `out`: ids separated by spaces, with a newline at the end; or
/// the text, byte for byte. Ids of the input may be separated by white space or commas, and may
/// stand in brackets. Errors say what is wrong with the tokenizer or the input.
absl::Status RunTokenizeCommand(const TokenizeCommand& command, const std::string& input,
                                std::ostream& out);

}  // namespace ziggurat
