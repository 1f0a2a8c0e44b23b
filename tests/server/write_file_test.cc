// Reports that are written as a whole, whatever is there already.
#include "server/cli/write_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>

#include "tests/support/files.h"

namespace ziggurat {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WriteFileTest : public ::testing::Test {
 protected:
  /// So that none is left behind.
  int Files() const {
    return static_cast<int>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }

  const TemporaryFolder folder_;
};

TEST_F(WriteFileTest, ReplacesAFileAndLeavesNothingBeside) {
  const fs::path path = folder_ / "report.json";
  for (const std::string text : {"first", "second and longer", ""}) {
    EXPECT_TRUE(CheckReplaceable(path).ok());
    ASSERT_TRUE(ReplaceFile(path, text).ok());
    EXPECT_EQ(ReadFile(path), text);
    EXPECT_EQ(Files(), 1);
  }
}

TEST_F(WriteFileTest, CheckingChangesNothing) {
  const fs::path there = folder_ / "there";
  ASSERT_TRUE(ReplaceFile(there, "old").ok());
  EXPECT_TRUE(CheckReplaceable(there).ok());
  EXPECT_TRUE(CheckReplaceable(folder_ / "absent").ok());
  EXPECT_EQ(ReadFile(there), "old");
  EXPECT_EQ(Files(), 1);
}

TEST_F(WriteFileTest, WritesIntoLinksAlsoThoseThatLeadNowhereYet) {
  fs::create_symlink("target", folder_ / "link");
  EXPECT_TRUE(CheckReplaceable(folder_ / "link").ok());
  ASSERT_TRUE(ReplaceFile(folder_ / "link", "text").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(ReadFile(folder_ / "target"), "text");
  EXPECT_EQ(Files(), 2);
}

TEST_F(WriteFileTest, WritesIntoDevices) {
  EXPECT_TRUE(CheckReplaceable("/dev/null").ok());
  EXPECT_TRUE(ReplaceFile("/dev/null", "text").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(ReplaceFile("/dev/full", "text").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(WriteFileTest, WritesIntoAFileThatCannotBeReplaced) {
  // Longer names than this one there are none, so no file can be made beside it.
  const fs::path path = folder_ / std::string(250, 'n');
  WriteFile(path, "old");
  EXPECT_TRUE(CheckReplaceable(path).ok());
  ASSERT_TRUE(ReplaceFile(path, "new").ok());
  EXPECT_EQ(ReadFile(path), "new");
  EXPECT_EQ(Files(), 1);
}

TEST_F(WriteFileTest, AFullDiskLeavesWhatWasThere) {
  const fs::path path = folder_ / "report.json";
  WriteFile(path, "old");
  // A limit of the size of files stands for the disk.
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {1024, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = ReplaceFile(path, std::string(1 << 20, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path.string()));
  EXPECT_EQ(ReadFile(path), "old");
  EXPECT_EQ(Files(), 1);
}

TEST_F(WriteFileTest, SaysBeforehandWhatCannotBeWritten) {
  EXPECT_EQ(CheckReplaceable(folder_.path()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(CheckReplaceable(folder_.path()).message()), HasSubstr("is a folder"));
  WriteFile(folder_ / "file", "");
  for (const fs::path& path : {folder_ / "no" / "file", folder_ / "file" / "below"}) {
    const absl::Status status = CheckReplaceable(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path.string()));
    EXPECT_EQ(ReplaceFile(path, "text").code(), absl::StatusCode::kFailedPrecondition) << path;
  }
}

}  // namespace
}  // namespace ziggurat
