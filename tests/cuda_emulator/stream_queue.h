// The streams of the emulator. What a stream is asked for happens some time between the call and
// the wait for it, as on a GPU: at once, a few calls later, or not before somebody waits; another
// number of calls each time (SetPace). So the result changes where the host writes memory that the
// stream has still to read, or reads what it has still to write.
//
// Of kernels that begin early (attention/cuda/platform.h) a block runs up to AwaitPrevious before
// kernels in front of it on the stream have run. So the result changes where it reads what they
// write, or writes what they read; and ThreadSanitizer, which takes nothing to order the two,
// reports it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "attention/cuda/stream.h"
#include "tests/cuda_emulator/block_runner.h"

namespace ziggurat::cuda_emulator {

/// How soon a stream does what it is asked for.
enum class Pace : uint8_t { kWhenAwaited, kAnother };
/// kAnother (the default): from call to call another.
void SetPace(Pace pace);

/// What a stream is asked for: a kernel or something else.
struct Work {
  std::optional<KernelLaunch> kernel = std::nullopt;
  std::function<void()> other = nullptr;
  const void* event = nullptr;  ///< which it stands for, if it does
};

/// To a stream, or at once where that is null. A KernelError where no card could run the kernel.
void Submit(cudaStream_t stream, Work work);
/// Waits for all streams, as does a GPU's driver before it frees memory.
void SynchronizeAll();

}  // namespace ziggurat::cuda_emulator

/// What a cudaStream_t points to. Like CUDA's, it may be used by one thread at a time, and the
/// kernels of all streams run one after the other.
struct CUstream_st {
 public:
  using Work = ziggurat::cuda_emulator::Work;

  CUstream_st();
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void Add(Work work);
  /// Everything that was asked for.
  void Synchronize() { Run(asked_.size()); }
  /// Up to the last work that stands for `event`, if it has not been done.
  void Await(const void* event);

  /// From here on nothing is done: it is kept for who calls EndRecording.
  void BeginRecording() { is_recording_ = true; }
  std::vector<Work> EndRecording();

 private:
  struct Asked {
    explicit Asked(Work what) : work(std::move(what)) {}
    Work work;
    std::unique_ptr<ziggurat::cuda_emulator::Grid> begun;  ///< early; it refers to `work`
  };
  void Run(size_t count);
  void BeginSomeEarly();

  std::deque<Asked> asked_;  ///< and not done
  std::mt19937 random_;
  bool is_recording_ = false;
  std::vector<Work> recorded_;
};
