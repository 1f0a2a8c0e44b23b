#include "server/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spdlog/logger.h"

namespace ziggurat {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

/// A log that goes into a pipe, which is read when a test says so.
class PipedLog {
 public:
  PipedLog() {
    EXPECT_EQ(pipe(ends_), 0);
    EXPECT_EQ(fcntl(ends_[0], F_SETFL, O_NONBLOCK), 0);
    log.sinks().push_back(MakeLogSink(ends_[1]));
  }
  ~PipedLog() {
    for (const int end : ends_) close(end);
  }

  /// The lines that wait in the pipe.
  std::vector<std::string> Read() {
    std::string text(1 << 20, '\0');
    const ssize_t bytes = read(ends_[0], text.data(), text.size());
    text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    EXPECT_EQ(lines.back(), "") << "the last line has no end";
    lines.pop_back();
    return lines;
  }

  spdlog::logger log{"log"};

 private:
  int ends_[2] = {-1, -1};
};

TEST(LogSink, WritesEveryLineAtOnce) {
  PipedLog piped;
  piped.log.info("first");
  EXPECT_THAT(piped.Read(), testing::ElementsAre(EndsWith("Z info first")));
  piped.log.warn("tensor \"a\nb\x1b[31m\"");
  EXPECT_THAT(piped.Read(), testing::ElementsAre(EndsWith("Z warning tensor \"a\\nb\\x1b[31m\"")));
}

TEST(LogSink, NobodyWaitsForAReaderAndWhatIsLostIsCounted) {
  PipedLog piped;
  constexpr int kLines = 4000;  // 400 KB, of which a pipe holds 64
  const std::string words(80, 'x');
  for (int i = 0; i < kLines; ++i) piped.log.info("{} {}", i, words);
  const std::vector<std::string> held = piped.Read();
  ASSERT_LT(held.size(), static_cast<size_t>(kLines));
  for (size_t i = 0; i < held.size(); ++i) {
    ASSERT_THAT(held[i], EndsWith(absl::StrCat(" info ", i, " ", words)));
  }
  piped.log.info("later");
  piped.log.info("later still");
  EXPECT_THAT(
      piped.Read(),
      testing::ElementsAre(EndsWith(absl::StrCat("warning lines left out here, for want of room: ",
                                                 kLines - held.size())),
                           EndsWith("info later"), EndsWith("info later still")));
}

TEST(LogSink, CutsALineThatAPipeMightTakeInTwoPieces) {
  PipedLog piped;
  piped.log.info(std::string(3 * PIPE_BUF, 'x'));
  piped.log.info("behind it");
  EXPECT_THAT(piped.Read(), testing::ElementsAre(SizeIs(PIPE_BUF - 1), EndsWith("info behind it")));
}

}  // namespace
}  // namespace ziggurat
