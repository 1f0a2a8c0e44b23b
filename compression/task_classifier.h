// What kind of answer a prompt asks for, which decides how WindowKV scores its windows
// (arXiv:2503.17922): whether it looks for something that stands at a few places of the prompt, or
// draws on all of it. docs/task_classifier.md says what counts as which, how the classifier works,
// and how often it is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ziggurat {

enum class PromptTask : uint8_t {
  kLocalization,  ///< Question answering, retrieval.
  kAggregation,   ///< Summaries, code, counts over everything, going on from examples.
};

/// "localization" or "aggregation".
std::string_view PromptTaskName(PromptTask task);

struct TaskGuess {
  PromptTask task = PromptTask::kLocalization;
  /// Of that task, in the classifier's opinion: at least 0.5. Not calibrated on real requests.
  float probability = 0.5F;
};

/// The classifier looks at the first kTaskHeadBytes and the last kTaskTailBytes of a prompt only
/// (of a short one, twice at the same text). So its cost is bounded, whatever the length.
inline constexpr size_t kTaskHeadBytes = 1024;
inline constexpr size_t kTaskTailBytes = 1536;

/// `prompt_text` is the prompt as the model gets it, with or without a chat template; any bytes are
/// accepted, UTF-8 is understood. Has no state; any thread may call it.
TaskGuess ClassifyTask(std::string_view prompt_text);

}  // namespace ziggurat
