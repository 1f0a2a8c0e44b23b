// What ThreadSanitizer finds in kernels that the emulator runs (race_check.h).
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_emulator/test_kernels.h"

/// Whatever TSAN_OPTIONS say of other things.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace ziggurat::cuda {
namespace {

/// What one lane writes the others read; between both, what `ordered_by` says.
enum class OrderedBy : uint8_t { kNothing, kShuffle, kHalfOfTheWarp, kWarp };

__global__ void PassOn(OrderedBy ordered_by, int* out) {
  ZIGGURAT_SHARED(int, shared);
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) shared = 7;
  if (ordered_by == OrderedBy::kShuffle) __shfl_sync(0xffffffffu, lane, 0);
  if (ordered_by == OrderedBy::kHalfOfTheWarp) __syncwarp(lane < 16 ? 0xffffu : 0xffff0000u);
  if (ordered_by == OrderedBy::kWarp) __syncwarp();
  out[threadIdx.x] = shared;
}

/// A warp that reads what is there before the next one writes it, if it happens to be faster.
__global__ void ReadBeforeWritten(bool barrier, int* out) {
  ZIGGURAT_SHARED_MEMORY(memory);
  auto* value = reinterpret_cast<int*>(memory);
  if (threadIdx.x == 0) *value = 1;
  __syncthreads();
  out[threadIdx.x] = *value;
  if (barrier) __syncthreads();
  if (threadIdx.x == blockDim.x - 1) *value = 2;
}

__global__ void CountWithoutAtomics(int* count) { *count += 1; }

/// What blocks of one launch do with memory that all of them see.
enum class Blocks : uint8_t {
  kWriteTheirOwn,
  kCount,              ///< by atomics
  kWriteTheSameWord,   ///< the same number too, which makes it no better
  kReadTheNeighbours,  ///< what the block before writes
  kReadTheCount,       ///< while others still add to it
};

__global__ void RunBlocks(Blocks what, int* out) {
  ZIGGURAT_SHARED_MEMORY(memory);
  ZIGGURAT_SHARED(int[64], doubled);
  auto* numbers = reinterpret_cast<int*>(memory);
  const unsigned own = threadIdx.x, other = blockDim.x - 1 - own;
  numbers[own] = static_cast<int>(own);
  doubled[own] = 2 * numbers[own];
  __syncthreads();
  const int sum = numbers[other] + doubled[other];
  int* const words = out + 1;
  if (what == Blocks::kWriteTheSameWord && own == 0) *out = 7;
  if (what == Blocks::kCount || what == Blocks::kReadTheCount) atomicAdd(out, sum);
  __syncthreads();
  const unsigned block = blockIdx.x;
  int& word = words[block * blockDim.x + own];
  word = sum + (what == Blocks::kReadTheCount ? *out : 0);
  if (what == Blocks::kReadTheNeighbours && block > 0) word += words[(block - 1) * blockDim.x];
}

/// Block 4 never passes its barriers; others may have run or not, as the order has it.
__global__ void FailInOneBlock(int* out) {
  ZIGGURAT_SHARED(int, shared);
  if (threadIdx.x == 0) shared = 7;
  if (blockIdx.x == 4 && threadIdx.x == 40) __syncthreads();
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared;
}

/// Ends the process with ThreadSanitizer's exit code if the launch has a race.
template <typename Kernel, typename... Arguments>
void ExitOnRace(Kernel kernel, unsigned threads, Arguments... arguments) {
  for (int launch = 0; launch < kLaunches; ++launch) {
    Launch(kernel, dim3{1}, dim3{threads}, threads * sizeof(uint4), nullptr, arguments...);
  }
}

constexpr int kThreadSanitizerFound = 66;
#define EXPECT_RACE(statement) \
  EXPECT_EXIT(statement, testing::ExitedWithCode(kThreadSanitizerFound), "data race")

TEST(EmulatorRaces, AreFoundWhereABarrierLacks) {
  int out[64];
  ExitOnRace(TreeSum, 128, true, out);
  EXPECT_RACE(ExitOnRace(TreeSum, 128, false, out));
  ExitOnRace(ReadBeforeWritten, 64, true, out);
  EXPECT_RACE(ExitOnRace(ReadBeforeWritten, 64, false, out));
}

TEST(EmulatorRaces, AreFoundWhereAWarpIsNotSynchronized) {
  int out[32];
  ExitOnRace(PassOn, 32, OrderedBy::kWarp, out);
  EXPECT_RACE(ExitOnRace(PassOn, 32, OrderedBy::kNothing, out));
  EXPECT_RACE(ExitOnRace(PassOn, 32, OrderedBy::kShuffle, out));
  EXPECT_RACE(ExitOnRace(PassOn, 32, OrderedBy::kHalfOfTheWarp, out));
}

TEST(EmulatorRaces, AreFoundBetweenWarpsOfALargeBlock) {
  // Each warp waits for its own lanes alone.
  std::vector<int> out(1024);
  EXPECT_RACE(ExitOnRace(PassOn, 1024, OrderedBy::kWarp, out.data()));
}

TEST(EmulatorRaces, AreFoundAroundAsynchronousCopies) {
  std::vector<uint4> from(128), to(128);
  for (const auto left_out : {LeftOut::kBarrierBeforeReading, LeftOut::kBarrierAfterReading}) {
    EXPECT_RACE(ExitOnRace(TurnPieces, 64, left_out, from.data(), to.data()));
  }
}

TEST(EmulatorRaces, AreFoundInGlobalMemory) {
  int count[2] = {};
  float sum = 0;
  ExitOnRace(Count, 64, count, &sum);
  EXPECT_RACE(ExitOnRace(CountWithoutAtomics, 64, count));
}

TEST(EmulatorRaces, AreFoundWhereAKernelBeganEarly) {
  CUstream_st stream;
  std::vector<int> from(64), to(64), out(64);
  const auto launch = [&](Awaits awaits, const int* source, int* target) {
    for (int i = 0; i < kLaunches; ++i) {
      Launch(Double, dim3{1}, dim3{64}, 0, &stream, from.data(), to.data());
      LaunchEarly(NothingEarly, dim3{1}, dim3{64}, 0, &stream);
      LaunchEarly(AddOneEarly, dim3{1}, dim3{64}, 0, &stream, awaits, source, target);
    }
    stream.Synchronize();
  };
  launch(Awaits::kBeforeReading, to.data(), out.data());
  launch(Awaits::kBeforeReading, out.data(), from.data());
  EXPECT_RACE(launch(Awaits::kBeforeWriting, to.data(), out.data()));
  EXPECT_RACE(launch(Awaits::kAfterwards, out.data(), from.data()));
}

constexpr unsigned kThreads = 64;
void LaunchBlocks(unsigned blocks, Blocks what, cudaStream_t stream, int* out) {
  Launch(RunBlocks, dim3{blocks}, dim3{kThreads}, kThreads * sizeof(int), stream, what, out);
}

// Blocks that the emulator runs in one place are ordered for the sanitizer, so that not every pair
// of many is looked at; of two or three each is.
TEST(EmulatorRaces, AreFoundBetweenBlocks) {
  std::vector<int> out(1 + 20 * kThreads);
  for (const auto what :
       {Blocks::kWriteTheSameWord, Blocks::kReadTheNeighbours, Blocks::kReadTheCount}) {
    for (const unsigned blocks : {2, 3, 20}) {
      EXPECT_RACE(LaunchBlocks(blocks, what, nullptr, out.data()));
    }
  }
}

TEST(EmulatorRaces, AreNotFoundBetweenBlocksThatShareNothing) {
  std::vector<int> out(1 + 20 * kThreads);
  for (int launch = 0; launch < kLaunches; ++launch) {
    for (const auto what : {Blocks::kWriteTheirOwn, Blocks::kCount}) {
      for (const unsigned blocks : {2, 20}) LaunchBlocks(blocks, what, nullptr, out.data());
    }
  }
}

TEST(EmulatorRaces, AreNotFoundBetweenLaunches) {
  CUstream_st stream;
  std::vector<int> from(kThreads), to(kThreads), out(1 + 7 * kThreads);
  for (int i = 0; i < kLaunches; ++i) {
    LaunchBlocks(7, Blocks::kCount, &stream, out.data());
    LaunchBlocks(1, Blocks::kReadTheCount, &stream, out.data());
    LaunchBlocks(5, Blocks::kWriteTheirOwn, &stream, out.data());
    // One block writes what five have written, and one reads it.
    Launch(Double, dim3{1}, dim3{5 * kThreads}, 0, &stream, out.data() + 1, out.data() + 1);
    LaunchEarly(AddOneEarly, dim3{1}, dim3{kThreads}, 0, &stream, Awaits::kBeforeReading,
                out.data() + 1 + 4 * kThreads, from.data());
    LaunchEarly(AddOneEarly, dim3{1}, dim3{kThreads}, 0, &stream, Awaits::kBeforeReading,
                from.data(), to.data());
  }
  stream.Synchronize();
  out.assign(out.size(), 0);  // nor between what blocks did and what the host does then
}

TEST(EmulatorRaces, AreNotFoundBehindALaunchThatFailed) {
  std::vector<int> out(1 + 7 * kThreads);
  for (int launch = 0; launch < kLaunches; ++launch) {
    EXPECT_THROW(Launch(FailInOneBlock, dim3{7}, dim3{kThreads}, kThreads * sizeof(int), nullptr,
                        out.data()),
                 cuda_emulator::KernelError);
    LaunchBlocks(7, Blocks::kCount, nullptr, out.data());
  }
}

TEST(EmulatorRaces, AreFoundBetweenBlocksOfAKernelThatBeganEarly) {
  CUstream_st stream;
  std::vector<int> from(kThreads), to(kThreads);
  const auto launch = [&](unsigned blocks) {
    for (int i = 0; i < kLaunches; ++i) {
      Launch(Double, dim3{1}, dim3{kThreads}, 0, &stream, from.data(), from.data());
      LaunchEarly(AddOneEarly, dim3{blocks}, dim3{kThreads}, 0, &stream, Awaits::kBeforeReading,
                  from.data(), to.data());
    }
    stream.Synchronize();
  };
  launch(1);
  EXPECT_RACE(launch(2));
}

}  // namespace
}  // namespace ziggurat::cuda
