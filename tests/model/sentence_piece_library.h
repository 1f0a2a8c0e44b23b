// The SentencePiece library, as the oracle of our own implementation. Behind a wall, because its
// header and Abseil's both define absl::string_view.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ziggurat {

class SentencePieceLibrary {
 public:
  /// Trains a model with the arguments of `spm_train`; the bytes of its tokenizer.model.
  static std::string Train(const std::string& arguments);

  explicit SentencePieceLibrary(const std::string& serialized);
  ~SentencePieceLibrary();
  std::vector<int32_t> Encode(std::string_view text) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ziggurat
