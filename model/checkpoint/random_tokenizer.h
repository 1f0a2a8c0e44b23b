// The tokenizer of a random model. Private to this folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

constexpr int32_t kRandomBos = 0;
constexpr int32_t kRandomEos = 1;
constexpr int32_t kRandomFirstByte = 2;  ///< byte b is token 2 + b
constexpr int kMinRandomVocab = kRandomFirstByte + 256;

/// Writes tokenizer.json (byte-level BPE without merges, begin of text put before every prompt) and
/// tokenizer_config.json.
absl::Status WriteRandomTokenizer(int vocab_size, int context_tokens,
                                  const std::filesystem::path& dir);

/// RESOURCE_EXHAUSTED: the disk is full. INTERNAL: the file cannot be written.
absl::Status WriteTextFile(const std::filesystem::path& path, const std::string& text);

}  // namespace ziggurat
