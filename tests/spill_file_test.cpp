// The file of the disk tier: its space, its name, what is left of dead runs; and what is known of the machine that it lies on.

#include "offload/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "exec/arena.h"
#include "graph/error.h"
#include "offload/calibration.h"
#include "tests/failures.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPage = kDiskAlignment, kTransfer = int64_t{256} << 10;

TEST(SpillFile, IsThereAndThenGone) {
  const TestFolder folder;
  {
    const SpillFile spill(folder.path, 1 << 20);
    EXPECT_THAT(names_in(folder.path), ::testing::ElementsAre(::testing::StartsWith("ort-train-spill-")));
    EXPECT_EQ(std::filesystem::file_size(spill.file().path()), uint64_t{1} << 20);
    struct stat status {};
    ASSERT_EQ(::fstat(spill.file().descriptor(), &status), 0);
    EXPECT_GE(status.st_blocks * 512, 1 << 20);  // the space is taken
    EXPECT_EQ(spill.note(), spill.file().note());
  }
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
  EXPECT_THROW(
      {
        const SpillFile spill(folder.path, 1 << 20);
        throw std::runtime_error("something");
      },
      std::runtime_error);
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
}

TEST(SpillFile, LeftoversOfTheDeadAreRemovedAndNothingElse) {
  const TestFolder folder;
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  // One child dies with its file, one lives on with it.
  pid_t children[2];
  for (const bool lives : {false, true}) {
    children[lives] = fork();
    if (children[lives] == 0) {
      const SpillFile spill(folder.path, 1 << 20);
      if (::write(pipes[1], "x", 1) != 1) _exit(1);
      if (!lives) ::kill(::getpid(), SIGKILL);
      for (;;) ::pause();
    }
    char x;
    ASSERT_EQ(::read(pipes[0], &x, 1), 1);
    if (!lives) {
      ASSERT_EQ(::waitpid(children[0], nullptr, 0), children[0]);
      EXPECT_EQ(names_in(folder.path).size(), 1u);
    }
  }
  EXPECT_EQ(names_in(folder.path).size(), 1u);  // the second child removed what the first had left
  write_file(folder / "ort-train-spill-notours", "x");
  write_file(folder / "ort-train-spill-0123456789abcdef0", "x");
  write_file(folder / "elsewhere", "x");
  std::filesystem::create_symlink(folder / "elsewhere", folder / "ort-train-spill-0123456789abcdef");
  std::filesystem::create_hard_link(folder / "elsewhere", folder / "ort-train-spill-1123456789abcdef");
  std::filesystem::create_directory(folder / "ort-train-spill-2123456789abcdef");
  ASSERT_EQ(::mkfifo((folder / "ort-train-spill-3123456789abcdef").c_str(), 0600), 0);
  {
    const SpillFile spill(folder.path, 1 << 20);
    EXPECT_EQ(spill.note(), spill.file().note());
    EXPECT_EQ(names_in(folder.path).size(), 9u);
  }
  EXPECT_EQ(names_in(folder.path).size(), 8u);
  ::kill(children[1], SIGKILL);
  ASSERT_EQ(::waitpid(children[1], nullptr, 0), children[1]);
  {
    const SpillFile spill(folder.path, 1 << 20);
    EXPECT_THAT(spill.note(), HasSubstr("1048576 bytes that a killed run had left"));
  }
  EXPECT_EQ(names_in(folder.path).size(), 7u);
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST(SpillFile, ManyAtOnceKeepTheirNames) {
  const TestFolder folder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const SpillFile spill(folder.path, kPage);
        EXPECT_TRUE(std::filesystem::exists(spill.file().path()));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
}

TEST(SpillFile, AFolderThatCannotBeUsedSaysWhy) {
  const TestFolder folder;
  EXPECT_THAT(message_of([&] { SpillFile(folder / "none", kPage); }),
              HasSubstr("none', the folder for the disk tier, can't be used: No such file or directory; make it, or name another"));
  EXPECT_THAT(message_of([&] { SpillFile(write_file(folder / "file", ""), kPage); }), HasSubstr("is not a folder"));
  EXPECT_THAT(message_of([&] { SpillFile("/proc/self", kPage); }), HasSubstr("can't make a file in '/proc/self'"));
}

TEST(SpillFile, ADiskThatIsTooSmallSaysHowMuchIsFree) {
  const TestFolder folder;
  EXPECT_THAT(message_of([&] { SpillFile(folder.path, int64_t{1} << 50); }), HasSubstr("can't be reserved"))
      << "larger than the file system's largest file";
  {
    const IoFaults faults(Fault::full, 1);
    EXPECT_THAT(message_of([&] { SpillFile(folder.path, 1 << 20); }),
                ::testing::MatchesRegex(
                    ".*: the disk tier needs 1048576 bytes there, and [0-9]+ bytes are free: free some, or name another folder"));
  }
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
}

TEST(SpillFile, OnASmallTmpfs) {
  const TestFolder folder;
  if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "a disk that fills up for real is a small tmpfs, which can't be mounted here (only root may): " << std::strerror(errno);
  const std::unique_ptr<const char, int (*)(const char*)> mounted(folder.path.c_str(), ::umount);
  EXPECT_THAT(message_of([&] { SpillFile(folder.path, 8 << 20); }),
              HasSubstr("the disk tier needs 8388608 bytes there, and 4194304 bytes are free"));
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
  for (const DiskMethod method : {DiskMethod::uring, DiskMethod::threads}) {
    // A disk that fills up in the middle of a write, for real.
    const SpillFile spill(folder.path, 1 << 20);
    const SpillFile most(folder.path, 2 << 20);
    const Arena arena(2 << 20);
    DiskEngine engine({.method = method, .block_bytes = kTransfer, .depth = 2});
    const DiskTicket ticket = engine.submit({.write = true, .file = &spill.file(), .data = arena.data(), .bytes = 2 << 20});
    engine.wait(ticket);  // what it takes, the next one must not take before it
    const DiskTicket beyond =
        engine.submit({.write = true, .file = &spill.file(), .offset = 2 << 20, .data = arena.data(), .bytes = 2 << 20});
    EXPECT_THAT(message_of([&] { engine.wait(beyond); }), HasSubstr("No space left on device"));
  }
}

TEST(MachineProfile, ComesBackOnTheSameMachineOnly) {
  const TestFolder folder;
  const std::string path = folder / "profile.json";
  EXPECT_FALSE(load_profile(path).has_value());
  const MachineProfile profile{
      .processor = {{1, {.flops = 7e10, .element_flops = 3e10, .bytes_per_second = 1.5e10, .far_bytes_per_second = 1.4e10}},
                    {2, {.flops = 1.25e11, .element_flops = 6e10, .bytes_per_second = 2.1e10, .far_bytes_per_second = 1.9e10}}},
      .disks = {{disk_key(folder.path, 2),
                 {.read = 1e9,
                  .write = 2e9,
                  .duplex = 1.5,
                  .while_computing = 0.5,
                  .compute_lost = 0.25,
                  .read_latency = 0.25,
                  .write_latency = 0.5,
                  .block_bytes = 1 << 20,
                  .depth = 8,
                  .buffer_bytes = 4096}}}};
  save_profile(path, profile);
  save_profile(path, profile);
  EXPECT_EQ(names_in(folder.path).size(), 1u);
  EXPECT_EQ(load_profile(path), profile);
  const std::string text = read_file(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return load_profile(write_file(folder / "changed.json", changed)).has_value();
  };
  EXPECT_TRUE(with("\"flops\"", "\"flops\""));
  EXPECT_FALSE(with(machine_key(), "another machine"));
  EXPECT_FALSE(with("\"version\": 10", "\"version\": 7"));
  EXPECT_FALSE(with("\"2\"", "\"two\""));
  EXPECT_FALSE(with("\"together\": 1.5", "\"together\": 2.5"));
  EXPECT_FALSE(with("\"depth\": 8", "\"depth\": 1000000"));
  EXPECT_FALSE(with("\"block_bytes\": 1048576", "\"block_bytes\": 1000"));
  EXPECT_FALSE(with("\"read\": 1000000000.0", "\"read\": \"fast\""));
  EXPECT_FALSE(with("{", "["));
  EXPECT_THAT(message_of([&] { save_profile(folder / "none/profile.json", profile); }), HasSubstr("can't write"));
  EXPECT_FALSE(load_profile(folder.path).has_value());
}

TEST(MeasureDisk, GivesRatesAndLeavesNothing) {
  const TestFolder folder;
  for (const DiskMethod method : {DiskMethod::automatic, DiskMethod::threads}) {
    int64_t worked = 0;
    const auto work = [&] {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
      while (std::chrono::steady_clock::now() < until) ++worked;
    };
    const DiskRates rates =
        measure_disk(folder.path, {.seconds = 0.3, .file_bytes = 48 << 20, .buffer_bytes = 32 << 20, .method = method, .work = work});
    EXPECT_GT(worked, 0);
    EXPECT_GE(rates.duplex, 1);
    EXPECT_LE(rates.duplex, 2);
    EXPECT_LE(rates.while_computing, 1);
    EXPECT_GE(rates.compute_lost, 0);
    EXPECT_LT(rates.compute_lost, rates.while_computing);
    for (const double rate : {rates.read, rates.write}) {
      EXPECT_GT(rate, 1e6);
      EXPECT_LT(rate, 1e12);
    }
    for (const double seconds : {rates.read_latency, rates.write_latency}) {
      EXPECT_GE(seconds, 0);
      EXPECT_LT(seconds, 1);
    }
    EXPECT_GE(rates.depth, 4);
    EXPECT_GE(rates.block_bytes, 1 << 20);
  }
  EXPECT_THAT(names_in(folder.path), ::testing::IsEmpty());
  EXPECT_THAT(message_of([&] { measure_disk(folder / "none"); }), HasSubstr("can't be used"));
}

}  // namespace
}  // namespace ort_train
