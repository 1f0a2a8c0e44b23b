#include "server/cli/bench/load/load_runner.h"

#include <algorithm>
#include <utility>

#include "server/cli/call_status.h"

namespace ziggurat::bench {
namespace {

bool IsRefusal(grpc::StatusCode code) {
  return code == grpc::StatusCode::RESOURCE_EXHAUSTED || IsAskedWrongly(code);
}

}  // namespace

/// One request on the wire. Holds itself from Start until gRPC says OnDone.
class LoadRunner::Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(LoadRunner* runner, const PlannedRequest& plan) : runner_(runner) { record_.plan = plan; }

  void Start(std::shared_ptr<Call> self) {
    self_ = std::move(self);
    FillRequest();
    const LoadOptions& options = runner_->options_;
    record_.sent_seconds = runner_->Now();
    record_.due_seconds = options.clients > 0 ? record_.sent_seconds : record_.plan.arrival_seconds;
    if (options.timeout_seconds) SetDeadline(context_, absl::Seconds(*options.timeout_seconds));
    runner_->stub_.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  /// Any thread, before Start too.
  void Cancel() { context_.TryCancel(); }

  RequestRecord& record() { return record_; }
  bool has_result() const { return has_result_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    const double now = runner_->Now();
    if (const int tokens = response_.chunk().token_ids_size(); tokens > 0) {
      record_.arrivals.push_back({.seconds = now, .tokens = tokens});
    }
    if (response_.has_result()) TakeResult(response_.result());
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    record_.end_seconds = runner_->Now();
    LoadRunner* const runner = runner_;
    std::shared_ptr<Call> self = std::move(self_);
    runner->OnEnd(self, status);
    // Its context refers to the channel, which must not end in a thread of gRPC's own.
    self.reset();
    runner->OnGone();
  }

 private:
  void FillRequest() {
    const std::vector<int32_t> prompt =
        runner_->prompts_.Make(record_.plan.index, record_.plan.lengths.input);
    request_.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request_.set_max_tokens(static_cast<int32_t>(record_.plan.lengths.output));
    request_.set_ignore_eos(true);
    request_.set_compression(runner_->options_.compression);
  }

  void TakeResult(const v1::GenerateResult& result) {
    has_result_ = true;
    record_.prompt_tokens = result.usage().prompt_tokens();
    record_.output_tokens = result.usage().completion_tokens();
    record_.queue_seconds = result.timings().queue_seconds();
    record_.cache_bytes = result.cache().bytes();
    record_.compression_ratio = result.cache().compression_ratio();
    record_.compression = result.cache().compression();
  }

  LoadRunner* const runner_;
  std::shared_ptr<Call> self_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  RequestRecord record_;
  bool has_result_ = false;
};

LoadRunner::LoadRunner(v1::Ziggurat::StubInterface& stub, Workload workload,
                       const PromptMaker& prompts, const LoadOptions& options)
    : stub_(stub),
      prompts_(prompts),
      options_(options),
      start_(Clock::now()),
      workload_(std::move(workload)),
      dispatcher_([this] { Dispatch(); }) {}

LoadRunner::~LoadRunner() {
  Stop();
  Wait().IgnoreError();
}

double LoadRunner::Now() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool LoadRunner::IsOver() const {
  return stopping_ || exhausted_ ||
         (options_.duration_seconds && Now() >= *options_.duration_seconds);
}

LoadProgress LoadRunner::progress() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

bool LoadRunner::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}

void LoadRunner::Stop() {
  std::set<std::shared_ptr<Call>> calls;
  {
    std::lock_guard lock(mutex_);
    if (end_.ok() && !finished_) end_ = absl::CancelledError("stopped");
    stopping_ = true;
    calls = calls_;
    changed_.notify_all();
  }
  // Without the mutex: gRPC may end a call in this thread.
  for (const std::shared_ptr<Call>& call : calls) call->Cancel();
}

absl::Status LoadRunner::Wait() {
  if (dispatcher_.joinable()) dispatcher_.join();
  std::lock_guard lock(mutex_);
  return end_;
}

std::vector<RequestRecord> LoadRunner::TakeRecords() {
  std::lock_guard lock(mutex_);
  std::sort(records_.begin(), records_.end(), [](const RequestRecord& a, const RequestRecord& b) {
    return a.plan.index < b.plan.index;
  });
  return std::move(records_);
}

void LoadRunner::Dispatch() {
  if (options_.clients > 0) {
    KeepClientsBusy();
  } else {
    SendArrivals();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return calls_.empty() && ending_ == 0; });
  finished_ = true;
}

LoadRunner::Clock::time_point LoadRunner::Arrival(const PlannedRequest& plan) const {
  constexpr double kNever = 1e9;  // 30 years; the clock has nanoseconds for 290
  const std::chrono::duration<double> after(std::min(plan.arrival_seconds, kNever));
  return start_ + std::chrono::duration_cast<Clock::duration>(after);
}

void LoadRunner::SendArrivals() {
  std::unique_lock lock(mutex_);
  // What is due in time is sent, and be it late: else who cannot keep up would make a smaller load.
  while (!stopping_) {
    const std::optional<PlannedRequest> plan = workload_.Next();
    if (!plan || plan->arrival_seconds > options_.duration_seconds.value_or(1e30)) return;
    if (changed_.wait_until(lock, Arrival(*plan), [this] { return stopping_; })) return;
    const std::shared_ptr<Call> call = MakeCall(*plan);
    lock.unlock();
    call->Start(call);
    lock.lock();
  }
}

void LoadRunner::KeepClientsBusy() {
  std::unique_lock lock(mutex_);
  resting_ = options_.clients;
  for (;;) {
    // Who is refused meanwhile rests until the next round.
    for (int rested = std::exchange(resting_, 0); rested > 0; --rested) {
      const std::shared_ptr<Call> call = TakeNext();
      if (call == nullptr) return;
      lock.unlock();
      call->Start(call);
      lock.lock();
    }
    if (changed_.wait_for(lock, kPause, [this] { return IsOver(); })) return;
  }
}

std::shared_ptr<LoadRunner::Call> LoadRunner::TakeNext() {
  if (IsOver()) return nullptr;
  const std::optional<PlannedRequest> plan = workload_.Next();
  if (!plan) {
    exhausted_ = true;
    changed_.notify_all();
    return nullptr;
  }
  return MakeCall(*plan);
}

std::shared_ptr<LoadRunner::Call> LoadRunner::MakeCall(const PlannedRequest& plan) {
  auto call = std::make_shared<Call>(this, plan);
  calls_.insert(call);
  ++progress_.sent;
  return call;
}

void LoadRunner::OnEnd(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  RequestRecord& record = call->record();
  std::shared_ptr<Call> next;
  {
    std::lock_guard lock(mutex_);
    const bool is_gone = IsDaemonGone(status.error_code(), /*we_cancelled=*/stopping_);
    if (status.ok() && call->has_result()) {
      record.outcome = Outcome::kDone;
      ++progress_.done;
    } else if (status.error_code() == grpc::StatusCode::CANCELLED && stopping_) {
      record.outcome = Outcome::kCancelled;
    } else {
      const bool is_refused = IsRefusal(status.error_code()) && record.arrivals.empty();
      record.outcome = is_refused ? Outcome::kRefused : Outcome::kFailed;
      record.error_code = status.ok() ? "INTERNAL" : CodeName(status.error_code());
      record.error = status.ok() ? "the answer has no end" : status.error_message();
    }
    ++progress_.ended;
    // More requests would measure nothing.
    if (is_gone) {
      if (end_.ok()) end_ = absl::UnavailableError(status.error_message());
      stopping_ = true;
    }
    if (options_.clients > 0) {
      if (record.outcome == Outcome::kDone) next = TakeNext();
      if (next == nullptr) ++resting_;
    }
    records_.push_back(std::move(record));
    calls_.erase(call);
    ++ending_;
    changed_.notify_all();
  }
  if (next != nullptr) next->Start(next);
}

void LoadRunner::OnGone() {
  std::lock_guard lock(mutex_);
  --ending_;
  changed_.notify_all();
}

}  // namespace ziggurat::bench
