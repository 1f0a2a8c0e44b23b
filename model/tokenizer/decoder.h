// Decoders of tokenizer.json: from pieces back to text, as a chain of stages that work on a stream.
// Decoding a whole list of ids is the same stream pushed at once, so the two cannot differ.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/decoder_stream.h"

namespace ziggurat {

/// Makes streams. Immutable; thread-safe.
class Decoder {
 public:
  /// JSON null: pieces joined by spaces. UNIMPLEMENTED names a decoder that is not known.
  static absl::StatusOr<Decoder> Parse(const nlohmann::json& component);
  /// What SentencePiece does: U+2581 is a space, <0x00>..<0xFF> are bytes if
  /// `falls_back_to_bytes`, and up to `strips_spaces` spaces at the beginning are taken away.
  static absl::StatusOr<Decoder> SentencePiece(bool falls_back_to_bytes, int64_t strips_spaces);

  DecoderStream NewStream() const;

 private:
  std::vector<std::unique_ptr<DecoderStage>> stages_;  ///< never pushed to
};

}  // namespace ziggurat
