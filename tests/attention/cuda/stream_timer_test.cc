// The time that a device is at work on some of what it is asked for.

#include "attention/cuda/stream_timer.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {
namespace {

TEST(StreamTimer, CountsSpansOnceTheStreamIsThroughWithThem) {
  constexpr size_t kBytes = size_t{1} << 20;
  const OnDevice from(kBytes), to(kBytes);
  StreamTimer timer(&TestStream());
  EXPECT_EQ(timer.Seconds(), 0);
  double before = 0;
  for (int round = 0; round < 3; ++round) {
    for (int span = 0; span < 5; ++span) {
      const StreamTimer::Span timed(timer);
      TestStream().Copy(to.get<std::byte>(), from.get<std::byte>(), kBytes);
    }
    TestStream().Synchronize();
    const double after = timer.Seconds();
    EXPECT_GT(after, before);
    EXPECT_LT(after, before + 10);
    EXPECT_EQ(timer.Seconds(), after);
    {
      const StreamTimer::Span outer(timer);
      const StreamTimer::Span inner(timer);
      TestStream().Copy(to.get<std::byte>(), from.get<std::byte>(), kBytes);
    }
    TestStream().Synchronize();
    const double twice = timer.Seconds();
    EXPECT_GT(twice, after);
    before = twice;
    // Outside of a span nothing counts.
    TestStream().Copy(to.get<std::byte>(), from.get<std::byte>(), kBytes);
    TestStream().Synchronize();
    EXPECT_EQ(timer.Seconds(), twice);
  }
}

}  // namespace
}  // namespace ziggurat::cuda
