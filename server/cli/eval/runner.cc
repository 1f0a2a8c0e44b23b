#include "server/cli/eval/runner.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "server/cli/call_status.h"
#include "server/cli/patience.h"

namespace ziggurat::eval {

Runner::Runner(v1::Ziggurat::StubInterface& stub, const v1::GetModelResponse& model, ResultLog& log,
               std::vector<Job> jobs, const RunnerOptions& options)
    : stub_(stub), model_(model), log_(log), jobs_(std::move(jobs)), options_(options) {
  progress_.total = jobs_.size();
  for (const Job& job : jobs_) progress_.total_weight += job.asking->question().prompt.size();
  const size_t workers = std::min(static_cast<size_t>(options_.concurrency), jobs_.size());
  contexts_.resize(workers);
  running_ = static_cast<int>(workers);
  for (size_t i = 0; i < workers; ++i) workers_.emplace_back([this, i] { Work(i); });
}

Runner::~Runner() {
  Stop();
  Wait().IgnoreError();
}

RunProgress Runner::progress() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

void Runner::Stop() { End(absl::CancelledError("stopped")); }

void Runner::End(absl::Status why) {
  std::lock_guard lock(mutex_);
  if (end_.ok()) end_ = std::move(why);
  stopping_ = true;
  for (grpc::ClientContext* context : contexts_) {
    if (context != nullptr) context->TryCancel();
  }
}

absl::Status Runner::Wait() {
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
  std::lock_guard lock(mutex_);
  return progress_.done == progress_.total ? absl::OkStatus() : end_;
}

void Runner::Work(size_t worker) {
  for (;;) {
    const size_t i = next_++;
    Result result;
    if (stopping_ || i >= jobs_.size() || !Ask(worker, jobs_[i], result)) break;
    if (absl::Status status = log_.Append(result); !status.ok()) {
      End(std::move(status));
      break;
    }
    std::lock_guard lock(mutex_);
    ++progress_.done;
    progress_.failed += result.failed() ? 1 : 0;
    progress_.done_weight += jobs_[i].asking->question().prompt.size();
    results_.push_back(std::move(result));
  }
  --running_;
}

bool Runner::Ask(size_t worker, const Job& job, Result& result) {
  Patience patience(options_.busy_patience);
  for (;;) {
    result = {.key = MakeKey(model_, *job.asking, *job.policy),
              .file = std::filesystem::path(job.asking->file->path).filename().string(),
              .version = model_.version(),
              .recall_asked = options_.attention_recall};
    const grpc::Status status = Call(worker, job, result);
    if (status.ok()) return true;
    if (stopping_) return false;
    if (IsDaemonGone(status.error_code(), /*we_cancelled=*/false)) {
      End(absl::UnavailableError(status.error_message()));
      return false;
    }
    const std::optional<absl::Duration> pause =
        IsBusy(status) ? patience.NextPause() : std::nullopt;
    if (!pause) {
      result.error_code = CodeName(status.error_code());
      result.error = status.error_message();
      return true;
    }
    absl::SleepFor(*pause);
  }
}

grpc::Status Runner::Call(size_t worker, const Job& job, Result& result) {
  grpc::ClientContext context;
  SetDeadline(context, options_.deadline);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    contexts_[worker] = &context;
  }
  const auto stream =
      stub_.Generate(&context, MakeRequest(*job.asking, *job.policy, options_.attention_recall));
  v1::GenerateResponse response;
  bool has_result = false;
  while (stream->Read(&response)) {
    if (response.has_result()) {
      FillFrom(response.result(), result);
      has_result = true;
    } else {
      result.text += response.chunk().text();
    }
  }
  grpc::Status status = WithRefusalReason(stream->Finish(), context);
  {
    std::lock_guard lock(mutex_);
    contexts_[worker] = nullptr;
  }
  if (status.ok() && !has_result) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "the answer has no end");
  }
  return status;
}

}  // namespace ziggurat::eval
