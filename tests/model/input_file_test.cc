#include "model/input_file.h"

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_config.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMostBytes = 10;

void ExpectRefused(const absl::Status& status, const std::filesystem::path& path,
                   const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path.string() + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(ReadInputFile, GivesAllBytesOfAFileAndOfALinkToOne) {
  const TemporaryFolder dir;
  WriteFile(dir / "file", std::string("a\0b", 3));
  WriteFile(dir / "empty", "");
  std::filesystem::create_symlink("file", dir / "link");
  EXPECT_EQ(*ReadInputFile(dir / "file", 3), std::string("a\0b", 3));
  EXPECT_EQ(*ReadInputFile(dir / "link", 3), std::string("a\0b", 3));
  EXPECT_EQ(*ReadInputFile(dir / "empty", 0), "");
  ExpectRefused(ReadInputFile(dir / "file", 2).status(), dir / "file", "larger than the 2 bytes");
}

TEST(ReadInputFile, WhatIsNoFileIsRefusedWithoutWaiting) {
  const TemporaryFolder dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("/dev/zero", dir / "device");
  for (const char* name : {"pipe", "folder", "device"}) {
    ExpectRefused(ReadInputFile(dir / name, kMostBytes).status(), dir / name, "not a regular file");
  }
}

TEST(ReadInputFile, APointerOfGitLfsIsNotTheFile) {
  const TemporaryFolder dir;
  WriteFile(dir / "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n");
  ExpectRefused(ReadInputFile(dir / "pointer", kMostBytes).status(), dir / "pointer",
                "git lfs pull");
}

TEST(ReadInputFile, ALinkThatLeadsNowhereIsNoAbsentFile) {
  const TemporaryFolder dir;
  std::filesystem::create_symlink("absent", dir / "nowhere");
  std::filesystem::create_symlink("circle", dir / "circle");
  ExpectRefused(ReadInputFile(dir / "nowhere", kMostBytes).status(), dir / "nowhere",
                "a symbolic link that leads nowhere");
  const absl::Status circle = ReadInputFile(dir / "circle", kMostBytes).status();
  EXPECT_EQ(circle.code(), absl::StatusCode::kFailedPrecondition) << circle;
  EXPECT_THAT(std::string(circle.message()), HasSubstr("symbolic links"));
  EXPECT_FALSE(IsThere(dir / "nowhere").ok());
  EXPECT_FALSE(*IsThere(dir / "absent"));
  WriteFile(dir / "file", "");
  EXPECT_FALSE(*IsThere(dir / "file/absent"));
  const absl::Status absent = ReadInputFile(dir / "absent", kMostBytes).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound) << absent;
}

TEST(ReadInputFile, LinksThatLeadNowhereAreNamedInAModelFolder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const TemporaryFolder dir;
    std::filesystem::create_symlink("absent", dir / name);
    ExpectRefused(Checkpoint::Open(dir.path()).status(), dir / name, "leads nowhere");
  }
  const TemporaryFolder dir;
  WriteFile(dir / "model.safetensors.index.json", R"({"weight_map": {"a": "shard.safetensors"}})");
  std::filesystem::create_symlink("absent", dir / "shard.safetensors");
  ExpectRefused(Checkpoint::Open(dir.path()).status(), dir / "shard.safetensors", "leads nowhere");
  std::filesystem::create_symlink("absent", dir / "config.json");
  ExpectRefused(LoadModelConfig(dir.path()).status(), dir / "config.json", "leads nowhere");
}

TEST(ReadGivenFile, TakesTheWholeOfAFileOfAnySizeThatIsAllowed) {
  const TemporaryFolder dir;
  for (const size_t bytes : {0, 1, 1 << 20, (1 << 20) + 1}) {
    const std::string content(bytes, 'x');
    WriteFile(dir / "file", content);
    const auto read = ReadGivenFile(dir / "file", bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == content) << bytes;
  }
  ExpectRefused(ReadGivenFile(dir / "file", 1 << 20).status(), dir / "file",
                "has more than 1048576 bytes");
  ExpectRefused(ReadGivenFile("/dev/zero", 9).status(), "/dev/zero", "has more than 9 bytes");
}

TEST(ReadGivenFile, NamesWhatCannotBeRead) {
  const TemporaryFolder dir;
  ExpectRefused(ReadGivenFile(dir.path(), 9).status(), dir.path(), "a folder");
  for (const auto& [path, why] : {std::pair(dir / "none", "No such file"),
                                  {std::filesystem::path("/proc/self/mem"), "cannot be read"}}) {
    const absl::Status status = ReadGivenFile(path, 9).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path.string() + ": " + why));
  }
}

}  // namespace
}  // namespace ziggurat
