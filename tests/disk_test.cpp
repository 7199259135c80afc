// The disk tier from below: every suite over io_uring and threads, past the page cache and through it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <random>
#include <thread>

#include "exec/arena.h"
#include "graph/error.h"
#include "offload/checksum.h"
#include "offload/disk_engine.h"
#include "offload/spill_file.h"
#include "tests/failures.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPage = kDiskAlignment, kBlock = int64_t{256} << 10;

struct Way {
  const char* name;
  DiskMethod method;
  Direct direct;
  bool pinned = false;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// Bytes that tell their place in the file and a version.
void fill(std::byte* data, int64_t bytes, int64_t offset, uint64_t version) {
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (static_cast<uint64_t>(offset + i) + version * 0x10001) * 0x9e3779b97f4a7c15;
    std::memcpy(data + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
}

std::span<std::byte> all_of(const Arena& arena) { return {arena.data(), static_cast<size_t>(arena.bytes())}; }

// Runs `body`, which throws where something is wrong, in a child of this process.
template <typename Body> void expect_in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& problem) {
      fprintf(stderr, "%s\n", problem.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

class DiskEngines : public ::testing::TestWithParam<Way> {
 protected:
  // Some requests lie in `memory`, which is what the kernel may pin.
  DiskOptions options(const Arena& memory, int depth = 4, int requests = 8) const {
    DiskOptions options{.method = GetParam().method, .block_bytes = kBlock, .depth = depth, .requests = requests};
    if (GetParam().pinned) options.memory = all_of(memory);
    return options;
  }
  Direct direct() const { return GetParam().direct; }

  TestFolder folder;
};

class DiskRings : public DiskEngines {};  // what only engines with a ring can meet

std::string way_name(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

const Way kRings[] = {{"UringDirect", DiskMethod::uring, Direct::automatic},
                      {"UringPinned", DiskMethod::uring, Direct::automatic, true},
                      {"UringBuffered", DiskMethod::uring, Direct::off},
                      {"UringBufferedPinned", DiskMethod::uring, Direct::off, true}};
const Way kThreadWays[] = {{"ThreadsDirect", DiskMethod::threads, Direct::automatic},
                           {"ThreadsBuffered", DiskMethod::threads, Direct::off}};

INSTANTIATE_TEST_SUITE_P(Rings, DiskEngines, ::testing::ValuesIn(kRings), way_name);
INSTANTIATE_TEST_SUITE_P(Threads, DiskEngines, ::testing::ValuesIn(kThreadWays), way_name);
INSTANTIATE_TEST_SUITE_P(Rings, DiskRings, ::testing::ValuesIn(kRings), way_name);

TEST_P(DiskEngines, ManyRequestsOfManySizesReadWhatWasWritten) {
  const SpillFile spill(folder.path, 48 << 20, direct());
  EXPECT_EQ((::fcntl(spill.file().descriptor(), F_GETFL) & O_DIRECT) != 0, spill.file().direct());
  // The file in pieces of a page to 5 MB, with odd ones; written and read in random orders, several times over.
  std::mt19937 random(1);
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t at = 0; at < spill.bytes();) {
    const int64_t sizes[] = {kPage, 3 * kPage, kBlock, kBlock + kPage, 1 << 20, (5 << 20) - kPage};
    const int64_t bytes = std::min(sizes[random() % 6], spill.bytes() - at);
    pieces.emplace_back(at, bytes);
    at += bytes;
  }
  const Arena arena(spill.bytes());
  DiskEngine engine(options(arena));
  EXPECT_EQ(engine.method(), GetParam().method);
  EXPECT_EQ(engine.note(), "");
  EXPECT_EQ(engine.pinned_bytes(), GetParam().pinned && may_pin(arena.bytes()) ? arena.bytes() : 0);
  for (uint64_t version = 1; version <= 3; ++version) {
    std::shuffle(pieces.begin(), pieces.end(), random);
    std::vector<uint64_t> sums(pieces.size());
    std::vector<DiskTicket> tickets;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [at, bytes] = pieces[i];
      fill(arena.data() + at, bytes, at, version);
      tickets.push_back(engine.submit(
          {.write = true, .file = &spill.file(), .offset = at, .data = arena.data() + at, .bytes = bytes, .checksum = &sums[i]}));
    }
    for (const DiskTicket ticket : tickets) engine.wait(ticket);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [at, bytes] = pieces[i];
      EXPECT_EQ(sums[i], checksum({arena.data() + at, static_cast<size_t>(bytes)}));
    }
    std::memset(arena.data(), 0xee, static_cast<size_t>(arena.bytes()));
    for (size_t i = pieces.size(); i-- > 0;) {
      const auto [at, bytes] = pieces[i];
      engine.submit({.file = &spill.file(), .offset = at, .data = arena.data() + at, .bytes = bytes, .checksum = &sums[i]});
    }
    engine.drain();
    std::vector<std::byte> expected(static_cast<size_t>(spill.bytes()));
    fill(expected.data(), spill.bytes(), 0, version);
    ASSERT_EQ(std::memcmp(arena.data(), expected.data(), expected.size()), 0) << "version " << version;
  }
}

TEST_P(DiskEngines, ReadsAndWritesAtTheSameTime) {
  constexpr int64_t kBytes = 3 * kBlock + kPage;
  constexpr int kChunks = 12;
  const SpillFile spill(folder.path, 2 * kChunks * kBytes, direct());
  const Arena from(kChunks * kBytes), to(kChunks * kBytes);
  DiskEngine engine(options(from, 3, 2 * kChunks));
  // Each chunk has two places; a round writes one and reads what the round before wrote to the other.
  for (int round = 0; round < 5; ++round) {
    std::vector<DiskTicket> tickets;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t here = (2 * chunk + round % 2) * kBytes, there = (2 * chunk + (round + 1) % 2) * kBytes;
      fill(from.data() + chunk * kBytes, kBytes, here, static_cast<uint64_t>(round));
      engine.submit({.write = true, .file = &spill.file(), .offset = here, .data = from.data() + chunk * kBytes, .bytes = kBytes});
      if (round > 0)
        tickets.push_back(engine.submit({.file = &spill.file(), .offset = there, .data = to.data() + chunk * kBytes, .bytes = kBytes}));
    }
    std::vector<std::byte> expected(kBytes);
    for (size_t chunk = 0; chunk < tickets.size(); ++chunk) {
      engine.wait(tickets[chunk]);
      fill(expected.data(), kBytes, (2 * static_cast<int64_t>(chunk) + (round + 1) % 2) * kBytes, static_cast<uint64_t>(round - 1));
      ASSERT_EQ(std::memcmp(to.data() + static_cast<int64_t>(chunk) * kBytes, expected.data(), kBytes), 0) << round << " " << chunk;
    }
    engine.drain();
  }
}

TEST_P(DiskEngines, WritesBeginInOrder) {
  // One block at a time, all to the same place: the last one stays.
  const SpillFile spill(folder.path, kBlock, direct());
  const Arena arena(16 * kBlock);
  DiskEngine engine(options(arena, 1, 4));  // fewer requests than are submitted: submit waits
  for (int64_t i = 0; i < 16; ++i) {
    fill(arena.data() + i * kBlock, kBlock, 0, static_cast<uint64_t>(i));
    engine.submit({.write = true, .file = &spill.file(), .data = arena.data() + i * kBlock, .bytes = kBlock});
  }
  engine.drain();
  const Arena back(kBlock);
  engine.wait(engine.submit({.file = &spill.file(), .data = back.data(), .bytes = kBlock}));
  EXPECT_EQ(std::memcmp(back.data(), arena.data() + 15 * kBlock, kBlock), 0);
}

TEST_P(DiskEngines, ShortTransfersAndInterruptionsGoOn) {
  const SpillFile spill(folder.path, 4 * kBlock, direct());
  const Arena arena(4 * kBlock), back(4 * kBlock);
  fill(arena.data(), arena.bytes(), 0, 7);
  for (const Fault fault : {Fault::short_write, Fault::interrupt, Fault::short_read}) {
    SCOPED_TRACE(static_cast<int>(fault));
    std::memset(back.data(), 0, static_cast<size_t>(back.bytes()));
    DiskEngine engine(options(arena));
    uint64_t sum = 0;
    const IoFaults faults(fault, 2);
    engine.wait(engine.submit({.write = true, .file = &spill.file(), .data = arena.data(), .bytes = arena.bytes(), .checksum = &sum}));
    engine.wait(engine.submit({.file = &spill.file(), .data = back.data(), .bytes = back.bytes(), .checksum = &sum}));
    EXPECT_TRUE(faults.happened());
    EXPECT_EQ(IoFaults::trace().size(), 5u);  // the four blocks, and one of them again
    EXPECT_EQ(std::memcmp(back.data(), arena.data(), static_cast<size_t>(back.bytes())), 0);
  }
}

TEST_P(DiskEngines, AFailureIsThrownAtItsWaitAndAtEveryLaterOne) {
  const SpillFile spill(folder.path, 64 * kBlock, direct());
  const Arena arena(24 * kBlock);
  DiskEngine engine(options(arena, 2));
  const DiskTicket before = engine.submit({.write = true, .file = &spill.file(), .data = arena.data(), .bytes = kBlock});
  engine.wait(before);
  const IoFaults faults(Fault::error, 2);
  const DiskTicket failed =
      engine.submit({.write = true, .file = &spill.file(), .offset = 8 * kBlock, .data = arena.data(), .bytes = 4 * kBlock});
  std::vector<DiskTicket> later;
  for (int64_t i = 0; i < 20; ++i)
    later.push_back(engine.submit({.write = i % 2 == 0,
                                   .file = &spill.file(),
                                   .offset = (16 + i) * kBlock,
                                   .data = arena.data() + (4 + i) * kBlock,
                                   .bytes = kBlock}));
  engine.wait(before);
  for (int i = 0; i < 2; ++i) {
    const std::string message = message_of([&] { engine.wait(failed); });
    EXPECT_THAT(message, HasSubstr("can't write 262144 bytes of '" + spill.file().path() + "' at byte "));
    EXPECT_THAT(message, HasSubstr("Input/output error"));
    for (const DiskTicket ticket : later) EXPECT_EQ(message_of([&] { engine.wait(ticket); }), message);
    EXPECT_EQ(message_of([&] { engine.drain(); }), message);
  }
  EXPECT_TRUE(faults.happened());
}

// A ring that takes nothing any more: what was asked for fails, and the engine ends.
TEST_P(DiskRings, ARingThatStaysBrokenIsAnError) {
  const SpillFile spill(folder.path, 8 * kBlock, direct());
  const Arena arena(2 * kBlock);
  DiskEngine engine(options(arena));
  if (engine.method() != DiskMethod::uring) GTEST_SKIP() << "breaks a ring, and the kernel refuses io_uring here";
  const auto write = [&](int64_t block) {
    return engine.submit(
        {.write = true, .file = &spill.file(), .offset = block * kBlock, .data = arena.data() + block % 2 * kBlock, .bytes = kBlock});
  };
  engine.wait(write(0));
  const UringBroken broken(EBADF);
  const DiskTicket first = write(1), second = write(2);
  EXPECT_THAT(message_of([&] { engine.wait(first); }), HasSubstr("Bad file descriptor"));
  EXPECT_THAT(message_of([&] { engine.wait(second); }), HasSubstr("Bad file descriptor"));
  EXPECT_THAT(message_of([&] { engine.wait(write(3)); }), HasSubstr("Bad file descriptor"));
}

TEST_P(DiskEngines, AFullDiskAndAReadErrorSayWhere) {
  const SpillFile spill(folder.path, 8 * kBlock, direct());
  const Arena arena(kBlock);
  {
    DiskEngine engine(options(arena));
    const IoFaults faults(Fault::full, 1);
    const DiskTicket ticket =
        engine.submit({.write = true, .file = &spill.file(), .offset = 3 * kBlock, .data = arena.data(), .bytes = kBlock});
    EXPECT_THAT(message_of([&] { engine.wait(ticket); }), HasSubstr("at byte 786432: No space left on device"));
  }
  DiskEngine engine(options(arena));
  const IoFaults faults(Fault::read_error, 1);
  const DiskTicket ticket = engine.submit({.file = &spill.file(), .offset = kBlock, .data = arena.data(), .bytes = kBlock});
  EXPECT_THAT(message_of([&] { engine.wait(ticket); }), HasSubstr("can't read 262144 bytes of '" + spill.file().path()));
}

TEST_P(DiskEngines, AFileThatEndsSaysWhere) {
  const SpillFile spill(folder.path, 4 * kBlock, direct());
  ASSERT_EQ(::ftruncate(spill.file().descriptor(), 2 * kBlock + kPage + 100), 0);
  const Arena arena(4 * kBlock);
  for (int depth : {1, 4}) {
    DiskEngine engine(options(arena, depth));
    const DiskTicket ticket = engine.submit({.file = &spill.file(), .data = arena.data(), .bytes = 4 * kBlock});
    EXPECT_THAT(message_of([&] { engine.wait(ticket); }), HasSubstr("ends at byte "));
  }
}

TEST_P(DiskEngines, AFileLimitIsAnErrorNotATruncation) {
  // RLIMIT_FSIZE is a real fault from the kernel; in a child, since the limit and the signal are the process's.
  expect_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const SpillFile spill(folder.path, 8 * kBlock, direct());
    const rlimit limit{3 * kBlock, 3 * kBlock};
    const Arena arena(8 * kBlock);
    DiskEngine engine(options(arena));
    require(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit can be set");
    const DiskTicket ticket = engine.submit({.write = true, .file = &spill.file(), .data = arena.data(), .bytes = 8 * kBlock});
    const std::string message = message_of([&] { engine.wait(ticket); });
    require(message.find("File too large") != std::string::npos, message.c_str());
  });
}

TEST_P(DiskEngines, OtherBytesThanWereWrittenAreFound) {
  const SpillFile spill(folder.path, 16 * kBlock, direct());
  const Arena arena(16 * kBlock);
  fill(arena.data(), arena.bytes(), 0, 3);
  DiskEngine engine(options(arena));
  uint64_t sums[2] = {};
  for (int64_t i = 0; i < 2; ++i)
    engine.submit({.write = true,
                   .file = &spill.file(),
                   .offset = 8 * i * kBlock,
                   .data = arena.data() + 8 * i * kBlock,
                   .bytes = 8 * kBlock,
                   .checksum = &sums[i]});
  engine.drain();
  // Behind its back: one bit of the second.
  const int other = ::open(spill.file().path().c_str(), O_RDWR);
  char byte = 0;
  ASSERT_EQ(::pread(other, &byte, 1, 12 * kBlock + 5), 1);
  byte = static_cast<char>(byte ^ 16);
  ASSERT_EQ(::pwrite(other, &byte, 1, 12 * kBlock + 5), 1);
  ::fsync(other);
  ::close(other);
  const auto read = [&](int64_t i, bool checked) {
    return engine.submit({.file = &spill.file(),
                          .offset = 8 * i * kBlock,
                          .data = arena.data() + 8 * i * kBlock,
                          .bytes = 8 * kBlock,
                          .checksum = checked ? &sums[i] : nullptr});
  };
  engine.wait(read(0, true));
  engine.wait(read(1, false));
  const DiskTicket ticket = read(1, true);
  EXPECT_EQ(message_of([&] { engine.wait(ticket); }),
            "the disk returned other bytes than were written: '" + spill.file().path() + "', 2097152 bytes at byte 2097152");
}

TEST_P(DiskEngines, BlocksInAnotherOrderAreFound) {
  const Arena arena(2 * kBlock);
  fill(arena.data(), arena.bytes(), 0, 1);
  const uint64_t sum = checksum({arena.data(), 2 * kBlock});
  std::swap_ranges(arena.data(), arena.data() + kBlock, arena.data() + kBlock);
  EXPECT_NE(checksum({arena.data(), 2 * kBlock}), sum);
}

TEST_P(DiskEngines, AnyOffsetThroughThePageCache) {
  std::string content(3'000'001, '\0');
  fill(reinterpret_cast<std::byte*>(content.data()), static_cast<int64_t>(content.size()), 0, 9);
  const DiskFile file = DiskFile::open(write_file(folder / "model", content));
  const Arena other(kBlock);
  DiskEngine engine(options(other));
  std::string to(2'000'003, '\0');
  engine.wait(engine.submit(
      {.file = &file, .offset = 77, .data = reinterpret_cast<std::byte*>(to.data()), .bytes = static_cast<int64_t>(to.size())}));
  EXPECT_EQ(to, content.substr(77, to.size()));
}

TEST_P(DiskEngines, ADestroyedEngineLeavesMemoryAlone) {
  const SpillFile spill(folder.path, 64 * kBlock, direct());
  for (int i = 0; i < 20; ++i) {
    auto arena = std::make_unique<Arena>(64 * kBlock);
    {
      DiskEngine engine(options(*arena));
      for (int64_t k = 0; k < 4; ++k)
        engine.submit({.write = k % 2 == 0, .file = &spill.file(), .data = arena->data() + 16 * k * kBlock, .bytes = 16 * kBlock});
    }
    arena.reset();
  }
}

TEST_P(DiskEngines, TheHeapStaysFlat) {
  const SpillFile spill(folder.path, 8 * kBlock, direct());
  const Arena arena(8 * kBlock);
  DiskEngine engine(options(arena));
  uint64_t sums[8] = {};
  const auto round = [&] {
    for (const bool write : {true, false}) {
      for (int64_t i = 0; i < 8; ++i)
        engine.submit({.write = write,
                       .file = &spill.file(),
                       .offset = i * kBlock,
                       .data = arena.data() + i * kBlock,
                       .bytes = kBlock,
                       .checksum = &sums[i]});
      engine.drain();
    }
  };
  round();
  const auto before = ::mallinfo2().uordblks;
  for (int i = 0; i < 20; ++i) round();
  EXPECT_EQ(::mallinfo2().uordblks, before);
}

TEST_P(DiskEngines, TwoEnginesInTwoThreads) {
  const SpillFile spill(folder.path, 32 * kBlock, direct());
  const auto work = [&](int64_t first) {
    const Arena arena(16 * kBlock), back(16 * kBlock);
    DiskEngine engine(options(arena));
    for (uint64_t version = 0; version < 4; ++version) {
      fill(arena.data(), arena.bytes(), first, version);
      for (const bool write : {true, false}) {
        for (int64_t i = 0; i < 16; ++i)
          engine.submit({.write = write,
                         .file = &spill.file(),
                         .offset = first + i * kBlock,
                         .data = (write ? arena : back).data() + i * kBlock,
                         .bytes = kBlock});
        engine.drain();
      }
      EXPECT_EQ(std::memcmp(arena.data(), back.data(), static_cast<size_t>(back.bytes())), 0);
    }
  };
  std::thread other(work, 16 * kBlock);
  work(0);
  other.join();
}

TEST_P(DiskEngines, SeveralThreadsShareOne) {
  const SpillFile spill(folder.path, 64 * kBlock, direct());
  const Arena shared(8 * kBlock);
  DiskEngine engine(options(shared, 2, 3));
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Arena back(2 * kBlock);
      const std::span<std::byte> arena = all_of(shared).subspan(static_cast<size_t>(2 * t * kBlock), 2 * kBlock);
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t at = (16 * t + 2 * i) * kBlock;
        uint64_t sum = 0;
        fill(arena.data(), 2 * kBlock, at, 5);
        engine.wait(engine.submit(
            {.write = true, .file = &spill.file(), .offset = at, .data = arena.data(), .bytes = 2 * kBlock, .checksum = &sum}));
        engine.wait(engine.submit({.file = &spill.file(), .offset = at, .data = back.data(), .bytes = back.bytes(), .checksum = &sum}));
        EXPECT_EQ(std::memcmp(arena.data(), back.data(), static_cast<size_t>(back.bytes())), 0);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DiskEngines, AFileWithoutItsNameStillWorks) {
  const SpillFile spill(folder.path, 4 * kBlock, direct());
  const Arena arena(4 * kBlock), back(4 * kBlock);
  fill(arena.data(), arena.bytes(), 0, 1);
  DiskEngine engine(options(arena));
  ASSERT_EQ(::unlink(spill.file().path().c_str()), 0);
  write_file(spill.file().path(), "someone else's");
  engine.wait(engine.submit({.write = true, .file = &spill.file(), .data = arena.data(), .bytes = arena.bytes()}));
  engine.wait(engine.submit({.file = &spill.file(), .data = back.data(), .bytes = back.bytes()}));
  EXPECT_EQ(std::memcmp(back.data(), arena.data(), static_cast<size_t>(back.bytes())), 0);
}

TEST(Disk, ThreadsWhereTheKernelRefusesIoUring) {
  for (const int code : {EPERM, ENOSYS, ENOMEM}) {
    const UringRefused refused(code);
    const DiskEngine engine;
    EXPECT_EQ(engine.method(), DiskMethod::threads);
    EXPECT_EQ(engine.note(), std::string("the kernel refuses io_uring (") + std::generic_category().message(code) +
                                 "), so the disk tier uses threads in its place");
    EXPECT_THAT(message_of([] { DiskEngine({.method = DiskMethod::uring}); }), HasSubstr("io_uring can't be used here"));
  }
}

// Runs `body` in a child of this process, which may pin `bytes` and has no privilege to pin more.
template <typename Body> void expect_with_limit(int64_t bytes, Body&& body) {
  expect_in_child([&] {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
    const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    require(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && syscall(SYS_capset, &header, data) == 0, "the limit can be set");
    body();
  });
}

// Requests of five pages from there on in the arena, of which the engine has the beginning: a read of what another engine wrote, then a
// write that is read again.
void expect_transfers(const std::string& folder, DiskEngine& engine, const Arena& arena, std::initializer_list<int64_t> starts) {
  constexpr int64_t kBytes = 5 * kPage;
  const SpillFile spill(folder, arena.bytes());
  std::vector<std::byte> expected(kBytes);
  uint64_t version = 0;
  for (const int64_t at : starts) {
    std::byte* const data = arena.data() + at;
    DiskEngine other({.method = DiskMethod::threads});
    const auto move = [&](DiskEngine& which, bool write) {
      which.wait(which.submit({.write = write, .file = &spill.file(), .offset = at, .data = data, .bytes = kBytes}));
    };
    for (DiskEngine* const writer : {&other, &engine}) {
      fill(expected.data(), kBytes, at, ++version);
      std::memcpy(data, expected.data(), kBytes);
      move(*writer, true);
      std::memset(data, 0, kBytes);
      move(engine, false);
      require(std::memcmp(data, expected.data(), kBytes) == 0, "what was written is read");
    }
  }
}

TEST(Disk, PinnedMemoryIsWhatTheLimitAllows) {
  const TestFolder folder;
  constexpr int64_t kPinned = int64_t{1} << 20;
  const Arena arena(kPinned + 16 * kPage);
  const std::span<std::byte> memory = all_of(arena).first(static_cast<size_t>(kPinned));
  const auto expect = [&](DiskEngine& engine, int64_t pinned) {
    require(engine.method() != DiskMethod::uring || engine.pinned_bytes() == pinned, "as much is pinned as was expected");
    expect_transfers(folder.path, engine, arena, {0, kPinned - 2 * kPage, kPinned + 4 * kPage});  // within, across the end, beside
  };
  EXPECT_TRUE(may_pin(0));
  expect_with_limit(kPinned - 1, [&] {
    require(may_pin(kPinned - 1) && !may_pin(kPinned), "the limit counts");
    DiskEngine engine({.memory = memory});
    expect(engine, 0);
  });
  expect_with_limit(kPinned + kPinned / 2, [&] {  // the kernel counts a few pages of its own
    // The limit is that of all processes of the user; what one had is free a moment after its end.
    std::optional<DiskEngine> engine;
    for (int i = 0; i < 100 && (!engine || engine->pinned_bytes() == 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(i));
      engine.emplace(DiskOptions{.memory = memory});
    }
    expect(*engine, kPinned);
    // Of what the first has left, the kernel gives a second none, and all goes on without.
    DiskEngine second({.memory = memory});
    expect(second, 0);
  });
}

TEST(Disk, PinnedMemoryHasParts) {
  constexpr int64_t kPart = int64_t{63} << 20;
  const TestFolder folder;
  const Arena arena(2 * kPart + kPage);
  if (!may_pin(arena.bytes()))
    GTEST_SKIP() << "this user may not pin the " << arena.bytes() << " bytes that have several parts (ulimit -l)";
  DiskEngine engine({.memory = all_of(arena)});
  EXPECT_EQ(engine.pinned_bytes(), engine.method() == DiskMethod::uring ? arena.bytes() : 0);
  expect_transfers(folder.path, engine, arena, {kPart - 5 * kPage, kPart - 2 * kPage, kPart, 2 * kPart - 4 * kPage});
}

TEST(Disk, ThePageCacheWhereThereIsNoDirectInput) {
  // procfs has none.
  const DiskFile file = DiskFile::open("/proc/version", Direct::automatic);
  EXPECT_FALSE(file.direct());
  EXPECT_THAT(file.note(), HasSubstr("the file system has no direct I/O (Invalid argument), so the disk tier goes through the page cache"));
  char text[5];
  DiskEngine engine;
  engine.wait(engine.submit({.file = &file, .data = reinterpret_cast<std::byte*>(text), .bytes = 5}));
  EXPECT_EQ(std::string(text, 5), "Linux");
  EXPECT_THAT(message_of([] { DiskFile::open("/proc/version", Direct::on); }), HasSubstr("no direct I/O"));
  EXPECT_THAT(message_of([] { DiskFile::open("/proc", Direct::off); }), HasSubstr("not a regular file"));
}

TEST(Disk, RequestsThatMakeNoSenseAreOurOwnErrors) {
  const TestFolder folder;
  const SpillFile spill(folder.path, 4 * kBlock);
  const Arena arena(kBlock);
  DiskEngine engine;
  EXPECT_THROW(engine.submit({.file = &spill.file(), .data = arena.data(), .bytes = 0}), Error);
  EXPECT_THROW(engine.submit({.data = arena.data(), .bytes = kPage}), Error);
  EXPECT_THROW(engine.wait(1), Error);
  if (spill.file().direct()) {
    EXPECT_THROW(engine.submit({.file = &spill.file(), .offset = 1, .data = arena.data(), .bytes = kPage}), Error);
  }
  EXPECT_THROW(DiskEngine({.block_bytes = 1000}), Error);
  engine.drain();
}

}  // namespace
}  // namespace ort_train
