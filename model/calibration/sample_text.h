// Samples of text for calibrations: files cut into token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer.h"

namespace ziggurat {

/// The texts of one file: one, or in a file called *.jsonl the field "prompt" of every line. Blank
/// lines are skipped. NOT_FOUND and INVALID_ARGUMENT name the file and, where one is to blame, its
/// line.
struct TextFile {
  std::filesystem::path path = {};
  bool has_prompts = false;
  std::vector<std::string> texts = {};
};
absl::StatusOr<TextFile> ReadTextFile(const std::filesystem::path& path);

struct SampleOptions {
  int count = 1;   ///< samples wanted
  int length = 1;  ///< tokens of a sample, with those that the tokenizer puts before a text
  int least = 1;   ///< a prompt with fewer tokens is no sample
};

struct SampledText {
  std::vector<std::vector<int32_t>> samples;  ///< at most SampleOptions::count
  size_t available = 0;                       ///< samples that the files hold
  size_t too_short = 0;                       ///< prompts of fewer than `least` tokens
};

/// Cuts plain text into stretches of exactly `length` tokens, what is left at its end being
/// dropped; of a prompt come the last `length` tokens, or all. Every sample begins as a prompt
/// does, with BOS where the model wants it. Where there are more than `count`, they are taken
/// evenly from the first to the last.
///
/// INVALID_ARGUMENT: text that is not UTF-8 (names the file), or no sample at all (says how many
/// tokens there are).
absl::StatusOr<SampledText> SampleText(const Tokenizer& tokenizer,
                                       const std::vector<TextFile>& files,
                                       const SampleOptions& options);

}  // namespace ziggurat
