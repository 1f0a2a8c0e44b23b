// The report of an evaluation: a text for people, the same figures for programs, and pictures.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/cli/eval/asking.h"
#include "server/cli/eval/summary.h"

namespace ziggurat::eval {

/// How the figures came about.
struct RunInfo {
  std::string command = {};  ///< as it can be typed again
  std::string server = {};
  absl::Time time = {};
  v1::GetModelResponse model = {};
  /// The task files, and how many of their questions were asked.
  std::vector<std::pair<const TaskFile*, size_t>> files = {};
  std::optional<size_t> limit = {};
  int concurrency = 1;
  AskingOptions asking = {};
  size_t reused = 0;  ///< results that earlier runs had brought
};

/// File names of the pictures, without the folder.
struct PictureNames {
  std::string accuracy = "accuracy.svg";
  std::string accuracy_by_task = "accuracy_by_task.svg";
  std::string heat_map_overview = {};       ///< empty where there is no heat map
  std::vector<std::string> heat_maps = {};  ///< of each policy
  std::string attention_recall = {};        ///< empty where no policy has any
};
PictureNames NamePictures(absl::Span<const EvalPolicy> policies, bool has_heat_maps,
                          bool has_recall);
PictureNames NamePictures(const Summary& summary);

std::string MarkdownReport(const RunInfo& info, const Summary& summary,
                           const PictureNames& pictures);
std::string JsonReport(const RunInfo& info, const Summary& summary);

/// A few lines for the terminal: every policy over all questions.
std::string ShortReport(const Summary& summary);

/// Whether WriteReport will be able to write a report with these pictures: for asking before long
/// work. INVALID_ARGUMENT or FAILED_PRECONDITION as CheckReplaceable.
absl::Status CheckReport(const std::string& folder, const PictureNames& pictures);
/// Writes report.md, report.json and the pictures, each as a whole. The error names the file.
absl::Status WriteReport(const std::string& folder, const RunInfo& info, const Summary& summary);

}  // namespace ziggurat::eval
