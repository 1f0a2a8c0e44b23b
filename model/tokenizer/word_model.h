// What splits words into pieces, whichever way.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/tokenizer/vocabulary.h"

namespace ziggurat {

/// The "model" of tokenizer.json. Immutable once loaded; thread-safe.
class WordModel {
 public:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~WordModel() = default;

  /// Appends the ids of one word, which is valid UTF-8. INVALID_ARGUMENT where the word has a
  /// character that the model can neither split nor call unknown.
  ///   finds_special  false: no special token comes of what is written in the word. But what can
  ///                  be had in no other way is: the unknown token, pieces of bytes that are
  ///                  special, one that is the only piece for its character
  virtual absl::Status Tokenize(std::string_view word, bool finds_special,
                                std::vector<int32_t>* ids) const = 0;
  virtual std::optional<int32_t> unk_id() const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// For added tokens, which share the ids of the model but need not be pieces of it.
  Vocabulary& mutable_vocabulary() { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

}  // namespace ziggurat
