#include "server/machine_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ziggurat {
namespace {

/// A root of its own for each test, in which it writes what the system would say.
class MachineMemory : public ::testing::Test {
 protected:
  MachineMemory()
      : root_(std::filesystem::path(::testing::TempDir()) /
              (::testing::UnitTest::GetInstance()->current_test_info()->name() +
               std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
  }
  ~MachineMemory() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  size_t Bytes() const { return MachineMemoryBytes(root_); }

 private:
  const std::filesystem::path root_;
};

TEST_F(MachineMemory, IsTheMachinesWhereNoControlGroupLimitsIt) {
  const size_t all = Bytes();
  EXPECT_GT(all, size_t{64} << 20);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(Bytes(), all);
  EXPECT_LE(MachineMemoryBytes(), all);
}

TEST_F(MachineMemory, IsTheLeastLimitOfTheGroupAndThoseAbove) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "5000\n");
  EXPECT_EQ(Bytes(), 5000u);
  Write("sys/fs/cgroup/a/memory.max", "4000\n");
  EXPECT_EQ(Bytes(), 4000u);
  Write("sys/fs/cgroup/memory.max", "3000\n");
  EXPECT_EQ(Bytes(), 3000u) << "as a container sees its own";
}

TEST_F(MachineMemory, KnowsTheFirstVersionOfControlGroups) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/y\n");
  Write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "7000\n");
  EXPECT_EQ(Bytes(), 7000u);
  Write("proc/self/cgroup", "4:hugetlb,memory:/z\n");
  Write("sys/fs/cgroup/hugetlb,memory/z/memory.limit_in_bytes", "6000\n");
  EXPECT_EQ(Bytes(), 6000u);
}

}  // namespace
}  // namespace ziggurat
