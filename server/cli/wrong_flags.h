// What is said of words of the command line that cannot be taken, where CLI11 says too little.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/types/span.h"

namespace ziggurat {

/// The one of `names` that is most like `word`, if no more than a third of the word must change.
std::optional<std::string> NearestName(const std::string& word,
                                       const std::vector<std::string>& names);

/// " (did you mean 'NAME'?)" with the one that NearestName gives; empty without one.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& names);

/// "--page: 'maybe' is no switch: must be on or off", of an option whose value is of another kind.
std::string DescribeConversion(const CLI::Option& option);

/// Why an option that takes one value cannot have several.
std::string DescribeRepetition(const CLI::Option& option);

/// "true" or "false", of every word that stands for it; nullopt where it is neither.
std::optional<std::string> ParseSwitch(const std::string& text);

/// Has `app` and its commands refuse what CLI11 would take for something else: 010 for 8, -1 for
/// 2^64 - 1, 5 for true.
void RefuseOddValues(CLI::App& app);

/// The name of a flag in `words` that has a "=" and nothing behind it; empty: there is none.
std::string FlagWordWithoutValue(absl::Span<char* const> words);

/// Names the words of the command line that `app` and the commands it was told did not take, in
/// their order, with the command before them: "ziggurat serve: '--modle' is no flag (did you mean
/// '--model'?); `ziggurat serve --help` lists what is". Empty: there is none.
std::string DescribeUnknownWords(const CLI::App& app);

/// Says which of `words`, those behind the name of `app`, is no command where one must stand.
/// Empty: there is none.
std::string DescribeUnknownCommand(const CLI::App& app, absl::Span<char* const> words);

}  // namespace ziggurat
