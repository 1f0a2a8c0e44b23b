// The emulator itself: what kernels may do works, and what they may not fails with the place.

#include <string>
#include <vector>

#include "attention/cuda/tensor_core.cuh"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/test_kernels.h"

namespace ziggurat::cuda {
namespace {

using cuda_emulator::KernelError;
using cuda_emulator::SetOrder;
using cuda_emulator::ThreadOrder;
using testing::ElementsAre;
using testing::HasSubstr;

// Where ThreadSanitizer would end the process for what a test does on purpose.
#if defined(ZIGGURAT_RACE_CHECK)
#define ZIGGURAT_SKIP_RACES() GTEST_SKIP() << "ThreadSanitizer reports what this test shows"
#else
#define ZIGGURAT_SKIP_RACES()
#endif

std::string ErrorOf(void (*kernel)(), dim3 block, size_t shared_bytes = 0) {
  try {
    Launch(kernel, dim3{1}, block, shared_bytes, nullptr);
  } catch (const KernelError& error) {
    return error.what();
  }
  return "";
}

TEST(Fiber, KeepsItsStackBetweenStretches) {
  ZIGGURAT_SKIP_RACES();
  cuda_emulator::Fiber fiber;
  std::vector<int> seen;
  const std::function<void()> body = [&] {
    for (int i = 0; i < 3; ++i) {
      seen.push_back(i);
      fiber.Leave();
    }
  };
  fiber.Begin(&body);
  fiber.Resume();
  seen.push_back(10);
  fiber.Resume();
  seen.push_back(11);
  while (!fiber.is_done()) fiber.Resume();
  EXPECT_THAT(seen, ElementsAre(0, 10, 1, 11, 2));
}

__global__ void WriteIndices(int* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(1 + block);
}

TEST(Emulator, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> out(2 * 3 * 2 * 5 * 4 * 3);
  Launch(WriteIndices, dim3{2, 3, 2}, dim3{5, 4, 3}, 0, nullptr, out.data());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], 1 + static_cast<int>(i) / 60);
}

TEST(Emulator, BarriersOrderSharedMemoryInEveryThreadOrder) {
  for (auto order : {ThreadOrder::kAscending, ThreadOrder::kDescending, ThreadOrder::kShuffled}) {
    SetOrder(order);
    int sum = 0;
    Launch(TreeSum, dim3{1}, dim3{128}, 128 * sizeof(int), nullptr, true, &sum);
    EXPECT_EQ(sum, 127 * 128 / 2);
  }
  SetOrder(ThreadOrder::kAnother);
}

/// A block that finds nothing of another's in shared memory.
__global__ void ReadUnwritten(int* out) {
  ZIGGURAT_SHARED_MEMORY(memory);
  ZIGGURAT_SHARED(int, number);
  ZIGGURAT_SHARED(int[2][3], numbers);
  auto* dynamic = reinterpret_cast<int*>(memory);
  int* own = out + 3 * blockIdx.x;
  own[0] = number, own[1] = numbers[1][2], own[2] = *dynamic;
  number = numbers[1][2] = *dynamic = 7;
}

TEST(Emulator, FillsSharedMemoryBeforeEachBlock) {
  std::vector<int> out(3 * 5);
  Launch(ReadUnwritten, dim3{5}, dim3{1}, sizeof(int), nullptr, out.data());
  EXPECT_THAT(out, testing::Each(-1));
}

TEST(Emulator, ShowsAMissingBarrierInSomeThreadOrder) {
  ZIGGURAT_SKIP_RACES();
  int wrong = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    int sum = 0;
    Launch(TreeSum, dim3{1}, dim3{128}, 128 * sizeof(int), nullptr, false, &sum);
    wrong += sum != 127 * 128 / 2;
  }
  EXPECT_GT(wrong, 0);
}

__global__ void AddToTheBlockBefore(int* out) {
  if (blockIdx.x > 0) out[blockIdx.x] += out[blockIdx.x - 1];
}

TEST(Emulator, ShowsThatABlockNeedsTheOneBefore) {
  ZIGGURAT_SKIP_RACES();
  int wrong = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    std::vector<int> out(4, 1);
    Launch(AddToTheBlockBefore, dim3{4}, dim3{1}, 0, nullptr, out.data());
    wrong += out[3] != 4;
  }
  EXPECT_GT(wrong, 0);
}

/// Launches that went wrong.
int WrongTurns(LeftOut left_out) {
  constexpr unsigned kThreads = 64;
  std::vector<uint4> from(2 * kThreads), to(2 * kThreads);
  for (unsigned i = 0; i < from.size(); ++i) from[i] = make_uint4(i, i, i, i + 1);
  int wrong = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    Launch(TurnPieces, dim3{1}, dim3{kThreads}, kThreads * sizeof(uint4), nullptr, left_out,
           from.data(), to.data());
    bool is_right = true;
    for (unsigned i = 0; i < to.size(); ++i) {
      const unsigned source = i / kThreads * kThreads + (i + 1) % kThreads;
      const bool is_live = i < kThreads || source % 2 == 0;
      is_right &= to[i].x == (is_live ? source : 0) && to[i].w == (is_live ? source + 1 : 0);
    }
    wrong += is_right ? 0 : 1;
  }
  return wrong;
}

TEST(Emulator, ShowsWhatAnAsynchronousCopyLacks) {
  EXPECT_EQ(WrongTurns(LeftOut::kNothing), 0);
  ZIGGURAT_SKIP_RACES();
  EXPECT_GT(WrongTurns(LeftOut::kWait), 0);
  EXPECT_GT(WrongTurns(LeftOut::kBarrierBeforeReading), 0);
  EXPECT_GT(WrongTurns(LeftOut::kBarrierAfterReading), 0);
}

/// Number j of row i of matrix m is 64 m + 8 i + j.
__global__ void LoadFourMatrices(bool transposed, uint32_t* out) {
  ZIGGURAT_SHARED(uint16_t[32 * 8], rows);
  const unsigned lane = threadIdx.x;
  for (unsigned j = 0; j < 8; ++j) rows[8 * lane + j] = static_cast<uint16_t>(8 * lane + j);
  __syncwarp();
  uint32_t matrices[4];
  if (transposed) {
    LoadMatricesTransposed(rows + 8 * lane, matrices);
  } else {
    LoadMatrices(rows + 8 * lane, matrices);
  }
  for (unsigned m = 0; m < 4; ++m) out[4 * lane + m] = matrices[m];
}

TEST(Emulator, LoadsMatricesAsTensorCoresTakeThem) {
  for (const bool transposed : {false, true}) {
    std::vector<uint32_t> out(4 * 32);
    Launch(LoadFourMatrices, dim3{1}, dim3{32}, 0, nullptr, transposed, out.data());
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned r = lane / 4, c = lane % 4 * 2;
      for (unsigned m = 0; m < 4; ++m) {
        const unsigned low = 64 * m + (transposed ? 8 * c + r : 8 * r + c);
        const unsigned high = low + (transposed ? 8 : 1);
        EXPECT_EQ(out[4 * lane + m], low | high << 16) << "lane " << lane << ", matrix " << m;
      }
    }
  }
}

__global__ void BarrierForSome() {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void BarriersInTwoLines() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void ShuffleForSome() {
  if (threadIdx.x != 3) __shfl_xor_sync(kAllLanes, 1.0f, 1);
}
__global__ void WarpAndBlock() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
__global__ void OutsideTheMask() { __shfl_sync(threadIdx.x < 16 ? 0xffffu : 0xffff0000u, 1, 20); }
__global__ void PastTheEnd() {
  ZIGGURAT_SHARED_MEMORY(memory);
  memory[16] = 1;
}

__global__ void LoadAcross() {
  ZIGGURAT_SHARED_MEMORY(memory);
  __ldg(reinterpret_cast<const uint4*>(memory + 8));
}

TEST(Emulator, RefusesABarrierThatNotAllThreadsReach) {
  const std::string error = ErrorOf(BarrierForSome, dim3{64});
  EXPECT_THAT(error, HasSubstr("emulator_test.cc"));
  EXPECT_THAT(error, HasSubstr("24 of 64 threads have returned"));
}
TEST(Emulator, RefusesABarrierInTwoLines) {
  EXPECT_THAT(ErrorOf(BarriersInTwoLines, dim3{64}), HasSubstr("thread (32, 0, 0) waits at"));
}
TEST(Emulator, RefusesAWarpOperationThatALaneOfItsMaskMisses) {
  EXPECT_THAT(ErrorOf(ShuffleForSome, dim3{32}), HasSubstr("for the lanes of mask"));
  EXPECT_THAT(ErrorOf(WarpAndBlock, dim3{32}), HasSubstr("0 of 32 threads have returned"));
}
TEST(Emulator, RefusesAShuffleFromOutsideItsMask) {
  EXPECT_THAT(ErrorOf(OutsideTheMask, dim3{32}), HasSubstr("outside its mask"));
}
TEST(Emulator, RefusesWritesPastTheSharedMemory) {
  EXPECT_THAT(ErrorOf(PastTheEnd, dim3{1}, 16), HasSubstr("0 bytes past its end"));
}
TEST(Emulator, RefusesMisalignedLoads) {
  EXPECT_THAT(ErrorOf(LoadAcross, dim3{1}, 64), HasSubstr("a misaligned load"));
}

/// Waits in threads below `awaiting` only.
__global__ void AwaitInSome(unsigned awaiting) {
  if (threadIdx.x >= awaiting) return;
  AwaitPrevious();
}

TEST(Emulator, RefusesAThreadThatBeganEarlyAndHasNotAwaited) {
  const auto error = [](auto launch) -> std::string {
    try {
      launch();
    } catch (const KernelError& refused) {
      return refused.what();
    }
    return "";
  };
  const auto early = [](unsigned awaiting) {
    LaunchEarly(AwaitInSome, dim3{2}, dim3{64}, 0, nullptr, awaiting);
  };
  EXPECT_EQ(error([&] { early(64); }), "");
  EXPECT_THAT(error([&] { early(40); }), HasSubstr("thread (40, 0, 0) of block"));
  EXPECT_EQ(error([] { Launch(AwaitInSome, dim3{2}, dim3{64}, 0, nullptr, 40u); }), "");
}

TEST(Emulator, RefusesLaunchesThatAGpuRefuses) {
  EXPECT_THAT(ErrorOf(BarrierForSome, dim3{1025}), HasSubstr("1025 threads"));
  EXPECT_THAT(ErrorOf(BarrierForSome, dim3{1}, 100 << 10), HasSubstr("102400 bytes of shared"));
}

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* own = out + 6 * threadIdx.x;
  own[0] = __shfl_sync(kAllLanes, lane, 5);
  own[1] = __shfl_xor_sync(kAllLanes, lane, 3);
  own[2] = __shfl_up_sync(kAllLanes, lane, 2);
  own[3] = __shfl_down_sync(kAllLanes, lane, 2, 8);
  own[4] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  own[5] = 2 * __any_sync(kAllLanes, lane == 31) + __all_sync(kAllLanes, lane < 31);
}

TEST(Emulator, ShufflesAndVotesAsWarpsDo) {
  std::vector<int> out(6 * 64);
  Launch(Shuffles, dim3{1}, dim3{64}, 0, nullptr, out.data());
  uint32_t thirds = 0;
  for (int lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    EXPECT_THAT(std::vector<int>(out.begin() + 6 * t, out.begin() + 6 * t + 6),
                ElementsAre(5, lane ^ 3, lane < 2 ? lane : lane - 2, lane % 8 < 6 ? lane + 2 : lane,
                            static_cast<int>(thirds), 2));
  }
}

/// Halves of a warp at their own pace: each exchanges among itself, one of them more often.
__global__ void HalvesApart(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t mask = lane < 16 ? 0xffffu : 0xffff0000u;
  int value = lane;
  for (int i = 0; i < (lane < 16 ? 4 : 1); ++i) value += __shfl_xor_sync(mask, value, 1);
  value = __shfl_sync(kAllLanes, value, lane ^ 16);
  out[lane] = value;
}

TEST(Emulator, LetsPartsOfAWarpGoApart) {
  std::vector<int> out(32);
  Launch(HalvesApart, dim3{1}, dim3{32}, 0, nullptr, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const int other = lane ^ 16, pair = other + (other ^ 1);
    EXPECT_EQ(out[lane], other < 16 ? 8 * pair : pair) << lane;
  }
}

TEST(Emulator, CountsAtomically) {
  int count[2] = {1, 7};
  float sum = 0;
  Launch(Count, dim3{3}, dim3{64}, 0, nullptr, count, &sum);
  EXPECT_THAT(count, ElementsAre(1 + 2 * 192, 63));
  EXPECT_EQ(sum, 96);
}

TEST(Emulator, PermutesBytes) {
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x5410), 0x55441100u);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7632), 0x77663322u);
}

}  // namespace
}  // namespace ziggurat::cuda
