// The file that every finished request goes into at once, so that a break costs nothing.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/eval/result.h"

namespace ziggurat::eval {

/// DIR/results.jsonl, which this process alone writes while the object lives.
class ResultLog {
 public:
  /// Makes the folder and the file where they are absent, and reads what is there. A last line
  /// without an end gets one, or is cut off where it is no more than the beginning of one of ours,
  /// torn by a break. Fails where the folder cannot be written, another process holds the file, or
  /// a line in it is none of ours (the message has its number).
  static absl::StatusOr<std::unique_ptr<ResultLog>> Open(const std::string& folder);
  ~ResultLog();
  ResultLog(const ResultLog&) = delete;
  ResultLog& operator=(const ResultLog&) = delete;

  const std::string& path() const { return path_; }
  /// What the file held when it was opened, in its order.
  const std::vector<Result>& earlier() const { return earlier_; }
  /// Whether a break had left the beginning of a line at its end, which has been cut off.
  bool was_torn() const { return was_torn_; }

  /// One line, written whole. Any thread.
  absl::Status Append(const Result& result);

 private:
  explicit ResultLog(std::string path) : path_(std::move(path)) {}
  absl::Status Read();
  absl::Status Write(const std::string& line);

  std::string path_;
  int file_ = -1;
  std::vector<Result> earlier_;
  bool was_torn_ = false;
  std::mutex mutex_;
};

}  // namespace ziggurat::eval
