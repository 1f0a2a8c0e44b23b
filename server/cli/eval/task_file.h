// Files of questions that have a right answer, one JSON object on each line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat::eval {

struct Question {
  std::string task = {};             ///< "single", "multikey3", ...
  int64_t length = 0;                ///< tokens of context that it was made for
  std::optional<double> depth = {};  ///< where the answer stands: 0 at the beginning, 1 at the end
  std::string prompt = {};
  std::string answer = {};
};

struct TaskFile {
  std::string path = {};
  /// Of the content: a file that was changed is another file.
  std::string hash = {};
  std::vector<Question> questions = {};
};

/// Reads the fields `prompt`, `answer`, `task`, `length` and, unless absent or null, `depth` of
/// every line; other fields and blank lines are skipped. NOT_FOUND and INVALID_ARGUMENT name the
/// file and, where one is to blame, its line.
absl::StatusOr<TaskFile> ReadTaskFile(const std::string& path);

/// The same of a text that came from `path`.
absl::StatusOr<TaskFile> ParseTaskFile(const std::string& path, std::string_view content);

/// Indices, ascending, of `limit` questions (all if there are fewer) that go as evenly as possible
/// over tasks, lengths and depths; the first ones of each. Whole rounds over the depths of a larger
/// limit contain those of a smaller one, so that a longer run goes on from a shorter one.
std::vector<size_t> SpreadOverDepths(const std::vector<Question>& questions, size_t limit);

}  // namespace ziggurat::eval
