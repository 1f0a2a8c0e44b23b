// The charts of the report: accuracy over bytes, attention recall over layers.
#pragma once

#include <string>

#include "server/cli/eval/summary.h"

namespace ziggurat::eval {

/// Exact match of all questions together over the bytes held, one line for each variant of a
/// policy; colour and marker are those of its family.
std::string DrawAccuracy(const Summary& summary);

/// The same for each group, in small.
std::string DrawAccuracyByTask(const Summary& summary);

/// Recall of every policy in every layer (PyramidKV, figure 8).
std::string DrawAttentionRecall(const Summary& summary);

}  // namespace ziggurat::eval
