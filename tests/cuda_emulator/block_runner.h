// Runs thread blocks of a kernel on the CPU: every thread is a fiber, blocks follow one another,
// but for one of a kernel that begins early.
//
// What a GPU leaves undefined is an error here, with the source line: a barrier that only some
// threads of a block reach, or at which they stand in different lines; a warp operation whose mask
// names lanes that never come; a shuffle from a lane outside the mask; a dynamic shared memory that
// was written past its end; a thread of a kernel that begins early (attention/cuda/platform.h)
// which ends without having awaited the kernel before. Threads and blocks run in another order from
// launch to launch (SetOrder), which a missing barrier seldom survives; and built with
// ThreadSanitizer, races between threads are reported as such (race_check.h), be they of one block
// or of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

namespace ziggurat::cuda_emulator {

/// What a launch throws when the kernel did what no kernel may.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
};

/// In which order the threads of a block take turns, and the blocks of a grid.
enum class ThreadOrder : uint8_t { kAscending, kDescending, kShuffled, kAnother };
/// kAnother (the default): one of the others for each launch, drawn by its number.
void SetOrder(ThreadOrder order);
/// Whether asynchronous copies of the block that is running take place at once, or when they are
/// waited for; drawn likewise for each launch.
bool CopiesAtOnce();

/// A launch of a kernel.
struct KernelLaunch {
  Extent3 grid, block;
  size_t shared_bytes = 0;
  std::function<void()> kernel;  ///< what every thread of every block runs
  bool begins_early = false;     ///< every thread has to call AwaitPrevious
};
/// A KernelError where no card could run it.
void CheckLaunch(const KernelLaunch& launch);

class Block;

/// The blocks of a launch, each in one of a few places, which have threads and shared memory of
/// their own. Shared memory is filled with 0xff before each block. For race_check.h blocks in two
/// places are not ordered; all come after what was done before Finish (what they do before
/// AwaitPrevious, if they begin early: before BeginEarly), and before what follows the destructor.
class Grid {
 public:
  /// `launch` outlives it.
  explicit Grid(const KernelLaunch& launch);
  ~Grid();
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  /// Runs one of the blocks until its threads await what was asked of the stream before.
  void BeginEarly();
  /// Runs all that has not run.
  void Finish();

 private:
  Block& BeginNextBlock();

  const KernelLaunch& launch_;
  ThreadOrder order_;
  bool copies_at_once_;
  std::vector<size_t> turns_;  ///< of the blocks
  size_t begun_ = 0;           ///< blocks
  std::vector<std::unique_ptr<Block>> places_;
  char start_ = 0;  ///< for race_check.h: what has to come before
};

// ---- What a kernel calls ------------------------------------------------------------------------

struct ThreadState {
  Index3 thread, block;
  Extent3 block_dim, grid_dim;
};
/// Of the thread that is running.
const ThreadState& CurrentThread();
std::byte* DynamicSharedMemory();
/// Memory of the block for what is declared as `declaration`, the same for all its threads.
std::byte* SharedVariableMemory(const void* declaration, size_t bytes);

void AwaitPrevious();
void BlockBarrier(std::source_location where);

/// Of the lanes of `mask`. It orders what they write and read, which WarpExchange does not: CUDA
/// promises nothing of the kind for shuffles and votes.
void WarpBarrier(uint32_t mask, std::source_location where);

/// What a lane shows the others in a warp operation.
struct LaneValue {
  uint64_t words[4] = {};
};
/// Waits for all lanes of `mask`, then `read` sees what they brought. `read` must not wait.
void WarpExchange(uint32_t mask, const LaneValue& own, std::source_location where,
                  const std::function<void(const LaneValue* of_lanes)>& read);
unsigned CurrentLane();
/// Fails the launch.
[[noreturn]] void Fail(const std::string& what, std::source_location where);

}  // namespace ziggurat::cuda_emulator
