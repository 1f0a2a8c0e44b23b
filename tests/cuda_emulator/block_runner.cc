#include "tests/cuda_emulator/block_runner.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/race_check.h"

namespace ziggurat::cuda_emulator {
namespace {

constexpr unsigned kWarpSize = 32;
constexpr std::byte kPoison{0xff};
constexpr size_t kGuardBytes = 256;  ///< behind the shared memory; must stay as it is
constexpr size_t kMostVariables = 16;
constexpr size_t kVariablesBytes = 48 << 10;  ///< that CUDA lets a kernel declare

enum class Waiting : uint8_t { kNo, kAtBarrier, kForWarp, kForPrevious, kReturned };

struct Thread {
  ThreadState state;
  Waiting waiting = Waiting::kNo;
  std::source_location where;
  uint32_t mask = 0;
  bool has_awaited = false;
};

struct SharedVariable {
  const void* declaration = nullptr;
  size_t begin = 0;
};

struct Warp {
  LaneValue arrived[kWarpSize];
  uint32_t unread = 0;  ///< lanes that were released and have not read yet
  std::map<uint32_t, race_check::Barrier> barriers;  ///< by the mask of their lanes
};

std::string At(std::source_location where) {
  return absl::StrCat(where.file_name(), ":", where.line());
}
bool SamePlace(std::source_location a, std::source_location b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::string_view(a.file_name()) == b.file_name();
}

std::string IndexText(Index3 i) { return absl::StrCat("(", i.x, ", ", i.y, ", ", i.z, ")"); }

/// Where the i-th of an extent stands in it.
Index3 IndexAt(size_t i, Extent3 in) {
  return {static_cast<unsigned>(i % in.x), static_cast<unsigned>(i / in.x % in.y),
          static_cast<unsigned>(i / in.x / in.y)};
}

ThreadOrder chosen_order = ThreadOrder::kAnother;
uint32_t launches = 0;
Block* running = nullptr;

/// Places for blocks: their stacks are kept.
std::vector<std::unique_ptr<Block>>& IdleBlocks() {
  static auto* const idle = new std::vector<std::unique_ptr<Block>>;
  return *idle;
}
std::unique_ptr<Block> TakePlace() {
  auto& idle = IdleBlocks();
  if (idle.empty()) return std::make_unique<Block>();
  std::unique_ptr<Block> place = std::move(idle.back());
  idle.pop_back();
  return place;
}

/// 0 .. count - 1, in that order.
std::vector<size_t> Turns(size_t count, ThreadOrder order) {
  std::vector<size_t> turns(count);
  std::iota(turns.begin(), turns.end(), 0);
  if (order == ThreadOrder::kDescending) std::reverse(turns.begin(), turns.end());
  if (order == ThreadOrder::kShuffled) std::shuffle(turns.begin(), turns.end(), std::mt19937(7));
  return turns;
}

}  // namespace

/// A place in which one block after another runs. Of a block it is a thread of its own that makes
/// it ready and sees to its end, since what the caller knows of other blocks is not for its
/// threads.
class Block {
 public:
  Block() : variables_(kVariablesBytes, kPoison), maker_(race_check::Create()) {
    const race_check::As maker(maker_);
    // It is on the caller's stack, and so are those of other blocks.
    race_check::IgnoreMemory();
  }

  /// Nothing runs yet. `launch` outlives this run, and so does `start`, a race_check.h's: the block
  /// comes after what was released there.
  void Begin(const KernelLaunch& launch, Index3 block, ThreadOrder order, bool copies_at_once,
             void* start);
  /// Until the threads that can have come to Await.
  void RunToAwait();
  /// Threads that wait in Await go on after what was released at `start` in the meantime.
  void RunToEnd();
  /// What the caller does then comes after all that was done here. Drops what did not come to its
  /// end.
  void Join();

  void Await();
  ThreadState& current() { return threads_[now_].state; }
  std::byte* shared() { return shared_.data(); }
  std::byte* variable(const void* declaration, size_t bytes);
  unsigned lane() const { return static_cast<unsigned>(now_) % kWarpSize; }
  bool copies_at_once() const { return copies_at_once_; }

  void Barrier(std::source_location where) {
    Thread& thread = threads_[now_];
    thread.waiting = Waiting::kAtBarrier;
    thread.where = where;
    void* const turn = barrier_.Arrive();
    fibers_[now_]->Leave();
    race_check::Barrier::Leave(turn);
  }
  void Exchange(uint32_t mask, const LaneValue& own, std::source_location where,
                const std::function<void(const LaneValue*)>& read, bool orders_memory);

 private:
  void JoinThreads();
  void RunUntilAllWait();
  bool ReleaseBarrier();
  void ExplainStandstill() const;
  void CheckAwaited() const;
  void CheckGuard() const;
  uint32_t LanesOfWarp() const;
  bool AllArrived(uint32_t mask, std::source_location where) const;

  const KernelLaunch* launch_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  ///< kept from block to block
  std::vector<size_t> turns_;                   ///< of the threads
  std::vector<std::byte> shared_;
  std::vector<std::byte> variables_;  ///< what is declared in shared memory
  SharedVariable declared_[kMostVariables];
  size_t num_declared_ = 0, declared_bytes_ = 0;
  std::function<void()> body_;
  std::exception_ptr error_;
  race_check::Barrier barrier_;
  race_check::Thread maker_;
  void* start_ = nullptr;
  char begin_ = 0;  ///< for race_check.h: all threads of a block come after this
  char end_ = 0;    ///< and before this
  size_t now_ = 0;
  size_t live_ = 0;
  bool has_previous_ = false;  ///< which Await is to wait for
  bool copies_at_once_ = true;
};

void Block::Begin(const KernelLaunch& launch, Index3 block, ThreadOrder order, bool copies_at_once,
                  void* start) {
  const race_check::As maker(maker_);
  race_check::Acquire(start);
  start_ = start;
  launch_ = &launch;
  const Extent3 dim = launch.block;
  const size_t count = size_t{dim.x} * dim.y * dim.z;
  threads_.assign(count, {});
  warps_.assign((count + kWarpSize - 1) / kWarpSize, {});
  turns_ = Turns(count, order);
  shared_.assign(launch.shared_bytes + kGuardBytes, kPoison);
  std::fill_n(variables_.begin(), declared_bytes_, kPoison);
  num_declared_ = declared_bytes_ = 0;
  error_ = nullptr;
  live_ = count;
  has_previous_ = false;
  copies_at_once_ = copies_at_once;
  body_ = [this] {
    race_check::Acquire(&begin_);
    try {
      launch_->kernel();
    } catch (...) {
      error_ = std::current_exception();
    }
    threads_[now_].waiting = Waiting::kReturned;
    --live_;
  };
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
  for (size_t t = 0; t < count; ++t) {
    threads_[t].state = {IndexAt(t, dim), block, dim, launch.grid};
    fibers_[t]->Begin(&body_);
  }
  race_check::Release(&begin_);
}

std::byte* Block::variable(const void* declaration, size_t bytes) {
  for (size_t i = 0; i < num_declared_; ++i) {
    if (declared_[i].declaration == declaration) return variables_.data() + declared_[i].begin;
  }
  constexpr size_t kAlignment = alignof(std::max_align_t);
  const size_t begin = (declared_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  if (num_declared_ == kMostVariables || bytes > kVariablesBytes - begin) {
    throw KernelError("a kernel declares too much in shared memory");
  }
  declared_[num_declared_++] = {declaration, begin};
  declared_bytes_ = begin + bytes;
  return variables_.data() + begin;
}

void Block::RunUntilAllWait() {
  running = this;
  for (bool has_moved = true; has_moved && live_ > 0;) {
    has_moved = false;
    for (size_t t : turns_) {
      if (threads_[t].waiting != Waiting::kNo) continue;
      now_ = t;
      has_moved = true;
      fibers_[t]->Resume();
      if (error_ != nullptr) std::rethrow_exception(error_);
    }
    has_moved = has_moved || ReleaseBarrier();
  }
}

void Block::RunToAwait() {
  const race_check::As maker(maker_);
  has_previous_ = true;
  RunUntilAllWait();
}

void Block::Await() {
  Thread& thread = threads_[now_];
  thread.has_awaited = true;
  if (!has_previous_) return;
  thread.waiting = Waiting::kForPrevious;
  fibers_[now_]->Leave();
  race_check::Acquire(start_);
}

void Block::JoinThreads() {
  for (size_t t = 0; t < threads_.size(); ++t) fibers_[t]->ReleaseTo(&end_);
  threads_.clear();
  race_check::Acquire(&end_);
}

void Block::Join() {
  {
    const race_check::As maker(maker_);
    JoinThreads();
    race_check::Release(&end_);
  }
  race_check::Acquire(&end_);
}

void Block::RunToEnd() {
  const race_check::As maker(maker_);
  const absl::Cleanup join = [this] { JoinThreads(); };
  has_previous_ = false;
  for (Thread& thread : threads_) {
    if (thread.waiting == Waiting::kForPrevious) thread.waiting = Waiting::kNo;
  }
  RunUntilAllWait();
  if (live_ > 0) ExplainStandstill();
  if (launch_->begins_early) CheckAwaited();
  CheckGuard();
}

void Block::CheckGuard() const {
  const size_t end = launch_->shared_bytes;
  for (size_t i = end; i < shared_.size(); ++i) {
    if (shared_[i] != kPoison) {
      throw KernelError("shared memory was written " + std::to_string(i - end) +
                        " bytes past its end");
    }
  }
}

/// Only a barrier that every thread of the block stands at, in the same line, opens.
bool Block::ReleaseBarrier() {
  for (const Thread& thread : threads_) {
    if (thread.waiting != Waiting::kAtBarrier) return false;
    if (!SamePlace(thread.where, threads_[0].where)) return false;
  }
  for (Thread& thread : threads_) thread.waiting = Waiting::kNo;
  barrier_.Open();
  return true;
}

void Block::ExplainStandstill() const {
  std::string text = "no thread of block " + IndexText(threads_[0].state.block) + " can go on:";
  size_t told = 0, returned = 0;
  std::source_location last;
  for (const Thread& thread : threads_) {
    if (thread.waiting == Waiting::kReturned) ++returned;
    if (thread.waiting == Waiting::kReturned || told >= 4) continue;
    if (told > 0 && SamePlace(last, thread.where)) continue;
    text += "\n  thread " + IndexText(thread.state.thread) + " waits at " + At(thread.where);
    text += thread.waiting == Waiting::kAtBarrier
                ? " for the block"
                : " for the lanes of mask " + std::to_string(thread.mask);
    last = thread.where;
    ++told;
  }
  throw KernelError(text + "\n  " + std::to_string(returned) + " of " +
                    std::to_string(threads_.size()) + " threads have returned");
}

void Block::CheckAwaited() const {
  for (const Thread& thread : threads_) {
    if (thread.has_awaited) continue;
    throw KernelError(absl::StrCat("thread ", IndexText(thread.state.thread), " of block ",
                                   IndexText(thread.state.block),
                                   " began early and has not awaited the kernel before"));
  }
}

uint32_t Block::LanesOfWarp() const {
  const size_t first = now_ / kWarpSize * kWarpSize;
  const size_t lanes = std::min<size_t>(kWarpSize, threads_.size() - first);
  return lanes == kWarpSize ? 0xffffffffu : (1u << lanes) - 1;
}

bool Block::AllArrived(uint32_t mask, std::source_location where) const {
  const size_t first = now_ / kWarpSize * kWarpSize;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) == 0 || first + lane == now_) continue;
    const Thread& thread = threads_[first + lane];
    if (thread.waiting != Waiting::kForWarp || thread.mask != mask) return false;
    if (!SamePlace(thread.where, where)) return false;
  }
  return true;
}

void Block::Exchange(uint32_t mask, const LaneValue& own, std::source_location where,
                     const std::function<void(const LaneValue*)>& read, bool orders_memory) {
  // A warp that is not full has no lanes for the rest of the mask.
  mask &= LanesOfWarp();
  if ((mask >> lane() & 1) == 0) Fail("a lane is not in the mask it waits with", where);
  const size_t first = now_ / kWarpSize * kWarpSize;
  Warp& warp = warps_[now_ / kWarpSize];
  // Values of the operation before this one that are still to be read.
  while ((warp.unread & mask) != 0) fibers_[now_]->Leave();
  warp.arrived[lane()] = own;
  void* const turn = orders_memory ? warp.barriers[mask].Arrive() : nullptr;
  if (AllArrived(mask, where)) {
    warp.unread |= mask;
    if (orders_memory) warp.barriers[mask].Open();
    for (unsigned other = 0; other < kWarpSize; ++other) {
      if ((mask >> other & 1) != 0) threads_[first + other].waiting = Waiting::kNo;
    }
  } else {
    threads_[now_].waiting = Waiting::kForWarp;
    threads_[now_].mask = mask;
    threads_[now_].where = where;
    fibers_[now_]->Leave();
  }
  read(warp.arrived);
  warp.unread &= ~(1u << lane());
  if (orders_memory) race_check::Barrier::Leave(turn);
}

void SetOrder(ThreadOrder order) { chosen_order = order; }
bool CopiesAtOnce() { return running->copies_at_once(); }

void CheckLaunch(const KernelLaunch& launch) {
  // What a block may have on the smallest of the cards that we build for (8.6, 8.9, 12.0).
  constexpr size_t kMaxSharedBytes = 99 << 10;
  const auto& [grid, block] = std::tie(launch.grid, launch.block);
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535) {
    throw KernelError(absl::StrCat("a launch of ", grid.x, " x ", grid.y, " x ", grid.z,
                                   " blocks of ", threads, " threads"));
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    throw KernelError(
        absl::StrCat("a launch with ", launch.shared_bytes, " bytes of shared memory"));
  }
}

Grid::Grid(const KernelLaunch& launch) : launch_(launch), order_(chosen_order) {
  // Not one after the other: a kernel that is every third launch is to see all of them.
  std::mt19937 random(launches++);
  if (order_ == ThreadOrder::kAnother) order_ = static_cast<ThreadOrder>(random() % 3);
  copies_at_once_ = random() % 2 == 0;
  turns_ = Turns(size_t{launch.grid.x} * launch.grid.y * launch.grid.z, order_);
}

Grid::~Grid() {
  for (auto& place : places_) {
    place->Join();
    IdleBlocks().push_back(std::move(place));
  }
}

Block& Grid::BeginNextBlock() {
  // Each round begins one place further, so that no two blocks of a few meet in every launch.
  constexpr size_t kPlaces = race_check::kUnorderedBlocks;
  const size_t place = (begun_ + begun_ / kPlaces) % kPlaces;
  if (place == places_.size()) places_.push_back(TakePlace());
  const Index3 block = IndexAt(turns_[begun_++], launch_.grid);
  places_[place]->Begin(launch_, block, order_, copies_at_once_, &start_);
  return *places_[place];
}

void Grid::BeginEarly() {
  race_check::Release(&start_);
  BeginNextBlock().RunToAwait();
}

void Grid::Finish() {
  race_check::Release(&start_);
  if (begun_ > 0) places_.front()->RunToEnd();
  while (begun_ < turns_.size()) BeginNextBlock().RunToEnd();
}

const ThreadState& CurrentThread() { return running->current(); }
std::byte* DynamicSharedMemory() { return running->shared(); }
std::byte* SharedVariableMemory(const void* declaration, size_t bytes) {
  return running->variable(declaration, bytes);
}
void AwaitPrevious() { running->Await(); }
void BlockBarrier(std::source_location where) { running->Barrier(where); }
void WarpExchange(uint32_t mask, const LaneValue& own, std::source_location where,
                  const std::function<void(const LaneValue* of_lanes)>& read) {
  running->Exchange(mask, own, where, read, /*orders_memory=*/false);
}
void WarpBarrier(uint32_t mask, std::source_location where) {
  running->Exchange(
      mask, {}, where, [](const LaneValue*) {}, /*orders_memory=*/true);
}
unsigned CurrentLane() { return running->lane(); }
void Fail(const std::string& what, std::source_location where) {
  throw KernelError(what + ", at " + At(where));
}

}  // namespace ziggurat::cuda_emulator
