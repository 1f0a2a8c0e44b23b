#include "server/machine_limits.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <string>
#include <thread>

#include "tests/support/files.h"

namespace ziggurat {
namespace {

/// A root of its own for each test, in which it writes what the system would say.
class MachineLimits : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    WriteFile(root_ / name, text);
  }
  size_t Bytes() const { return MachineMemoryBytes(root_.path()); }
  int Cpus() const { return MachineCpus(root_.path()); }

 private:
  const TemporaryFolder root_;
};

TEST_F(MachineLimits, MemoryIsTheMachinesWhereNoControlGroupLimitsIt) {
  const size_t all = Bytes();
  EXPECT_GT(all, size_t{64} << 20);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(Bytes(), all);
  EXPECT_LE(MachineMemoryBytes(), all);
}

TEST_F(MachineLimits, MemoryIsTheLeastOfTheGroupAndThoseAbove) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "5000\n");
  EXPECT_EQ(Bytes(), 5000u);
  Write("sys/fs/cgroup/a/memory.max", "4000\n");
  EXPECT_EQ(Bytes(), 4000u);
  Write("sys/fs/cgroup/memory.max", "3000\n");
  EXPECT_EQ(Bytes(), 3000u) << "as a container sees its own";
}

TEST_F(MachineLimits, MemoryByTheFirstVersionOfControlGroups) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/y\n");
  Write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "7000\n");
  EXPECT_EQ(Bytes(), 7000u);
  Write("proc/self/cgroup", "4:hugetlb,memory:/z\n");
  Write("sys/fs/cgroup/hugetlb,memory/z/memory.limit_in_bytes", "6000\n");
  EXPECT_EQ(Bytes(), 6000u);
}

TEST_F(MachineLimits, CpusAreThoseItMayRunOn) {
  const int all = Cpus();
  EXPECT_LE(all, static_cast<int>(std::thread::hardware_concurrency()));
  std::thread([&] {
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    ASSERT_EQ(sched_setaffinity(0, sizeof here, &here), 0);
    EXPECT_EQ(Cpus(), 1);
  }).join();
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/cpu.max", "9900000 100000\n");
  EXPECT_EQ(Cpus(), all) << "of which there are fewer than the quota";
  EXPECT_GE(MachineCpus(), 1);
}

TEST_F(MachineLimits, CpusAreWholeOnesOfTheLeastQuota) {
  if (Cpus() < 2) GTEST_SKIP() << "there is one CPU";
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/a/cpu.max", "190000 100000\n");
  EXPECT_EQ(Cpus(), 1);
  Write("sys/fs/cgroup/a/cpu.max", "100000 50000\n");
  EXPECT_EQ(Cpus(), 2);
  Write("sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(Cpus(), 1) << "there is no less";
}

TEST_F(MachineLimits, CpusByTheFirstVersionOfControlGroups) {
  const int all = Cpus();
  Write("proc/self/cgroup", "5:cpuset:/x\n3:cpu,cpuacct:/x\n");
  Write("sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "100\n");
  Write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cpus(), all);
  Write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "120000\n");
  EXPECT_EQ(Cpus(), 1);
}

}  // namespace
}  // namespace ziggurat
