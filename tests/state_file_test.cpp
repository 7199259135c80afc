// State files: what a checkpoint refers to is never written to, survives its process, and goes when nobody refers to it.

#include "offload/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "exec/arena.h"
#include "exec/program.h"
#include "graph/error.h"
#include "offload/checksum.h"
#include "offload/disk_folder.h"
#include "offload/spill_disk.h"
#include "tests/failures.h"
#include "tests/io_faults.h"
#include "tests/sanitized.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kBlock = kDiskAlignment;

int64_t bytes_held(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? int64_t{status.st_blocks} * 512 : -1;
}

void publish(StateFile& file, const std::string& name) {
  file.sync();
  file.name_for(name);
  file.published();
}

TEST(ChecksumWithZeros, IsThatOfTheWholeBlocks) {
  std::vector<std::byte> bytes(static_cast<size_t>(3 * kChecksumPiece + 2 * kBlock));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const int64_t count : {int64_t{0}, int64_t{1}, kBlock - 1, kBlock, kChecksumPiece - 1, kChecksumPiece, kChecksumPiece + 5,
                              2 * kChecksumPiece, 3 * kChecksumPiece - kBlock + 3, 3 * kChecksumPiece + kBlock + 1}) {
    std::vector<std::byte> padded(bytes.begin(), bytes.begin() + count);
    const int64_t whole = (count + kBlock - 1) / kBlock * kBlock;
    padded.resize(static_cast<size_t>(whole));
    EXPECT_EQ(checksum_with_zeros(std::span(bytes).first(static_cast<size_t>(count)), whole), checksum(padded)) << count;
  }
}

// Three tensors on the disk, one in memory; thousands of random writes, reads, publications and new starts against a model of them.
TEST(StateFile, NothingThatIsPublishedIsEverWrittenTo) {
  const std::vector<StateFile::Tensor> tensors{{"a", 3 * kBlock}, {"b", 100}, {"c", kChecksumPiece + 5}, {"memory", 2 * kBlock + 9}};
  using Values = std::map<std::string, char>;  // what each tensor is full of
  int64_t restarts = 0, publications = 0, reads = 0;
  const uint32_t seeds = kSanitized ? 3 : 9;  // each number of slots once
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    const int slots = 2 + static_cast<int>(seed % 3);
    const TestFolder folder;
    std::mt19937 random(seed);
    Arena arena(8 * kChecksumPiece);
    std::vector<StateHome> homes;
    int64_t disk_bytes = 0;
    for (size_t i = 0; i < 3; ++i) {
      homes.push_back({.offset = disk_bytes, .name = tensors[i].name});
      disk_bytes += whole_sectors(tensors[i].bytes);
    }
    const auto start = [&](std::unique_ptr<StateFile> file) {
      return std::make_unique<SpillDisk>(SpillOptions{.folder = folder.path}, disk_bytes + kBlock, disk_bytes, std::move(file), homes);
    };
    auto disk = start(std::make_unique<StateFile>(folder.path, tensors, "owner", slots));
    Values now{{"a", 0}, {"b", 0}, {"c", 0}, {"memory", 0}};
    std::vector<Values> saved;  // of the checkpoints that are kept, the oldest first
    std::vector<SlotTable> tables;
    const std::string link = folder / "link";
    for (int step = 0; step < 200; ++step) {
      const size_t i = random() % 4;
      const auto bytes = static_cast<size_t>(tensors[i].bytes);
      switch (random() % 8) {
        default: {  // writes; the one that is in memory: just before it is published
          const char value = now[tensors[i].name] = static_cast<char>(random());
          std::fill_n(reinterpret_cast<char*>(arena.data()), bytes, value);
          if (i < 3) disk->wait(disk->write(homes[i].offset, arena.data(), whole_sectors(tensors[i].bytes)));
          break;
        }
        case 0:
        case 1: {
          if (i == 3) break;
          std::fill_n(arena.data(), bytes, std::byte{0x5a});
          disk->wait(disk->read(homes[i].offset, arena.data(), whole_sectors(tensors[i].bytes)));
          const char* const got = reinterpret_cast<const char*>(arena.data());
          ASSERT_TRUE(std::all_of(got, got + bytes, [&](char c) { return c == now[tensors[i].name]; })) << step;
          ++reads;
          break;
        }
        case 2: {
          const std::vector<std::byte> memory(static_cast<size_t>(tensors[3].bytes), static_cast<std::byte>(now["memory"]));
          disk->write_state("memory", memory, {arena.data(), static_cast<size_t>(2 * kBlock)});
          disk->finish();
          fs::remove(link);
          tables.push_back(disk->state()->sync());
          disk->state()->name_for(link);
          disk->state()->published();
          saved.push_back(now);
          if (saved.size() >= static_cast<size_t>(slots)) {
            saved.erase(saved.begin());
            tables.erase(tables.begin());
          }
          ++publications;
          break;
        }
        case 3: {  // the process ends, and another goes on with what was saved
          if (saved.empty()) break;
          disk.reset();
          disk = start(std::make_unique<StateFile>(tables.back().path, tables.back(), "owner",
                                                   std::vector<SlotTable>(tables.begin(), tables.end() - 1)));
          now = saved.back();
          ++restarts;
          break;
        }
      }
      for (size_t at = 0; at < saved.size(); ++at) {
        const SlotReader reader(link, tables[at]);
        for (const StateFile::Tensor& tensor : tensors) {
          std::vector<std::byte> got(static_cast<size_t>(tensor.bytes));
          reader.read(*tables[at].find(tensor.name), got);
          ASSERT_TRUE(std::all_of(got.begin(), got.end(), [&](std::byte b) { return b == static_cast<std::byte>(saved[at][tensor.name]); }))
              << tensor.name << " " << step;
        }
      }
    }
  }
  EXPECT_GT(restarts, 6 * seeds);
  EXPECT_GT(publications, 11 * seeds);
  EXPECT_GT(reads, 11 * seeds);
}

TEST(StateFile, GoesUnlessACheckpointRefersToIt) {
  const TestFolder folder, out;
  const std::vector<StateFile::Tensor> tensors{{"a", 100 * kBlock}, {"b", 1}};
  EXPECT_EQ(StateFile::file_bytes(tensors), (1 + 2 * 100 + 2) * kBlock);
  EXPECT_EQ(StateFile::file_bytes(tensors, /*slots=*/3), (1 + 3 * 100 + 3) * kBlock);
  { const StateFile file(folder.path, tensors, out.path); }
  EXPECT_THAT(names_in(folder.path), testing::IsEmpty());
  std::string path;
  {
    StateFile file(folder.path, tensors, out.path);
    path = file.file().path();
    EXPECT_GE(bytes_held(path), StateFile::file_bytes(tensors));  // the space is taken
    uint64_t* sum = nullptr;
    const std::vector<std::byte> zeros(static_cast<size_t>(100 * kBlock));
    ASSERT_EQ(::pwrite(file.file().descriptor(), zeros.data(), 0, file.write_to(0, sum)), 0);
    *sum = checksum(zeros);
    publish(file, out / "link");
    EXPECT_EQ(remove_leftovers(folder.path), 0);
  }
  EXPECT_EQ(names_in(folder.path).size(), 1u);
  EXPECT_LT(bytes_held(path), 110 * kBlock);  // what no checkpoint refers to takes no space between runs
  EXPECT_EQ(remove_leftovers(folder.path), 0);
  fs::remove(out / "link");
  EXPECT_GT(remove_leftovers(folder.path), 0);
  EXPECT_THAT(names_in(folder.path), testing::IsEmpty());
}

TEST(StateFile, OfAKilledProcessIsRemovedOnlyIfNothingWasPublished) {
  for (const bool published : {false, true}) {
    const TestFolder folder, out;
    const pid_t child = fork();
    if (child == 0) {
      StateFile file(folder.path, std::vector<StateFile::Tensor>{{"a", kBlock}}, out.path);
      if (published) publish(file, out / "link");
      ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(names_in(folder.path).size(), 1u);
    EXPECT_EQ(remove_leftovers(folder.path) > 0, !published);
    EXPECT_EQ(names_in(folder.path).size(), published ? 1u : 0u);
  }
}

TEST(StateFile, IsRefusedWhereItIsAnother) {
  const TestFolder folder;
  SlotTable table;
  const std::string link = folder / "link";
  {
    StateFile file(folder.path, std::vector<StateFile::Tensor>{{"a", 5 * kBlock}, {"b", 9}}, "owner");
    publish(file, link);
    table = file.sync();
    std::string message;
    EXPECT_EQ(code_of([&] { StateFile(table.path, table, "owner"); }, &message), ErrorCode::usage);
    EXPECT_THAT(message, HasSubstr("another run uses this state file"));
    EXPECT_EQ(code_of([&] {
                uint64_t* sum;
                file.write_to(0, sum);
              }),
              ErrorCode::io);  // the publication that sync() began never ended
  }
  const auto refused = [&](const std::string& path, const SlotTable& with, const std::string& why) {
    std::string message;
    EXPECT_EQ(code_of([&] { StateFile(path, with, "owner"); }, &message), ErrorCode::corrupt);
    EXPECT_THAT(message, HasSubstr(why));
    EXPECT_EQ(code_of([&] { const SlotReader reader(path, with); }), ErrorCode::corrupt);
  };
  refused(folder / "none", table, "is missing");
  refused(folder.path, table, "can't be opened");
  refused(write_file(folder / "text", "a letter"), table, "is not the state file");
  SlotTable other = table;
  other.id = "0123456789abcdef";
  refused(table.path, other, "is not the state file");
  write_file(folder / "longer", read_file(table.path) + "x");
  refused(folder / "longer", table, "is not the state file");
  write_file(folder / "shorter", read_file(table.path).substr(0, static_cast<size_t>(table.bytes - kBlock)));
  refused(folder / "shorter", table, "is not the state file");
  EXPECT_NO_THROW(StateFile(table.path, table, "owner"));
}

// Its header says that it is kept; a header that can't be read doesn't say that it isn't.
TEST(StateFile, AReadErrorIsNoReasonToRemoveIt) {
  const TestFolder folder, out;
  SlotTable table;
  {
    StateFile file(folder.path, std::vector<StateFile::Tensor>{{"a", 5 * kBlock}}, out.path);
    publish(file, out / "no such folder/link");
    table = file.sync();
  }
  for (const auto& [fault, lasts] : {std::pair(Fault::read_error, false), {Fault::read_error, true}, {Fault::short_read, false}}) {
    bool happened = true;
    int64_t n = 0, refused = 0;
    while (happened) {
      {
        const IoFaults faults(fault, ++n, lasts);
        EXPECT_EQ(remove_leftovers(folder.path), 0) << n;
        try {
          const StateFile file(table.path, table, out.path);
        } catch (const Error& problem) {
          EXPECT_EQ(problem.code(), ErrorCode::io) << n;
          EXPECT_THAT(problem.what(), HasSubstr("'" + table.path + "', the state file to which the checkpoint refers, can't be read: "));
          ++refused;
        }
        happened = faults.happened();
      }
      ASSERT_TRUE(read_state_header(table.path).kept) << n;
    }
    EXPECT_GT(n, 2);
    EXPECT_EQ(refused > 1, fault == Fault::read_error);
  }
  EXPECT_NO_THROW(StateFile(table.path, table, out.path));
}

// A checkpoint that can't have a name of the file, and doesn't come about.
TEST(StateFile, IsNotKeptForACheckpointThatFailed) {
  const TestFolder folder, out;
  {
    StateFile file(folder.path, std::vector<StateFile::Tensor>{{"a", kBlock}}, out.path);
    file.sync();
    file.name_for(out / "no such folder/link");
    EXPECT_TRUE(read_state_header(file.file().path()).kept);
    file.withdrawn();
  }
  EXPECT_THAT(names_in(folder.path), testing::IsEmpty());
  SlotTable table;
  {
    StateFile file(folder.path, std::vector<StateFile::Tensor>{{"a", kBlock}}, out.path);
    publish(file, out / "no such folder/link");
    table = file.sync();
    file.withdrawn();  // of the next one: the first needs the file
    EXPECT_TRUE(read_state_header(table.path).kept);
  }
  EXPECT_EQ(names_in(folder.path).size(), 1u);
}

TEST(SlotTable, MustMakeSense) {
  const SlotTable good{.path = "p",
                       .id = "i",
                       .bytes = 9 * kBlock,
                       .entries = {{"a", 2 * kBlock, {kBlock, 3 * kBlock}, 0, 1}, {"b", 5, {5 * kBlock, 8 * kBlock}, -1, 0}}};
  EXPECT_NO_THROW(check_table(good));
  const auto bad = [&](const std::function<void(SlotTable&)>& change) {
    SlotTable table = good;
    change(table);
    EXPECT_EQ(code_of([&] { check_table(table); }), ErrorCode::corrupt);
  };
  bad([](SlotTable& t) { t.entries[0].slots[0] = 0; });
  bad([](SlotTable& t) { t.entries[0].slots[1] += 1; });
  bad([](SlotTable& t) { t.entries[0].slots[1] = 2 * kBlock; });
  bad([](SlotTable& t) { t.entries[1].slots[0] = 4 * kBlock; });
  bad([](SlotTable& t) { t.entries[1].slots[1] = 9 * kBlock; });
  bad([](SlotTable& t) { t.entries[1].slots[1] = INT64_MAX / kBlock * kBlock; });
  bad([](SlotTable& t) { t.entries[1].slots[1] = -kBlock; });
  bad([](SlotTable& t) { t.entries[1].slots[0] = t.entries[1].slots[1]; });
  bad([](SlotTable& t) { t.entries[0].current = 2; });
  bad([](SlotTable& t) { t.entries[0].slots.pop_back(); });
  bad([](SlotTable& t) { t.entries[1].slots.push_back(7 * kBlock); });
  bad([](SlotTable& t) { t.entries[0].current = -2; });
  bad([](SlotTable& t) { t.entries[0].bytes = -1; });
  bad([](SlotTable& t) { t.entries[0].bytes = INT64_MAX; });
  bad([](SlotTable& t) { t.bytes = kBlock; });
}

// The engine writes checksums until its last block is done: what it writes them to outlives it (AddressSanitizer sees where it doesn't).
TEST(SpillDisk, MayEndWhileTransfersAreUnderWay) {
  const TestFolder folder;
  constexpr int64_t kTransfers = 256;
  for (int repeat = 0; repeat < 20; ++repeat) {
    Arena arena(kTransfers * kBlock);
    SpillDisk disk({.folder = folder.path}, kTransfers * kBlock);
    for (int64_t at = 0; at < kTransfers; ++at) disk.write(at * kBlock, arena.data() + at * kBlock, kBlock);
    EXPECT_EQ(disk.bytes_written(), kTransfers * kBlock);
  }
}

TEST(SpillDisk, AnErrorInTheStateFileIsTold) {
  const TestFolder folder;
  Arena arena(4 * kBlock);
  SpillDisk disk({.folder = folder.path}, 4 * kBlock, 4 * kBlock,
                 std::make_unique<StateFile>(folder.path, std::vector<StateFile::Tensor>{{"a", 4 * kBlock}}, "o"),
                 {{.offset = 0, .name = "a"}});
  {
    const IoFaults faults(Fault::full, 1);
    EXPECT_EQ(code_of([&] {
                disk.write(0, arena.data(), 4 * kBlock);
                disk.finish();
              }),
              ErrorCode::io);
    EXPECT_TRUE(faults.happened());
  }
  EXPECT_EQ(code_of([&] { disk.finish(); }), ErrorCode::io);  // what failed once is never published
}

}  // namespace
}  // namespace ort_train
