// The verifier on streamed programs, by mutation: what breaks a copy or a wait must be caught; what isn't caught must not change a bit of
// what the program computes, however late the disk is.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "graph/op_def.h"
#include "passes/plan.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"
#include "tests/verify_support.h"

namespace ort_train {
namespace {

using fixtures::LazyDisk;
using fixtures::random_graph;
using fixtures::StreamMachine;
using namespace fixtures::mutations;

struct Streamed {
  // `share`: of the way from the least arena to one that holds everything; less where nothing would be on the disk then.
  explicit Streamed(uint32_t seed, double share, int nodes = 40)
      : graph(random_graph(seed, nodes, {.rows = 32, .width = 128, .near = 1, .saved = true, .pieces = seed >= 20})) {
    const Planner planner({{.name = "run", .graph = &graph, .keep = {}}}, {.threads = 2});
    const double least = static_cast<double>(planner.streamed(0, {}, {}).program.memory().bytes),
                 most = static_cast<double>(planner.all_in_memory().memory().bytes);
    for (int tries = 0; tries < 4 && program.file().bytes == 0; ++tries, share /= 4)
      program = planner.streamed(static_cast<int64_t>(least + share * (most - least)), {}, {}).program;
  }
  Graph graph;
  Program program;

  std::string complaint(const Program& p) const { return fixtures::complaint(p, graph); }
  std::vector<std::byte> result(const Program& p, uint32_t disk_seed) const {
    Workers workers(1);
    LazyDisk disk(p.file().bytes, disk_seed);
    StreamMachine machine(p, {&graph}, workers, &disk);
    machine.set_parameters(1);
    std::vector<std::byte> left;
    for (uint32_t run = 0; run < 2; ++run) machine.run(0, run, 2, left);
    machine.append_state(left);
    return left;
  }
};

class VerifyStream : public ::testing::TestWithParam<std::tuple<uint32_t, double>> {
 protected:
  const Streamed streamed{std::get<0>(GetParam()), std::get<1>(GetParam())};
  const Graph& graph = streamed.graph;
  const std::vector<Instruction>& code = streamed.program.entries[0].code;
  const std::vector<int32_t> waits = first_waits(streamed.program.entries[0]);
  const int32_t size = static_cast<int32_t>(code.size());
  int harmless_count = 0;

  // `sentence`: what the complaint has to say; empty: anything.
  void caught(const char* what, const std::function<void(Program&)>& change, const std::string& sentence = "") {
    Program mutant = streamed.program;
    change(mutant);
    const std::string complaint = streamed.complaint(mutant);
    EXPECT_NE(complaint, "") << what;
    EXPECT_NE(complaint.find(sentence), std::string::npos) << what << ": " << complaint;
  }
  // Now and then a copy brings back what is still there.
  void caught_or_harmless(const char* what, const std::function<void(Program&)>& change) {
    Program mutant = streamed.program;
    change(mutant);
    if (!streamed.complaint(mutant).empty()) return;
    ++harmless_count;
    EXPECT_EQ(fixtures::brute_force_difference(mutant, streamed.program, graph), "") << what;
    EXPECT_EQ(streamed.result(mutant, 1), streamed.result(streamed.program, 1)) << what;
  }
  const Instruction& instruction(int32_t i) const { return code[static_cast<size_t>(i)]; }
  // The first instruction behind `i` that computes with memory of that copy; -1: none.
  int32_t next_use(int32_t i, const Place& memory) const {
    for (++i; i < size; ++i) {
      if (is_copy(instruction(i))) continue;
      const auto uses = [&](const Place& p) { return p.bytes > 0 && p.offset >= memory.offset && p.end() <= memory.end(); };
      if (std::any_of(instruction(i).inputs.begin(), instruction(i).inputs.end(), uses)) return i;
      if (std::any_of(instruction(i).outputs.begin(), instruction(i).outputs.end(), uses)) return i;
    }
    return -1;
  }
};

TEST_P(VerifyStream, CatchesWhatIsWrongWithACopy) {
  ASSERT_EQ(streamed.complaint(streamed.program), "");
  Program same = streamed.program;  // the tools of this test leave a right program right
  reorder(same, graph, own_order(same));
  ASSERT_EQ(streamed.complaint(same), "");
  ASSERT_EQ(fixtures::brute_force_difference(same, streamed.program, graph), "");
  int copies = 0;
  for (int32_t i = 0; i < size; ++i) {
    if (!is_copy(instruction(i))) continue;
    ++copies;
    const bool reads = is_read(instruction(i));
    const int32_t waiter = waits[static_cast<size_t>(i)];  // or the end
    ASSERT_GT(waiter, i);
    caught_or_harmless("a copy that is gone", [&](Program& p) { drop(p, graph, {i}); });
    caught_or_harmless("a copy that goes the other way", [&](Program& p) {
      std::swap(at(p, i).from, at(p, i).to);
      at(p, i).queue = reads ? kWrite : kRead;
    });
    caught(
        "a copy on a queue of the other direction", [&](Program& p) { at(p, i).queue = reads ? kWrite : kRead; }, "its queue from");
    caught(
        "a copy on a queue of nodes", [&](Program& p) { at(p, i).queue = kCompute; }, "another kind");
    caught(
        "a queue that isn't there", [&](Program& p) { at(p, i).queue = static_cast<QueueId>(p.queues.size()); }, "isn't there");
    caught(
        "a copy within a space", [&](Program& p) { at(p, i).from.space = at(p, i).to.space; }, "copies from space");
    caught(
        "a space that isn't there", [&](Program& p) { at(p, i).from.space = static_cast<SpaceId>(p.spaces.size()); }, "copies from space");
    for (const int32_t never : {-1, i, i + 1, size + 1}) {
      caught(
          "a wait for what doesn't come before", [&](Program& p) { at(p, i).waits.push_back(never); }, "doesn't come before");
    }
    for (const int64_t by : {int64_t{1}, int64_t{64}, int64_t{512}, kSector / 2, -int64_t{64}}) {
      caught(
          "misaligned memory", [&](Program& p) { memory_place(at(p, i)).offset += by; }, "not in sectors");
      caught(
          "a misaligned place on the disk", [&](Program& p) { file_place(at(p, i)).offset += by; }, "not in sectors");
    }
    for (const int64_t by : {kSector, -kSector}) {
      caught("memory a sector away", [&](Program& p) { memory_place(at(p, i)).offset += by; });
      caught("a place on the disk a sector away", [&](Program& p) { file_place(at(p, i)).offset += by; });
      caught("another number of bytes", [&](Program& p) { at(p, i).from.bytes = at(p, i).to.bytes += by; });
    }
    caught(
        "bytes that don't agree", [&](Program& p) { file_place(at(p, i)).bytes -= 4; }, "bytes to");
    caught(
        "no bytes", [&](Program& p) { at(p, i).from.bytes = at(p, i).to.bytes = 0; }, "it copies 0 bytes");
    caught("memory that always stays", [&](Program& p) { memory_place(at(p, i)).offset = 0; });
    caught(
        "memory outside the arena", [&](Program& p) { memory_place(at(p, i)).offset = p.memory().bytes / kSector * kSector; },
        "outside the arena");
    caught(
        "a place outside the disk", [&](Program& p) { file_place(at(p, i)).offset = p.file().bytes; }, "outside the disk");
    for (int32_t other = 0; other < size; ++other) {
      if (!is_copy(instruction(other)) || file_of(instruction(other)) == file_of(instruction(i))) continue;
      if (memory_of(instruction(other)).bytes == memory_of(instruction(i)).bytes)
        caught("another's place on the disk", [&](Program& p) { file_place(at(p, i)).offset = file_of(instruction(other)).offset; });
    }
    if (!reads) continue;
    const int32_t use = next_use(i, memory_of(instruction(i)));
    ASSERT_GE(use, waiter);
    caught(
        "memory touched while it is read", [&](Program& p) { forget(p, i); }, "may still be writing");
    caught("a read that comes after its use", [&](Program& p) { move(p, graph, i, use); });
  }
  EXPECT_GE(copies, 3);
  EXPECT_LE(harmless_count, 8);
}

TEST_P(VerifyStream, CatchesReadsBeforeTheWriteIsDone) {
  int tried = 0;
  for (int32_t i = 0; i < size; ++i) {
    if (!is_write(instruction(i))) continue;
    for (int32_t read = i + 1; read < size; ++read) {
      if (!is_read(instruction(read)) || file_of(instruction(read)) != file_of(instruction(i))) continue;
      caught(
          "a read that doesn't wait for the write", [&](Program& p) { forget(p, i); }, "may still be");
      caught("a read before the write", [&](Program& p) { move(p, graph, read, i); });
      ++tried;
      break;
    }
  }
  EXPECT_GE(tried, std::get<1>(GetParam()) == 0 ? 1 : 0);
}

TEST_P(VerifyStream, CatchesWrongStatements) {
  const Program& program = streamed.program;
  caught(
      "a disk that is too small", [&](Program& p) { p.file().bytes -= kSector; }, "disk");
  caught(
      "no disk", [&](Program& p) { p.file().bytes = 0; }, "disk");
  caught(
      "spare memory over what stays", [&](Program& p) { p.spare.offset -= kSector; },
      program.memory().persistent_bytes > 0 ? "between runs" : "");
  caught(
      "spare memory outside", [&](Program& p) { p.spare.bytes += kSector; }, "outside the arena");
  caught(
      "a staging area that is too small", [&](Program& p) { p.staging[0].bytes -= kSector; }, "fit in the staging area");
  caught(
      "a staging area elsewhere", [&](Program& p) { p.staging[0].offset += p.memory().bytes; }, "outside the arena");
  std::vector<size_t> on_disk;
  for (size_t i = 0; i < program.persistent.size(); ++i) {
    if (is_in_file(program.persistent[i])) on_disk.push_back(i);
  }
  ASSERT_FALSE(on_disk.empty());
  for (size_t k = 0; k < on_disk.size(); ++k) {
    const size_t i = on_disk[k], other = on_disk[(k + 1) % on_disk.size()];
    if (other != i) {
      caught("two in one place of the disk", [&](Program& p) { p.persistent[i].home.offset = p.persistent[other].home.offset; });
      caught("one that begins in another's last sector", [&](Program& p) {
        const Place& taken = p.persistent[other].home;
        p.persistent[i].home.offset = taken.offset + whole_sectors(taken.bytes) - kSector;
        p.file().bytes += file_bytes(p.persistent[i]);
      });
    }
    caught(
        "a home elsewhere", [&](Program& p) { p.persistent[i].home.offset = p.file().bytes; }, "outside the disk");
    caught("a home elsewhere, inside", [&](Program& p) {
      p.persistent[i].home.offset = p.file().bytes;
      p.file().bytes += file_bytes(p.persistent[i]);
    });
    caught("a misaligned home", [&](Program& p) { p.persistent[i].home.offset += 64; });
    caught(
        "a home of another size", [&](Program& p) { p.persistent[i].home.bytes -= 4; }, "not of its size");
    caught("a home in memory", [&](Program& p) { p.persistent[i].home.space = kMemory, p.persistent[i].home.offset = 0; });
    caught(
        "a home in no space", [&](Program& p) { p.persistent[i].home.space = 2; }, "space");
    caught("no home", [&](Program& p) { p.persistent[i].home = {}; });
  }
  for (size_t i = 0; i < program.persistent.size(); ++i) {
    const Persistent& value = program.persistent[i];
    const bool is_written = std::any_of(code.begin(), code.end(), [&](const Instruction& of) {
      return is_copy(of) && is_write(of) && is_in_file(value) && file_of(of).offset == value.home.offset;
    });
    if (is_written)
      caught(
          "a write of what is read-only", [&](Program& p) { p.persistent[i].read_only = true; }, "read-only");
  }
  int around = 0;
  for (size_t s = 0; s < program.entries[0].storages.size(); ++s) {
    const Storage& storage = program.entries[0].storages[s];
    if (storage.purpose == Purpose::workspace || storage.first == storage.last) continue;
    if (is_copy(instruction(storage.first)) && memory_of(instruction(storage.first)).offset == storage.place.offset) {
      caught(
          "a storage that begins after its read", [&](Program& p) { entry(p).storages[s].first++, restate_peaks(p); }, "no storage");
      ++around;
    }
    const bool writes = std::any_of(code.begin() + storage.first, code.begin() + storage.last + 1,
                                    [&](const Instruction& i) { return is_write(i) && touches(storage, i); });
    if (writes) caught("a storage that ends before its write", [&](Program& p) { entry(p).storages[s].last--, restate_peaks(p); });
    if (!is_copy(instruction(storage.first)) && storage.first > 0)
      caught("a storage that ends with its making", [&](Program& p) { entry(p).storages[s].last = storage.first, restate_peaks(p); });
  }
  EXPECT_GT(around, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, VerifyStream,
                         ::testing::Combine(::testing::Values(4u, 2u, 3u, 6u, 10u, 13u, 20u, 21u, 22u, 23u), ::testing::Values(0.0, 0.3)));

// Of random programs, one change each: every wait dropped, every place shifted, instructions of two queues swapped.
TEST(VerifyStreamMutations, EachIsCaughtOrMakesNoDifference) {
  int programs = 0, waits = 0, waits_caught = 0, places = 0, places_caught = 0, swaps = 0, swaps_caught = 0, strict = 0;
  for (uint32_t seed = 100; programs < 200; ++seed) {
    const Streamed streamed(seed, seed % 3 * 0.15, 18);
    if (streamed.program.file().bytes == 0) continue;
    ++programs;
    ASSERT_EQ(streamed.complaint(streamed.program), "") << seed;
    const auto& code = streamed.program.entries[0].code;
    const auto is_caught = [&](const Program& mutant, const std::string& what) {
      const bool caught = !streamed.complaint(mutant).empty();
      const std::string difference = caught ? "" : fixtures::brute_force_difference(mutant, streamed.program, streamed.graph);
      EXPECT_EQ(difference, "") << "seed " << seed << ", " << what;
      return caught;
    };
    for (int32_t i = 0; i < static_cast<int32_t>(code.size()); ++i) {
      const Instruction& instruction = code[static_cast<size_t>(i)];
      for (size_t w = 0; w < instruction.waits.size(); ++w) {
        Program mutant = streamed.program;
        at(mutant, i).waits.erase(at(mutant, i).waits.begin() + static_cast<std::ptrdiff_t>(w));
        reorder(mutant, streamed.graph, own_order(mutant));
        const bool caught = is_caught(mutant, fmt::format("{} without its wait for {}", i, instruction.waits[w]));
        strict += caught && fixtures::brute_force_difference(mutant, streamed.program, streamed.graph).empty();
        waits_caught += caught;
        ++waits;
      }
      const auto shift = [&](auto place, int64_t by) {
        Program mutant = streamed.program;
        Place* const found = place(at(mutant, i));
        if (found->bytes == 0) return;
        found->offset += by;
        places_caught += is_caught(mutant, fmt::format("a place of {} shifted by {}", i, by));
        ++places;
      };
      const int64_t sign = i % 2 == 0 ? 1 : -1;
      shift([](Instruction& x) { return &x.from; }, sign * kSector);
      shift([](Instruction& x) { return &x.to; }, sign * kSector);
      shift([](Instruction& x) { return &x.workspace; }, sign * kPlaceAlignment);
      for (size_t k = 0; k < instruction.inputs.size(); ++k) shift([k](Instruction& x) { return &x.inputs[k]; }, sign * kPlaceAlignment);
      for (size_t k = 0; k < instruction.outputs.size(); ++k) shift([k](Instruction& x) { return &x.outputs[k]; }, sign * kPlaceAlignment);
      for (int32_t other = i + 1; other < std::min(i + 6, static_cast<int32_t>(code.size())); ++other) {
        if (code[static_cast<size_t>(other)].queue == instruction.queue) continue;
        Program mutant = streamed.program;
        swap_instructions(mutant, streamed.graph, i, other);
        swaps_caught += is_caught(mutant, fmt::format("{} and {} swapped", i, other));
        ++swaps;
      }
    }
  }
  std::printf("%d programs: %d of %d waits, %d of %d places, %d of %d swaps caught; %d dropped waits refused that make no difference\n",
              programs, waits_caught, waits, places_caught, places, swaps_caught, swaps, strict);
  EXPECT_GT(waits_caught, 1000);
  EXPECT_LT(waits_caught, waits);
  EXPECT_GT(places_caught * 100, places * 99);
  EXPECT_GT(swaps_caught, 1000);
  EXPECT_LT(swaps_caught, swaps);
  EXPECT_EQ(strict, 0);
}

// Random changes; whatever is accepted computes the same bits, on disks that are late in different ways.
TEST(VerifyStreamSoundness, WhatIsAcceptedComputesTheSameBits) {
  std::mt19937 random(3);
  const auto pick = [&](size_t n) { return static_cast<int32_t>(random() % n); };
  int caught = 0, harmless = 0, moved_transfers = 0;
  for (uint32_t seed = 20; seed < 32; ++seed) {
    const Streamed streamed(seed, seed % 3 * 0.15);
    ASSERT_EQ(streamed.complaint(streamed.program), "");
    const auto wanted = streamed.result(streamed.program, 1);
    const auto size = static_cast<size_t>(streamed.program.entries[0].code.size());
    std::vector<int32_t> moves;
    for (size_t i = 0; i < size; ++i) {
      if (is_copy(streamed.program.entries[0].code[i])) moves.push_back(static_cast<int32_t>(i));
    }
    ASSERT_FALSE(moves.empty()) << seed;
    for (int mutation = 0; mutation < 60; ++mutation) {
      Program mutant = streamed.program;
      const int32_t one = moves[static_cast<size_t>(pick(moves.size()))], two = moves[static_cast<size_t>(pick(moves.size()))];
      switch (mutation % 5) {
        case 0:
        case 1:  // a copy somewhere near
          move(mutant, streamed.graph, one, std::clamp(one + pick(9) - 4, 0, static_cast<int32_t>(size) - 1));
          break;
        case 2: {  // anything
          const int32_t from = pick(size);
          move(mutant, streamed.graph, from, std::clamp(from + pick(7) - 3, 0, static_cast<int32_t>(size) - 1));
          break;
        }
        case 3:  // two of them change places
          swap_instructions(mutant, streamed.graph, one, two);
          break;
        default:  // other memory, or another place on the disk
          memory_place(at(mutant, one)).offset += (pick(5) - 2) * kSector;
          file_place(at(mutant, two)).offset += (pick(5) - 2) * kSector;
      }
      if (!streamed.complaint(mutant).empty()) {
        ++caught;
        continue;
      }
      ++harmless;
      moved_transfers += mutation % 5 < 2;
      ASSERT_EQ(fixtures::brute_force_difference(mutant, streamed.program, streamed.graph), "")
          << "seed " << seed << ", mutation " << mutation;
      ASSERT_EQ(streamed.result(mutant, static_cast<uint32_t>(mutation)), wanted) << "seed " << seed << ", mutation " << mutation;
    }
  }
  std::printf("%d caught, %d harmless, %d of these with transfers moved\n", caught, harmless, moved_transfers);
  EXPECT_GT(caught, 200);  // and the test is not vacuous either way
  EXPECT_GT(harmless, 100);
  EXPECT_GT(moved_transfers, 50);
}

TEST(CopiesUnderWay, AreCountedFromTheOldestThatNothingHasWaitedFor) {
  const auto copy = [](std::vector<int32_t> waits = {}) { return Instruction{.action = Action::copy, .waits = std::move(waits)}; };
  const auto compute = [](std::vector<int32_t> waits = {}) { return Instruction{.action = Action::compute, .waits = std::move(waits)}; };
  Program program;
  EXPECT_EQ(copies_under_way(program), 0);
  program.entries.push_back({.name = "none", .code = {compute()}});
  EXPECT_EQ(copies_under_way(program), 0);
  program.entries.push_back({.name = "in order", .code = {copy(), copy({0}), compute({1})}});
  EXPECT_EQ(copies_under_way(program), 1);
  // The first is waited for last.
  program.entries.push_back({.name = "long", .code = {copy(), copy(), compute({1}), copy(), copy({3}), compute({0, 4})}});
  EXPECT_EQ(copies_under_way(program), 4);
}

}  // namespace
}  // namespace ort_train
