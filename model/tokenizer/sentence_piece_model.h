// The SentencePiece library behind a wall: its header defines absl::string_view in a way of its
// own, so no file may include both it and Abseil. Hence errors are plain text here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ziggurat {

/// One loaded model. Immutable; thread-safe.
class SentencePieceModel {
 public:
  /// From the bytes of tokenizer.model. Null if they are no model: then `*error` says why.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view serialized, std::string* error);
  ~SentencePieceModel();

  /// Appends the ids of `text`. False if the library fails: then `*error` says why.
  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;

  int size() const;
  const std::string& Piece(int id) const;
  /// Control and unknown tokens: they never come from ordinary text, or stand for no text.
  bool IsSpecial(int id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> unk_id() const;

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace ziggurat
