#include "model/tokenizer/sentence_piece_proto.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

/// One field of a message on protobuf's wire.
struct Field {
  uint32_t number = 0;
  uint64_t integer = 0;    ///< varint and fixed types
  std::string_view bytes;  ///< length-delimited ones
};

/// Steps through the fields of a message.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  /// False at the end, and where the message is malformed.
  bool Next(Field* field) {
    if (rest_.empty() || malformed_) return false;
    uint64_t tag = 0;
    malformed_ = !ReadVarint(&tag) || tag >> 3 == 0 || !ReadValue(tag & 7, field);
    field->number = static_cast<uint32_t>(tag >> 3);
    return !malformed_;
  }
  bool malformed() const { return malformed_; }

 private:
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadFixed(size_t size, uint64_t* value) {
    if (rest_.size() < size) return false;
    *value = 0;
    std::memcpy(value, rest_.data(), size);  // little endian, as the wire
    rest_.remove_prefix(size);
    return true;
  }

  bool ReadValue(uint64_t wire_type, Field* field) {
    *field = {};
    switch (wire_type) {
      case 0:
        return ReadVarint(&field->integer);
      case 1:
        return ReadFixed(8, &field->integer);
      case 2: {
        uint64_t size = 0;
        if (!ReadVarint(&size) || size > rest_.size()) return false;
        field->bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return ReadFixed(4, &field->integer);
      default:
        return false;
    }
  }

  std::string_view rest_;
  bool malformed_ = false;
};

bool ParsePiece(std::string_view message, SentencePieceProto::Piece* piece) {
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 1) piece->text = field.bytes;
    if (field.number == 2)
      piece->score = std::bit_cast<float>(static_cast<uint32_t>(field.integer));
    if (field.number == 3) {
      if (field.integer < 1 || field.integer > 6) return false;
      piece->type = static_cast<PieceType>(field.integer);
    }
  }
  return !reader.malformed();
}

bool ParseTrainerSpec(std::string_view message, SentencePieceProto* proto) {
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case 3:
        if (field.integer < 1 || field.integer > 4) return false;
        proto->algorithm = static_cast<SentencePieceAlgorithm>(field.integer);
        break;
      case 24:
        proto->treat_whitespace_as_suffix = field.integer != 0;
        break;
      case 35:
        proto->byte_fallback = field.integer != 0;
        break;
      case 45:
        proto->unk_piece = field.bytes;
        break;
      case 46:
        proto->bos_piece = field.bytes;
        break;
      case 47:
        proto->eos_piece = field.bytes;
        break;
      default:
        break;
    }
  }
  return !reader.malformed();
}

bool ParseNormalizerSpec(std::string_view message, SentencePieceProto* proto) {
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 2) proto->precompiled_charsmap = field.bytes;
    if (field.number == 3) proto->add_dummy_prefix = field.integer != 0;
    if (field.number == 4) proto->remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5) proto->escape_whitespaces = field.integer != 0;
  }
  return !reader.malformed();
}

bool ParseDenormalizerSpec(std::string_view bytes, SentencePieceProto* proto) {
  FieldReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 2) proto->denormalizes = !field.bytes.empty();
  }
  return !reader.malformed();
}

}  // namespace

absl::StatusOr<SentencePieceProto> ParseSentencePieceProto(std::string_view serialized) {
  SentencePieceProto proto;
  FieldReader reader(serialized);
  Field field;
  bool ok = true;
  while (ok && reader.Next(&field)) {
    if (field.number == 1) ok = ParsePiece(field.bytes, &proto.pieces.emplace_back());
    if (field.number == 2) ok = ParseTrainerSpec(field.bytes, &proto);
    if (field.number == 3) ok = ParseNormalizerSpec(field.bytes, &proto);
    if (field.number == 5) ok = ParseDenormalizerSpec(field.bytes, &proto);
  }
  if (!ok || reader.malformed()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", serialized.size(), " bytes are no serialized ModelProto"));
  }
  return proto;
}

}  // namespace ziggurat
