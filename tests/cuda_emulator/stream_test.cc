// The emulator's streams: what is asked of them happens in order, some time between the call and
// the wait for it.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "attention/cuda/device.h"
#include "attention/cuda/platform.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulator/test_kernels.h"

namespace ziggurat::cuda {
namespace {

using cuda_emulator::KernelError;
using cuda_emulator::Pace;
using cuda_emulator::SetPace;
using testing::ElementsAre;

/// Of one thing tried: how often it went wrong.
constexpr int kTries = 64;
template <typename Try>
int WrongOf(Try goes_right) {
  int wrong = 0;
  for (int i = 0; i < kTries; ++i) wrong += goes_right() ? 0 : 1;
  return wrong;
}

TEST(EmulatorStreams, DoesAllInOrder) {
  const auto stream = Stream::Create();
  EXPECT_EQ(WrongOf([&] {
              int from[4] = {1, 2, 3, 4}, first[4] = {}, second[4] = {}, out[4] = {};
              stream->Copy(first, from, sizeof(from));
              Launch(Double, dim3{1}, dim3{4}, 0, stream->get(), first, second);
              LaunchEarly(AddOneEarly, dim3{1}, dim3{4}, 0, stream->get(), Awaits::kBeforeReading,
                          second, first);
              stream->CopyRows(out, sizeof(int), first, sizeof(int), sizeof(int), 3);
              stream->Zero(first, sizeof(first));
              stream->Synchronize();
              return std::accumulate(out, out + 4, 0) == 3 + 5 + 7 && out[0] == 3 && first[1] == 0;
            }),
            0);
}

TEST(EmulatorStreams, ShowsAHostThatDoesNotWait) {
  const auto stream = Stream::Create();
  const auto event = Event::Create();
  enum class Waits { kNot, kForAnEvent, kForAnEarlierEvent };
  const auto reads = [&](Waits waits) {
    const int from = 7;
    int to = 0;
    if (waits == Waits::kForAnEarlierEvent) event->Record(*stream);
    stream->Copy(&to, &from, sizeof(to));
    if (waits == Waits::kForAnEvent) event->Record(*stream);
    if (waits != Waits::kNot) event->Wait();
    const bool is_right = to == 7;
    stream->Synchronize();
    return is_right;
  };
  EXPECT_EQ(WrongOf([&] { return reads(Waits::kForAnEvent); }), 0);
  EXPECT_GT(WrongOf([&] { return reads(Waits::kNot); }), 0);
  EXPECT_GT(WrongOf([&] { return reads(Waits::kForAnEarlierEvent); }), 0);
}

TEST(EmulatorStreams, ShowsAHostThatChangesWhatIsBeingCopied) {
  const auto stream = Stream::Create();
  const auto copies = [&](int wanted) {
    int from = 7, to = 0;
    stream->Copy(&to, &from, sizeof(to));
    from = 8;
    stream->Synchronize();
    return to == wanted;
  };
  EXPECT_GT(WrongOf([&] { return copies(7); }), 0);  // it changed too early
  EXPECT_GT(WrongOf([&] { return copies(8); }), 0);  // or too late
}

TEST(EmulatorStreams, EndsWhatUsesMemoryBeforeItIsFreed) {
  const auto stream = Stream::Create();
  int to = 0;
  {
    auto memory = DeviceMemory::Allocate(MemoryKind::kPinned, sizeof(int), "test");
    ASSERT_TRUE(memory.ok());
    *memory->as<int>() = 7;
    SetPace(Pace::kWhenAwaited);
    stream->Copy(&to, memory->data(), sizeof(to));
    SetPace(Pace::kAnother);
    EXPECT_EQ(to, 0);
  }
  EXPECT_EQ(to, 7);
}

TEST(EmulatorStreams, RepeatsAGraphWithWhatStandsThereThen) {
  const auto stream = Stream::Create();
  const auto event = Event::Create();
  int value = 1, out = 0;
  stream->Copy(&out, &value, sizeof(value));  // not of the graph
  auto graph = Graph::Record(*stream, [&] {
    Launch(Double, dim3{1}, dim3{1}, 0, stream->get(), &value, &value);
    event->Record(*stream);
    stream->Copy(&out, &value, sizeof(value));
  });
  ASSERT_TRUE(graph.ok());
  stream->Synchronize();
  EXPECT_THAT((std::vector{value, out}), ElementsAre(1, 1));
  EXPECT_GT(WrongOf([&] {
              stream->Synchronize();
              const int before = value = 3;
              (*graph)->Launch(*stream);
              event->Wait();
              EXPECT_EQ(value, 2 * before);
              return out == 2 * before;  // behind the event
            }),
            0);
  stream->Synchronize();
  EXPECT_EQ(out, 6);
}

TEST(EmulatorStreams, TellsWhatAKernelDidWhenItIsAwaited) {
  const auto stream = Stream::Create();
  SetPace(Pace::kWhenAwaited);
  int value = 0;
  LaunchEarly(Double, dim3{1}, dim3{1}, 0, stream->get(), &value, &value);
  SetPace(Pace::kAnother);
  EXPECT_THROW(stream->Synchronize(), KernelError);
  stream->Synchronize();  // it was dropped
  EXPECT_THROW(Launch(Double, dim3{1}, dim3{2000}, 0, stream->get(), &value, &value), KernelError);
}

// ---- Kernels that begin early -------------------------------------------------------------------

#if !defined(ZIGGURAT_RACE_CHECK)  // race_test.cc has them there

/// Wrong ones of launches behind a kernel that doubles, `between` them another.
int WrongEarly(Awaits awaits, bool between) {
  const auto stream = Stream::Create();
  return WrongOf([&] {
    int from[64], doubled[64], out[64], other[64] = {};
    std::iota(from, from + 64, 1);
    std::fill(doubled, doubled + 64, -1);
    // For some it is what the kernel in front reads that must not change too early.
    int* const to = awaits == Awaits::kAfterwards ? from : out;
    const int* const source = awaits == Awaits::kAfterwards ? other : doubled;
    Launch(Double, dim3{1}, dim3{64}, 0, stream->get(), from, doubled);
    if (between) {
      LaunchEarly(NothingEarly, dim3{1}, dim3{64}, 0, stream->get());
    }
    LaunchEarly(AddOneEarly, dim3{1}, dim3{64}, 0, stream->get(), awaits, source, to);
    stream->Synchronize();
    for (int i = 0; i < 64; ++i) {
      if (doubled[i] != 2 * (i + 1)) return false;
      if (to == out && out[i] != 2 * (i + 1) + 1) return false;
    }
    return true;
  });
}

TEST(EmulatorStreams, ShowsAKernelThatBeganEarlyAndTouchesMemoryBeforeItAwaits) {
  for (const bool between : {false, true}) {
    EXPECT_EQ(WrongEarly(Awaits::kBeforeReading, between), 0);
    EXPECT_GT(WrongEarly(Awaits::kBeforeWriting, between), 0);
    EXPECT_GT(WrongEarly(Awaits::kAfterwards, between), 0);
  }
}

#endif

}  // namespace
}  // namespace ziggurat::cuda
