// What a tokenizer file yields, whichever kind of file it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/post_processor.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/vocabulary.h"

namespace ziggurat {

/// Encodes what lies between added tokens. Immutable; thread-safe.
class SectionEncoder {
 public:
  virtual ~SectionEncoder() = default;
  /// Appends the ids of `section` (valid UTF-8, not empty).
  virtual absl::Status Encode(std::string_view section, bool begins_the_input, bool parse_special,
                              std::vector<int32_t>* ids) const = 0;
  /// Of the model and of all added tokens.
  virtual const Vocabulary& vocabulary() const = 0;
};

struct LoadedTokenizer {
  std::unique_ptr<SectionEncoder> encoder;
  std::vector<AddedToken> added_tokens;
  /// Those of them that are looked for in the text as it was given.
  std::unique_ptr<AddedTokenMatcher> matcher;
  Decoder decoder;
  PostProcessor post_processor;
  std::optional<int32_t> bos_id, eos_id, unk_id;  ///< as the file itself says
};

/// Errors do not name the file: the caller does.
absl::StatusOr<LoadedTokenizer> LoadTokenizerJson(const std::filesystem::path& path,
                                                  const TokenizerConfig& config);
absl::StatusOr<LoadedTokenizer> LoadSentencePiece(const std::filesystem::path& path,
                                                  const TokenizerConfig& config);

}  // namespace ziggurat
