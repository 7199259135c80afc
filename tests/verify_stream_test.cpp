// The verifier on streamed programs, by mutation: what breaks a transfer must be caught; what isn't caught must not change a bit of what
// the program computes, however late the disk is.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "passes/plan.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"

namespace ort_train {
namespace {

using testing::LazyDisk;
using testing::random_graph;
using testing::StreamMachine;

struct Streamed {
  // `share`: of the way from the least arena to one that holds everything; less where nothing would be on the disk then.
  explicit Streamed(uint32_t seed, double share)
      : graph(random_graph(seed, 40, {.rows = 32, .width = 128, .near = 1, .saved = true, .pieces = seed >= 20})) {
    const Planner planner({{.name = "run", .graph = &graph, .keep = {}}}, {.threads = 2});
    const double least = static_cast<double>(planner.streamed(0, {}, {}).program.arena_bytes),
                 most = static_cast<double>(planner.resident().arena_bytes);
    for (int tries = 0; tries < 4 && program.disk_bytes == 0; ++tries, share /= 4)
      program = planner.streamed(static_cast<int64_t>(least + share * (most - least)), {}, {}).program;
  }
  Graph graph;
  Program program;

  std::string complaint(const Program& p) const { return testing::complaint(p, graph); }
  std::vector<std::byte> result(const Program& p, uint32_t disk_seed) const {
    Workers workers(1);
    LazyDisk disk(p.disk_bytes, disk_seed);
    StreamMachine machine(p, {&graph}, workers, &disk);
    machine.set_parameters(1);
    std::vector<std::byte> left;
    for (uint32_t run = 0; run < 2; ++run) machine.run(0, run, 2, left);
    machine.append_state(left);
    return left;
  }
};

Entry& entry(Program& program) { return program.entries[0]; }
Instruction& at(Program& program, int32_t i) { return program.entries[0].code[static_cast<size_t>(i)]; }
bool is_transfer(const Instruction& i) { return i.action == Action::read || i.action == Action::write; }

bool touches(const Entry& e, const Storage& storage, const Instruction& instruction) {
  const auto here = [&](const Place& p) { return p.bytes > 0 && p.offset >= storage.place.offset && p.end() <= storage.place.end(); };
  if (is_transfer(instruction)) return here(instruction.memory);
  if (instruction.action == Action::wait) return here(e.code[static_cast<size_t>(instruction.transfer)].memory);
  return here(instruction.workspace) || std::any_of(instruction.inputs.begin(), instruction.inputs.end(), here) ||
         std::any_of(instruction.outputs.begin(), instruction.outputs.end(), here);
}

// Makes the program's statements of itself those of its code, so that only what it does can be wrong with it.
void restate_peak(Program& program) {
  Entry& e = entry(program);
  std::vector<int64_t> live(e.code.size() + 1, program.persistent_bytes);
  for (const Storage& storage : e.storages) {
    for (int32_t i = storage.first; i <= storage.last; ++i) live[static_cast<size_t>(i)] += aligned(storage.place.bytes);
  }
  const auto peak = std::max_element(live.begin(), live.end());
  e.peak_live_bytes = *peak;
  e.peak_instruction = static_cast<int32_t>(peak - live.begin());
}

// Gives the instructions the order `order` (old numbers); those that it hasn't are dropped. Lives follow the instructions.
void reorder(Program& program, const Graph& graph, const std::vector<int32_t>& order) {
  Entry& e = entry(program);
  const Entry before = e;
  const auto end = static_cast<int32_t>(order.size()) - 1;
  std::vector<int32_t> to(e.code.size(), -1);
  e.code.clear();
  for (int32_t old : order) {
    to[static_cast<size_t>(old)] = static_cast<int32_t>(e.code.size());
    e.code.push_back(before.code[static_cast<size_t>(old)]);
  }
  for (Instruction& instruction : e.code) {
    if (instruction.action == Action::wait) instruction.transfer = to[static_cast<size_t>(instruction.transfer)];
  }
  for (size_t s = 0; s < e.storages.size(); ++s) {
    const Storage& old = before.storages[s];
    int32_t first = end, last = 0;
    for (int32_t i = old.first; i <= old.last; ++i) {
      if (to[static_cast<size_t>(i)] < 0 || !touches(before, old, before.code[static_cast<size_t>(i)])) continue;
      first = std::min(first, to[static_cast<size_t>(i)]);
      last = std::max(last, to[static_cast<size_t>(i)]);
    }
    const auto any = [&](auto test) { return std::any_of(old.values.begin(), old.values.end(), test); };
    if (any([&](ValueId v) { return graph.value(v).kind == ValueKind::input && graph.value(v).producer == kNone; })) first = 0;
    if (any([&](ValueId v) { return std::count(e.keep.begin(), e.keep.end(), v) > 0; })) last = end;
    e.storages[s].first = std::min(first, last);
    e.storages[s].last = last;
  }
  restate_peak(program);
}
std::vector<int32_t> own_order(const Program& program) {
  std::vector<int32_t> order(program.entries[0].code.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}
void drop(Program& program, const Graph& graph, const std::vector<int32_t>& instructions) {
  std::vector<int32_t> order = own_order(program);
  std::erase_if(order, [&](int32_t i) { return std::count(instructions.begin(), instructions.end(), i) > 0; });
  reorder(program, graph, order);
}
// `from` runs right before (or, moved forwards, right behind) what is at `to` now.
void move(Program& program, const Graph& graph, int32_t from, int32_t to) {
  std::vector<int32_t> order = own_order(program);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  reorder(program, graph, order);
}

int32_t wait_of(const Program& program, int32_t transfer) {
  const auto& code = program.entries[0].code;
  for (int32_t i = 0; i < static_cast<int32_t>(code.size()); ++i) {
    if (code[static_cast<size_t>(i)].action == Action::wait && code[static_cast<size_t>(i)].transfer == transfer) return i;
  }
  return -1;
}

class VerifyStream : public ::testing::TestWithParam<std::tuple<uint32_t, double>> {
 protected:
  const Streamed streamed{std::get<0>(GetParam()), std::get<1>(GetParam())};
  const Graph& graph = streamed.graph;
  const std::vector<Instruction>& code = streamed.program.entries[0].code;
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
  // Now and then a transfer brings back what is still there.
  void caught_or_harmless(const char* what, const std::function<void(Program&)>& change) {
    Program mutant = streamed.program;
    change(mutant);
    if (!streamed.complaint(mutant).empty()) return;
    ++harmless_count;
    EXPECT_EQ(streamed.result(mutant, 1), streamed.result(streamed.program, 1)) << what;
  }
  const Instruction& instruction(int32_t i) const { return code[static_cast<size_t>(i)]; }
  // The first instruction behind `i` that computes with memory of that transfer; -1: none.
  int32_t next_use(int32_t i, const Place& memory) const {
    for (++i; i < size; ++i) {
      if (instruction(i).action != Action::compute) continue;
      const auto uses = [&](const Place& p) { return p.bytes > 0 && p.offset >= memory.offset && p.end() <= memory.end(); };
      if (std::any_of(instruction(i).inputs.begin(), instruction(i).inputs.end(), uses)) return i;
      if (std::any_of(instruction(i).outputs.begin(), instruction(i).outputs.end(), uses)) return i;
    }
    return -1;
  }
};

TEST_P(VerifyStream, CatchesWhatIsWrongWithATransfer) {
  ASSERT_EQ(streamed.complaint(streamed.program), "");
  Program same = streamed.program;  // the tools of this test leave a right program right
  reorder(same, graph, own_order(same));
  ASSERT_EQ(streamed.complaint(same), "");
  int transfers = 0;
  for (int32_t i = 0; i < size; ++i) {
    if (!is_transfer(instruction(i))) continue;
    ++transfers;
    const bool reads = instruction(i).action == Action::read;
    const int32_t wait = wait_of(streamed.program, i);
    ASSERT_GT(wait, i);
    caught("a wait that is gone", [&](Program& p) { drop(p, graph, {wait}); });
    caught_or_harmless("a transfer that is gone with its wait", [&](Program& p) { drop(p, graph, {i, wait}); });
    caught(
        "a wait before its transfer", [&](Program& p) { move(p, graph, wait, i); }, "which moves nothing now");
    caught("a transfer and its wait, swapped", [&](Program& p) {
      std::vector<int32_t> order = own_order(p);
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(wait)]);
      reorder(p, graph, order);
    });
    caught("a wait for the instruction before", [&](Program& p) { at(p, wait).transfer = i - 1; });
    caught(
        "a wait for nothing", [&](Program& p) { at(p, wait).transfer = -1; }, "moves nothing now");
    caught(
        "a wait for what isn't there", [&](Program& p) { at(p, wait).transfer = size + 1; }, "moves nothing now");
    caught_or_harmless("a transfer that goes the other way", [&](Program& p) { at(p, i).action = reads ? Action::write : Action::read; });
    for (const int64_t by : {int64_t{1}, int64_t{64}, int64_t{512}, kSector / 2, -int64_t{64}}) {
      caught(
          "misaligned memory", [&](Program& p) { at(p, i).memory.offset += by; }, "it begins at");
      caught(
          "a misaligned place on the disk", [&](Program& p) { at(p, i).disk.offset += by; }, "it begins at");
    }
    for (const int64_t by : {kSector, -kSector}) {
      caught("memory a sector away", [&](Program& p) { at(p, i).memory.offset += by; });
      caught("a place on the disk a sector away", [&](Program& p) { at(p, i).disk.offset += by; });
      caught("another number of bytes", [&](Program& p) { at(p, i).memory.bytes = at(p, i).disk.bytes += by; });
    }
    caught(
        "bytes that don't agree", [&](Program& p) { at(p, i).disk.bytes -= 4; }, "bytes to or from");
    caught(
        "no bytes", [&](Program& p) { at(p, i).memory = at(p, i).disk = {}; }, "it moves 0 bytes");
    caught("memory that always stays", [&](Program& p) { at(p, i).memory.offset = 0; });
    caught(
        "memory outside the arena", [&](Program& p) { at(p, i).memory.offset = p.arena_bytes / kSector * kSector; }, "outside the arena");
    caught(
        "a place outside the disk", [&](Program& p) { at(p, i).disk.offset = p.disk_bytes; }, "outside the disk");
    for (int32_t other = 0; other < size; ++other) {
      if (!is_transfer(instruction(other)) || instruction(other).disk == instruction(i).disk) continue;
      if (instruction(other).memory.bytes == instruction(i).memory.bytes)
        caught("another's place on the disk", [&](Program& p) { at(p, i).disk = instruction(other).disk; });
      caught(
          "a wait for another transfer", [&](Program& p) { at(p, wait).transfer = other; }, "");
    }
    const int32_t use = next_use(wait, instruction(i).memory);
    if (!reads) continue;
    ASSERT_GT(use, wait);
    caught("memory touched while it is read", [&](Program& p) { move(p, graph, wait, use); });
    caught("a read that comes after its use", [&](Program& p) { move(p, graph, i, use); });
  }
  EXPECT_GE(transfers, 3);
  EXPECT_LE(harmless_count, 2);
}

TEST_P(VerifyStream, CatchesReadsBeforeTheWriteIsDone) {
  int tried = 0;
  for (int32_t i = 0; i < size; ++i) {
    if (instruction(i).action != Action::write) continue;
    const int32_t wait = wait_of(streamed.program, i);
    for (int32_t read = wait + 1; read < size; ++read) {
      if (instruction(read).action != Action::read || instruction(read).disk != instruction(i).disk) continue;
      caught("a read before the wait for the write", [&](Program& p) { move(p, graph, read, wait); });
      caught("a read before the write", [&](Program& p) { move(p, graph, read, i); });
      // The wait for the write goes behind the read instead; where its memory is another's by then, that is wrong too.
      caught("a wait behind the read", [&](Program& p) { move(p, graph, wait, read); });
      ++tried;
      break;
    }
  }
  EXPECT_GE(tried, std::get<1>(GetParam()) == 0 ? 1 : 0);
}

TEST_P(VerifyStream, CatchesWrongStatements) {
  const Program& program = streamed.program;
  caught(
      "a disk that is too small", [&](Program& p) { p.disk_bytes -= kSector; }, "disk");
  caught(
      "no disk", [&](Program& p) { p.disk_bytes = 0; }, "disk");
  std::vector<size_t> on_disk;
  for (size_t i = 0; i < program.persistent.size(); ++i) {
    if (program.persistent[i].disk.bytes > 0) on_disk.push_back(i);
  }
  ASSERT_FALSE(on_disk.empty());
  for (size_t k = 0; k < on_disk.size(); ++k) {
    const size_t i = on_disk[k], other = on_disk[(k + 1) % on_disk.size()];
    if (other != i) {
      caught("two in one place of the disk", [&](Program& p) { p.persistent[i].disk.offset = p.persistent[other].disk.offset; });
      caught("one that begins in another's last sector", [&](Program& p) {
        const Place& taken = p.persistent[other].disk;
        p.persistent[i].disk.offset = taken.offset + whole_sectors(taken.bytes) - kSector;
        p.disk_bytes += whole_sectors(p.persistent[i].disk.bytes);
      });
    }
    caught(
        "a home elsewhere", [&](Program& p) { p.persistent[i].disk.offset = p.disk_bytes; }, "outside the disk");
    caught("a home elsewhere, inside", [&](Program& p) {
      p.persistent[i].disk.offset = p.disk_bytes;
      p.disk_bytes += whole_sectors(p.persistent[i].disk.bytes);
    });
    caught("a misaligned home", [&](Program& p) { p.persistent[i].disk.offset += 64; });
    caught(
        "a home of another size", [&](Program& p) { p.persistent[i].disk.bytes -= 4; }, "not of its size");
    caught(
        "two homes", [&](Program& p) { p.persistent[i].place = {.offset = 0, .bytes = p.persistent[i].disk.bytes}; }, "two places");
    caught("no home", [&](Program& p) { p.persistent[i].disk = {}; });
  }
  int around = 0;
  for (size_t s = 0; s < program.entries[0].storages.size(); ++s) {
    const Storage& storage = program.entries[0].storages[s];
    if (storage.purpose == Purpose::workspace || storage.first == storage.last) continue;
    if (is_transfer(instruction(storage.first)) && instruction(storage.first).memory.offset == storage.place.offset) {
      caught(
          "a storage that begins after its read", [&](Program& p) { entry(p).storages[s].first++, restate_peak(p); }, "no storage");
      ++around;
    }
    if (instruction(storage.last).action == Action::wait && touches(program.entries[0], storage, instruction(storage.last)))
      caught("a storage that ends before its write", [&](Program& p) { entry(p).storages[s].last--, restate_peak(p); });
    if (instruction(storage.first).action == Action::compute && storage.first > 0)
      caught("a storage that ends with its making", [&](Program& p) { entry(p).storages[s].last = storage.first, restate_peak(p); });
  }
  EXPECT_GT(around, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, VerifyStream,
                         ::testing::Combine(::testing::Values(4u, 2u, 3u, 6u, 10u, 13u, 20u, 21u, 22u, 23u), ::testing::Values(0.0, 0.3)));

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
    std::vector<int32_t> moves;  // all that isn't computing
    for (size_t i = 0; i < size; ++i) {
      if (streamed.program.entries[0].code[i].action != Action::compute) moves.push_back(static_cast<int32_t>(i));
    }
    ASSERT_FALSE(moves.empty()) << seed;
    for (int mutation = 0; mutation < 60; ++mutation) {
      Program mutant = streamed.program;
      const int32_t one = moves[static_cast<size_t>(pick(moves.size()))], two = moves[static_cast<size_t>(pick(moves.size()))];
      switch (mutation % 5) {
        case 0:
        case 1:  // a transfer or a wait somewhere near
          move(mutant, streamed.graph, one, std::clamp(one + pick(9) - 4, 0, static_cast<int32_t>(size) - 1));
          break;
        case 2: {  // anything
          const int32_t from = pick(size);
          move(mutant, streamed.graph, from, std::clamp(from + pick(7) - 3, 0, static_cast<int32_t>(size) - 1));
          break;
        }
        case 3: {  // two of them change places
          std::vector<int32_t> order = own_order(mutant);
          std::swap(order[static_cast<size_t>(one)], order[static_cast<size_t>(two)]);
          reorder(mutant, streamed.graph, order);
          break;
        }
        default:  // other memory, or another place on the disk
          at(mutant, one).memory.offset += (pick(5) - 2) * kSector;
          at(mutant, two).disk.offset += (pick(5) - 2) * kSector;
      }
      if (!streamed.complaint(mutant).empty()) {
        ++caught;
        continue;
      }
      ++harmless;
      moved_transfers += mutation % 5 < 2;
      ASSERT_EQ(streamed.result(mutant, static_cast<uint32_t>(mutation)), wanted) << "seed " << seed << ", mutation " << mutation;
    }
  }
  std::printf("%d caught, %d harmless, %d of these with transfers moved\n", caught, harmless, moved_transfers);
  EXPECT_GT(caught, 200);  // and the test is not vacuous either way
  EXPECT_GT(harmless, 100);
  EXPECT_GT(moved_transfers, 50);
}

TEST(TransfersUnderWay, AreCountedFromTheOldestThatNobodyHasWaitedFor) {
  const auto begin = [](Action action) { return Instruction{.action = action}; };
  const auto wait = [](int32_t transfer) { return Instruction{.action = Action::wait, .transfer = transfer}; };
  Program program;
  EXPECT_EQ(transfers_under_way(program), 0);
  program.entries.push_back({.name = "none", .code = {begin(Action::compute)}});
  EXPECT_EQ(transfers_under_way(program), 0);
  program.entries.push_back({.name = "in order", .code = {begin(Action::read), wait(0), begin(Action::write), wait(2)}});
  EXPECT_EQ(transfers_under_way(program), 1);
  // The first is waited for last.
  program.entries.push_back({.name = "long",
                             .code = {begin(Action::write), begin(Action::read), wait(1), begin(Action::compute), begin(Action::read),
                                      wait(4), begin(Action::read), wait(0), wait(6)}});
  EXPECT_EQ(transfers_under_way(program), 4);
}

}  // namespace
}  // namespace ort_train
