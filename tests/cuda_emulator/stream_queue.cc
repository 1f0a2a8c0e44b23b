#include "tests/cuda_emulator/stream_queue.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace ziggurat::cuda_emulator {
namespace {

Pace chosen_pace = Pace::kAnother;

std::set<cudaStream_t>& Streams() {
  static auto* const streams = new std::set<cudaStream_t>;
  return *streams;
}

void Do(const Work& work, std::unique_ptr<Grid> begun) {
  if (!work.kernel.has_value()) return work.other();
  if (begun == nullptr) begun = std::make_unique<Grid>(*work.kernel);
  begun->Finish();
}

}  // namespace

void SetPace(Pace pace) { chosen_pace = pace; }

void Submit(cudaStream_t stream, Work work) {
  if (work.kernel.has_value()) CheckLaunch(*work.kernel);
  if (stream == nullptr) return Do(work, nullptr);
  stream->Add(std::move(work));
}

void SynchronizeAll() {
  for (cudaStream_t stream : Streams()) stream->Synchronize();
}

}  // namespace ziggurat::cuda_emulator

using ziggurat::cuda_emulator::Grid;
using ziggurat::cuda_emulator::Pace;

CUstream_st::CUstream_st() { ziggurat::cuda_emulator::Streams().insert(this); }

CUstream_st::~CUstream_st() {
  Synchronize();
  ziggurat::cuda_emulator::Streams().erase(this);
}

void CUstream_st::Add(Work work) {
  if (is_recording_) return recorded_.push_back(std::move(work));
  asked_.emplace_back(std::move(work));
  if (ziggurat::cuda_emulator::chosen_pace == Pace::kWhenAwaited) return;
  // All, a part, or mostly nothing.
  const auto draw = random_() % 8;
  if (draw == 0) return Synchronize();
  if (draw == 1) return Run(random_() % asked_.size());
}

void CUstream_st::Await(const void* event) {
  const auto last = std::find_if(asked_.rbegin(), asked_.rend(),
                                 [&](const Asked& asked) { return asked.work.event == event; });
  Run(static_cast<size_t>(asked_.rend() - last));
}

std::vector<ziggurat::cuda_emulator::Work> CUstream_st::EndRecording() {
  is_recording_ = false;
  return std::exchange(recorded_, {});
}

void CUstream_st::Run(size_t count) {
  for (; count > 0; --count) {
    BeginSomeEarly();
    const absl::Cleanup done = [this] { asked_.pop_front(); };
    Asked& first = asked_.front();
    ziggurat::cuda_emulator::Do(first.work, std::move(first.begun));
  }
}

/// While the first kernel has still to run, as many behind it as may begin with it.
void CUstream_st::BeginSomeEarly() {
  constexpr size_t kAhead = 3;
  if (!asked_.front().work.kernel.has_value()) return;
  for (size_t i = 1; i < std::min(asked_.size(), 1 + kAhead); ++i) {
    const auto& kernel = asked_[i].work.kernel;
    if (!kernel.has_value() || !kernel->begins_early) return;
    if (asked_[i].begun != nullptr || random_() % 2 == 0) continue;
    asked_[i].begun = std::make_unique<Grid>(*kernel);
    asked_[i].begun->BeginEarly();
  }
}
