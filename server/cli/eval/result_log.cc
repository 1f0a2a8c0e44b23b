#include "server/cli/eval/result_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ziggurat::eval {
namespace {

/// What every line of ours begins with (ToJsonLine).
constexpr std::string_view kLineBegins = "{\"model\":";

absl::Status SystemError(const std::string& path, int error) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResultLog>> ResultLog::Open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(folder, ": ", error.message()));
  const std::string path = (std::filesystem::path(folder) / "results.jsonl").string();
  std::unique_ptr<ResultLog> log(new ResultLog(path));
  log->file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log->file_ < 0) return SystemError(path, errno);
  if (flock(log->file_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": another evaluation writes to it; give this one another --out"));
  }
  if (absl::Status status = log->Read(); !status.ok()) return status;
  return log;
}

ResultLog::~ResultLog() {
  if (file_ >= 0) close(file_);
}

absl::Status ResultLog::Read() {
  std::string content;
  std::string buffer(size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t count = read(file_, buffer.data(), buffer.size());
    if (count < 0) return SystemError(path_, errno);
    if (count == 0) break;
    content.append(buffer, 0, static_cast<size_t>(count));
  }
  int line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    const bool has_end = end != std::string::npos;
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    ++line_number;
    absl::StatusOr<Result> result = ParseResult(line);
    if (result.ok()) {
      earlier_.push_back(*std::move(result));
    } else if (!has_end && line.substr(0, kLineBegins.size()) ==
                               kLineBegins.substr(0, std::min(line.size(), kLineBegins.size()))) {
      was_torn_ = true;
      if (ftruncate(file_, static_cast<off_t>(begin)) != 0) return SystemError(path_, errno);
      return absl::OkStatus();
    } else {
      return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_number, ": ",
                                                     std::string(result.status().message()),
                                                     "; remove the line, or give another --out"));
    }
    if (!has_end) return Write("\n");
    begin = end + 1;
  }
  return absl::OkStatus();
}

absl::Status ResultLog::Append(const Result& result) { return Write(ToJsonLine(result) + "\n"); }

absl::Status ResultLog::Write(const std::string& line) {
  std::lock_guard lock(mutex_);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path_, errno);
    written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace ziggurat::eval
