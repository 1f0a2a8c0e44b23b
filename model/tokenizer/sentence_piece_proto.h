// The parts of a tokenizer.model file (a serialized sentencepiece.ModelProto) that encoding needs.
//
// Read by hand: the SentencePiece library brings a protobuf runtime of its own, whose symbols clash
// with the one that gRPC uses, so it cannot live in the daemon's process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat {

/// Numbers as in sentencepiece_model.proto.
enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

enum class SentencePieceAlgorithm : uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct SentencePieceProto {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;

  // trainer_spec
  SentencePieceAlgorithm algorithm = SentencePieceAlgorithm::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";

  // normalizer_spec
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  bool denormalizes = false;  ///< denormalizer_spec has rules
};

/// As protobuf does, a field that comes again replaces what it said before, and unknown fields are
/// skipped. INVALID_ARGUMENT for what is no such message.
absl::StatusOr<SentencePieceProto> ParseSentencePieceProto(std::string_view serialized);

}  // namespace ziggurat
