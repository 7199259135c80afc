// What the machine leaves to a process: memory and processors by made-up /proc and /sys trees of both versions of cgroups, nested, and as
// containers show them; and the budget that follows from it.

#include "frontend/machine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <map>
#include <thread>

#include "tests/test_files.h"

namespace ort_train {
namespace {

struct Machine : ::testing::Test {
  const TestFolder folder;
  const std::string root = folder.path.string();

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    write_file(root + path, text);
  }
  void meminfo(int64_t kilobytes) const {
    write("/proc/meminfo", "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   " + std::to_string(kilobytes) + " kB\n");
  }
};

TEST_F(Machine, MemoryIsThatOfTheMachineWhereNoGroupLimitsIt) {
  meminfo(2000);
  EXPECT_EQ(available_memory(root), 2'048'000);
  write("/proc/self/cgroup", "0::/user.slice/job\n");
  write("/sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  write("/sys/fs/cgroup/user.slice/job/memory.current", "500\n");
  EXPECT_EQ(available_memory(root), 2'048'000);
}

// What other processes hold could be had; what a group doesn't leave couldn't.
TEST_F(Machine, MemoryThatCouldBeHadIsAllOfTheMachinesWithinTheGroups) {
  meminfo(2000);
  EXPECT_EQ(obtainable_memory(root), int64_t{99'999'999} * 1024);
  write("/proc/self/cgroup", "0::/job\n");
  write("/sys/fs/cgroup/job/memory.max", "900000\n");
  write("/sys/fs/cgroup/job/memory.current", "300000\n");
  EXPECT_EQ(obtainable_memory(root), 600'000);
}

TEST_F(Machine, TheTightestGroupCountsInVersionTwo) {
  meminfo(2000);
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "900000\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "300000\n");
  write("/sys/fs/cgroup/outer/inner/memory.stat", "anon 1\nfile 100000\n");
  EXPECT_EQ(available_memory(root), 700'000) << "the page cache is given back";
  write("/sys/fs/cgroup/outer/memory.max", "1000000\n");
  write("/sys/fs/cgroup/outer/memory.current", "600000\n");
  EXPECT_EQ(available_memory(root), 400'000) << "that of the group above";
  write("/sys/fs/cgroup/outer/memory.max", "500000\n");
  EXPECT_EQ(available_memory(root), 0) << "less than is used";
}

TEST_F(Machine, VersionOneHasOneHierarchyForEachController) {
  meminfo(2000);
  write("/proc/self/cgroup", "9:name=systemd:/elsewhere\n4:hugetlb,memory:/a/b\n2:cpu,cpuacct:/c\n0::/\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "800000\n");
  write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "300000\n");
  write("/sys/fs/cgroup/memory/a/memory.stat", "cache 5\ntotal_cache 200000\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(available_memory(root), 700'000);
  write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(available_processors(root), 1);
}

// In a container the path is the host's and isn't there; the limits stand at the root.
TEST_F(Machine, AContainerSeesItsOwnGroupAsTheRoot) {
  meminfo(2000);
  write("/proc/self/cgroup", "0::/kubepods/pod7/container\n");
  write("/sys/fs/cgroup/memory.max", "100000\n");
  write("/sys/fs/cgroup/memory.current", "40000\n");
  write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(available_memory(root), 60'000);
  EXPECT_EQ(available_processors(root), 1);
}

TEST_F(Machine, WithoutProcTheKernelIsAsked) {
  EXPECT_GT(available_memory(root), 0);
  EXPECT_LT(available_memory(root), int64_t{1} << 50);
  EXPECT_GE(obtainable_memory(root), available_memory(root));
}

TEST_F(Machine, ThreadsAreWhatAffinityAndQuotaGive) {
  int here = 0;
  std::thread([&] {
    here = available_processors(root);  // no files at all
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(here, CPU_COUNT(&set));
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(available_processors(root), 1);
  }).join();
  EXPECT_EQ(available_processors(root), here) << "another thread's affinity is its own";
  write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::map<std::string, int> quotas{{"max 100000\n", here},
                                          {"100000 100000\n", 1},
                                          {"150000 100000\n", std::min(here, 2)},
                                          {"1000 100000\n", 1},
                                          {"6400000 100000\n", std::min(here, 64)}};
  for (const char* group : {"/outer", "/outer/inner"}) {
    for (const auto& [quota, threads] : quotas) {
      write(std::string("/sys/fs/cgroup") + group + "/cpu.max", quota);
      EXPECT_EQ(available_processors(root), threads) << group << ' ' << quota;
    }
    write(std::string("/sys/fs/cgroup") + group + "/cpu.max", "max 100000\n");
  }
  write("/proc/self/cgroup", "1:cpu:/g\n");
  for (const auto& [quota, threads] : std::map<std::string, int>{{"-1\n", here}, {"30000\n", 1}, {"150000\n", std::min(here, 2)}}) {
    write("/sys/fs/cgroup/cpu/g/cpu.cfs_quota_us", quota);
    write("/sys/fs/cgroup/cpu/g/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(available_processors(root), threads) << quota;
  }
}

TEST(MachineBudget, IsNoneWhereTheJobFitsAndElseWhatThereIs) {
  EXPECT_EQ(budget_by_machine(1000, 0, 1'000'000), 0);
  EXPECT_EQ(budget_by_machine(930'000, 0, 1'000'000), 0);
  const int64_t budget = budget_by_machine(2'000'000, 100'000, 1'000'000);
  EXPECT_GT(budget, 1'000'000 - 1'000'000 / 16);
  EXPECT_LT(budget, 1'100'000);
  EXPECT_EQ(budget % 4096, 0);
  EXPECT_EQ(budget_by_machine(budget, 100'000, 1'000'000), 0) << "what fits exactly";
  EXPECT_EQ(budget_by_machine(1, 0, 0), 4096) << "nothing is left: a budget that nothing fits into, not none";
}

}  // namespace
}  // namespace ort_train
