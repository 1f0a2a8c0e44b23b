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
  __shared__ int shared;
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

}  // namespace
}  // namespace ziggurat::cuda
