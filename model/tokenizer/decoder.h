// Decoders of tokenizer.json: from pieces back to text, as a chain of stages that work on a stream.
// Decoding a whole list of ids is the same stream pushed at once, so the two cannot differ.
#pragma once

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
  /// What SentencePiece does: U+2581 is a space, <0x00>..<0xFF> are bytes, and the space that was
  /// put before the text is taken away if `strips_prefix_space`.
  static absl::StatusOr<Decoder> SentencePiece(bool strips_prefix_space);

  DecoderStream NewStream() const;

 private:
  std::vector<std::unique_ptr<DecoderStage>> stages_;  ///< never pushed to
};

}  // namespace ziggurat
