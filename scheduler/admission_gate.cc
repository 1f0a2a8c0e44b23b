#include "scheduler/admission_gate.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "scheduler/refusal.h"

namespace ziggurat {

absl::Status AdmissionGate::CheckLocked(bool has_place, int before) const {
  if (closed_) {
    return Refuse(metrics_, Refusal::kDraining, absl::UnavailableError("the server is draining"));
  }
  const int queued = waiting_ - promised_.requests + before;
  if (queued < max_queue_ || has_place) return absl::OkStatus();
  return Refuse(
      metrics_, Refusal::kQueueFull,
      absl::ResourceExhaustedError(absl::StrCat(
          "the queue is full: ", queued, " requests are waiting, at most ", max_queue_, " may")));
}

absl::Status AdmissionGate::CheckOpen(int before) const {
  std::lock_guard lock(mutex_);
  const int places = HasPlace(/*blocks=*/1) ? open_.requests : 0;
  return CheckLocked(places > before, std::max(before - places, 0));
}

absl::Status AdmissionGate::Enter(size_t blocks, absl::FunctionRef<void(Places promised)> send) {
  std::lock_guard lock(mutex_);
  const bool has_place = HasPlace(blocks);
  if (absl::Status status = CheckLocked(has_place, /*before=*/0); !status.ok()) return status;
  ++in_;
  ++waiting_;
  const Places promised = has_place ? Places{1, blocks} : Places();
  open_ -= promised;
  promised_ += promised;
  send(promised);
  return absl::OkStatus();
}

void AdmissionGate::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

bool AdmissionGate::AwaitEmpty(absl::Duration timeout) const {
  std::unique_lock lock(mutex_);
  return emptied_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24))),
                           [this] { return in_ == 0; });
}

void AdmissionGate::Publish(int finished, Places reached, int running, Places free) {
  {
    std::lock_guard lock(mutex_);
    in_ -= finished;
    waiting_ = in_ - running;
    promised_ -= reached;
    open_ = {free.requests - promised_.requests,
             free.blocks - std::min(free.blocks, promised_.blocks)};
  }
  emptied_.notify_all();
}

}  // namespace ziggurat
