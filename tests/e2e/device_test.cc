// serve --device: what is said where there is no such device. No GPU is needed; where there is one,
// the tests that want none skip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/e2e/daemon.h"

namespace ziggurat::e2e {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

bool HasGpu() { return std::filesystem::exists("/dev/nvidia0"); }

/// Runs `binary serve` on the bundled model until it ends, or for a while.
CommandResult Serve(const std::filesystem::path& binary, const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {binary,     "serve",       "--model", NeedleLlama(),
                                   "--listen", "127.0.0.1:0", "--http",  "127.0.0.1:0"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  auto process = ChildProcess::Start(argv);
  EXPECT_TRUE(process.ok()) << process.status();
  CommandResult result;
  if (!process.ok()) return result;
  result.exit_code = (*process)->Wait(absl::Seconds(60)).value_or(-1);
  result.out = (*process)->stdout_text();
  result.err = (*process)->stderr_text();
  return result;
}

void ExpectRefusal(const std::filesystem::path& binary, const std::vector<std::string>& flags,
                   const testing::Matcher<const std::string&>& says) {
  const CommandResult result = Serve(binary, flags);
  EXPECT_GT(result.exit_code, 0) << result.err;
  EXPECT_LT(result.exit_code, 126) << result.err;
  EXPECT_EQ(result.out.find("ready"), std::string::npos);
  EXPECT_THAT(result.err, says);
}

/// The daemon with CUDA: the one of this build, or the one beside it.
std::filesystem::path CudaBinary() {
  return std::filesystem::path(ZIGGURAT_BINARY_DIR) / "bin/ziggurat-cuda";
}

TEST(Device, MustBeOneOfThoseThatThereAre) {
  for (const char* wrong : {"gpu", "cuda", "cuda:", "cuda:-1", "cuda:1x", "CPU"}) {
    ExpectRefusal(
        Binary(), {"--device", wrong},
        HasSubstr(absl::StrCat("'", wrong, "' is no device: must be auto, cpu or cuda:N")));
  }
  ExpectRefusal(Binary(), {"--device", ""}, HasSubstr("--device is empty"));
}

TEST(Device, ASharePoolIsForGpus) {
  ExpectRefusal(Binary(), {"--device", "cpu", "--kv-cache-memory", "90%"},
                HasSubstr("on the CPU name its bytes"));
  for (const char* wrong : {"0%", "101%", "-5%", "%", "9x%"}) {
    ExpectRefusal(Binary(), {"--device", "cpu", "--kv-cache-memory", wrong},
                  HasSubstr("is no share"));
  }
}

TEST(Device, CudaWhereTheBuildOrTheMachineHasNoneIsAClearError) {
  if (HasGpu()) GTEST_SKIP() << "skipped: here is a GPU";
  ExpectRefusal(Binary(), {"--device", "cuda:0"},
                AnyOf(HasSubstr("--device cuda:0: this build has no CUDA"),
                      HasSubstr("--device cuda:0: no CUDA device can be used here")));
}

TEST(Device, ADaemonWithCudaSaysWhyThereIsNone) {
  if (!std::filesystem::exists(CudaBinary())) GTEST_SKIP() << "skipped: this build has no nvcc";
  ExpectRefusal(CudaBinary(), {"--device", "cuda:99"},
                AnyOf(HasSubstr("there is no device cuda:99"),
                      HasSubstr("--device cuda:99: no CUDA device can be used here")));
}

TEST(Device, AutoComputesOnTheCpuWhereThereIsNoGpu) {
  if (HasGpu()) GTEST_SKIP() << "skipped: here is a GPU";
  auto daemon = Daemon::Start({.flags = {"--device", "auto"}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_THAT((*daemon)->GetModel().backend(), HasSubstr("cpu"));
  EXPECT_THAT((*daemon)->log(), HasSubstr("on the CPU"));
}

}  // namespace
}  // namespace ziggurat::e2e
