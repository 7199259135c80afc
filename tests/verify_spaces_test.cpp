// The verifier on programs in three spaces (device, host, file) and on six queues, by mutation: what isn't caught makes no difference, by
// an independent proof. And the adversary: what the verifier refuses shows on the discrete device.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "graph/op_def.h"
#include "tests/discrete_device.h"
#include "tests/paging_planner.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"
#include "tests/verify_support.h"

namespace ort_train {
namespace {

using fixtures::PagingOptions;
using namespace fixtures::mutations;

// A random graph as a program with so little memory that it needs all spaces, some of its nodes computed by the host.
struct Paged {
  explicit Paged(uint32_t seed, int nodes = 18) : graph(fixtures::random_graph(seed, nodes, {.rows = 8, .pieces = seed % 2 == 1})) {
    const std::vector<fixtures::PagedEntry> entries{{.name = "run", .graph = &graph}};
    PagingOptions options{.threads = 2, .seed = seed, .on_host = [&](const Node& node) { return (node.outputs[0] + seed) % 4 == 0; }};
    options.device_bytes = fixtures::least_limit(entries, options, &PagingOptions::device_bytes);
    options.host_bytes = fixtures::least_limit(entries, options, &PagingOptions::host_bytes);
    program = page(entries, options);
  }
  std::string complaint(const Program& p) const { return fixtures::complaint(p, graph); }

  Graph graph;
  Program program;
};

TEST(VerifySpacesMutations, EachIsCaughtOrMakesNoDifference) {
  struct Count {
    int tried = 0, caught = 0;
  } waits, places, spaces, queues, swaps;
  std::vector<int> copies(6);  // by queue
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Paged paged(seed);
    ASSERT_EQ(paged.complaint(paged.program), "") << seed;
    Program same = paged.program;  // the tools of this test leave a right program right
    reorder(same, paged.graph, own_order(same));
    ASSERT_EQ(paged.complaint(same), "") << seed;
    const auto& code = paged.program.entries[0].code;
    const auto tally = [&](Count& count, const Program& mutant, const std::string& what) {
      ++count.tried;
      if (!paged.complaint(mutant).empty()) {
        ++count.caught;
        return;
      }
      EXPECT_EQ(fixtures::brute_force_difference(mutant, paged.program, paged.graph), "") << "seed " << seed << ", " << what;
    };
    for (int32_t i = 0; i < static_cast<int32_t>(code.size()); ++i) {
      const Instruction& instruction = code[static_cast<size_t>(i)];
      ++copies[instruction.queue];
      for (size_t w = 0; w < instruction.waits.size(); ++w) {
        Program mutant = paged.program;
        at(mutant, i).waits.erase(at(mutant, i).waits.begin() + static_cast<std::ptrdiff_t>(w));
        reorder(mutant, paged.graph, own_order(mutant));
        tally(waits, mutant, fmt::format("{} without its wait for {}", i, instruction.waits[w]));
      }
      const auto each_place = [&](Count& count, const char* what, const std::function<void(Place&)>& change) {
        const auto try_one = [&](auto place) {
          Program mutant = paged.program;
          Place* const found = place(at(mutant, i));
          if (found->bytes == 0) return;
          change(*found);
          tally(count, mutant, fmt::format("a place of {} {}", i, what));
        };
        try_one([](Instruction& x) { return &x.from; });
        try_one([](Instruction& x) { return &x.to; });
        try_one([](Instruction& x) { return &x.workspace; });
        for (size_t k = 0; k < instruction.inputs.size(); ++k) try_one([k](Instruction& x) { return &x.inputs[k]; });
        for (size_t k = 0; k < instruction.outputs.size(); ++k) try_one([k](Instruction& x) { return &x.outputs[k]; });
      };
      const int64_t sign = i % 2 == 0 ? 1 : -1;
      each_place(places, "shifted", [&](Place& place) {
        place.offset += sign * (uses_file(instruction) ? kSector : paged.program.spaces[place.space].alignment);
      });
      each_place(spaces, "in another space", [&](Place& place) { place.space = static_cast<SpaceId>((place.space + 1 + i % 2) % 3); });
      for (QueueId queue = 0; queue < paged.program.queues.size(); ++queue) {
        if (queue == instruction.queue) continue;
        Program mutant = paged.program;
        at(mutant, i).queue = queue;
        tally(queues, mutant, fmt::format("{} on queue {}", i, queue));
      }
      for (int32_t other = i + 1; other < std::min(i + 5, static_cast<int32_t>(code.size())); ++other) {
        if (code[static_cast<size_t>(other)].queue == instruction.queue) continue;
        Program mutant = paged.program;
        swap_instructions(mutant, paged.graph, i, other);
        tally(swaps, mutant, fmt::format("{} and {} swapped", i, other));
      }
    }
  }
  std::printf("caught: %d of %d waits, %d of %d places, %d of %d spaces, %d of %d queues, %d of %d swaps\n", waits.caught, waits.tried,
              places.caught, places.tried, spaces.caught, spaces.tried, queues.caught, queues.tried, swaps.caught, swaps.tried);
  for (const int count : copies) EXPECT_GT(count, 200);  // each queue is used
  EXPECT_GT(waits.caught, 1000);
  EXPECT_GT(places.caught * 100, places.tried * 99);
  EXPECT_EQ(spaces.caught, spaces.tried);
  EXPECT_EQ(queues.caught, queues.tried);
  EXPECT_GT(swaps.caught, 1000);
  EXPECT_LT(swaps.caught, swaps.tried);
}

// What waits are for shows on the discrete device: it is no device on which anything goes well.
TEST(VerifySpacesMutations, DroppedWaitsShowOnTheDiscreteDevice) {
  int tried = 0, shown = 0;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const Paged paged(seed);
    const auto result = [&](const Program& program) {
      fixtures::DiscreteDevice device(program, {&paged.graph}, 1, seed);
      fixtures::LazyDisk disk(program.file().bytes, seed);
      fixtures::StreamMachine machine(program, {&paged.graph}, device, &disk);
      machine.set_parameters(1);
      std::vector<std::byte> left;
      machine.run(0, 1, 2, left);
      machine.append_state(left);
      return left;
    };
    const auto wanted = result(paged.program);
    const auto& code = paged.program.entries[0].code;
    for (int32_t i = 0; i < static_cast<int32_t>(code.size()); ++i) {
      for (size_t w = 0; w < code[static_cast<size_t>(i)].waits.size(); ++w) {
        Program mutant = paged.program;
        at(mutant, i).waits.erase(at(mutant, i).waits.begin() + static_cast<std::ptrdiff_t>(w));
        if (paged.complaint(mutant).find("may still be") == std::string::npos) continue;
        ++tried;
        try {
          shown += result(mutant) != wanted;
        } catch (const Error&) {  // the disk, or a kernel, has met rubbish
          ++shown;
        }
      }
    }
  }
  std::printf("%d of %d dropped waits show\n", shown, tried);
  EXPECT_GT(tried, 300);
  EXPECT_GT(shown * 4, tried);
}

// --- single rules, named --------------------------------------------------------------------------------------------------------------

constexpr uint32_t kSeeds = 60;

struct VerifySpaces : ::testing::TestWithParam<uint32_t> {
  const Paged paged{GetParam()};
  static inline int homes_ = 0, strangers_ = 0;  // in all seeds: homes that are brought back, and refused because it is another's

  void caught(const char* what, const std::string& sentence, const std::function<bool(Program&)>& change) {
    Program mutant = paged.program;
    ASSERT_TRUE(change(mutant)) << what;
    EXPECT_NE(paged.complaint(mutant).find(sentence), std::string::npos) << what << ": " << paged.complaint(mutant);
  }
  // The first instruction on a queue.
  static Instruction* first_on(Program& program, QueueId queue) {
    for (Instruction& instruction : program.entries[0].code) {
      if (instruction.queue == queue) return &instruction;
    }
    return nullptr;
  }
};

TEST_P(VerifySpaces, AreKept) {
  ASSERT_EQ(paged.complaint(paged.program), "");
  for (const SpaceId space : {kMemory, kHost}) {
    const std::string name = paged.program.spaces[space].name;
    caught("a peak that is too low", "its peak in the " + name, [&](Program& p) { return entry(p).peaks[space].bytes -= 64, true; });
    caught("a peak that is too high", "its peak in the " + name, [&](Program& p) { return entry(p).peaks[space].bytes += 64, true; });
    caught("a peak nowhere", "its peak in the " + name, [&](Program& p) { return entry(p).peaks[space].instruction = -1, true; });
    caught("a space that is too small", "", [&](Program& p) { return p.spaces[space].bytes /= 2, true; });
  }
  caught("peaks of fewer spaces", "states 2 peaks for 3 spaces", [](Program& p) { return entry(p).peaks.pop_back(), true; });
  caught("no memory first", "first spaces", [](Program& p) { return p.spaces[kMemory].kind = SpaceKind::file, true; });
  caught("no file second", "first spaces", [](Program& p) { return p.spaces[kFile].kind = SpaceKind::host, true; });
  caught("an input that the host can't touch", "can't fill the input", [](Program& p) {
    p.spaces[kHost].kind = SpaceKind::device;  // what it is used for between runs is elsewhere
    for (Place* place : {&p.staging[0], &p.staging[1], &p.spare}) place->space = 3;
    p.spaces.push_back({.name = "more", .bytes = p.spare.end()});
    entry(p).peaks.emplace_back();
    return true;
  });
  caught("a node of the host's in the device's memory", "its queue computes in the device", [](Program& p) {
    Instruction* const found = first_on(p, kHostCompute);
    if (found != nullptr) found->queue = kCompute;
    return found != nullptr;
  });
  caught("a node of the device's in the host's memory", "its queue computes in the host", [](Program& p) {
    Instruction* const found = first_on(p, kCompute);
    if (found != nullptr) found->queue = kHostCompute;
    return found != nullptr;
  });
  for (const QueueId queue : {kUp, kDown}) {
    caught("a copy that goes the other way", "its queue from", [&](Program& p) {
      Instruction* const found = first_on(p, queue);
      if (found != nullptr) std::swap(found->from, found->to);
      return found != nullptr;
    });
  }
  caught("a staging area in the device's memory", "between runs", [](Program& p) { return p.staging[0].space = kMemory, true; });
  caught("a staging area in no space", "between runs", [](Program& p) { return p.staging[1].space = 3, true; });
  caught("a staging area that is too small", "fit in the staging area", [](Program& p) { return p.staging[0].bytes = 0, true; });
}

TEST_P(VerifySpaces, OfWhatTheHostLooksAt) {
  const auto lives_on_device = [](const Persistent& value) { return value.home.space == kMemory && value.home.bytes > 0; };
  const auto& persistent = paged.program.persistent;
  if (std::any_of(persistent.begin(), persistent.end(), [&](const Persistent& v) { return lives_on_device(v) && !v.initial; }))
    caught("spare memory over the staging area", "lies over the staging area",
           [](Program& p) { return p.spare.offset = p.staging[0].offset, true; });
  if (std::any_of(persistent.begin(), persistent.end(), [&](const Persistent& v) { return lives_on_device(v) && v.initial; }))
    caught("no way for constants", "no memory to bring", [](Program& p) { return p.spare = {}, true; });
  const Entry& e = paged.program.entries[0];
  const auto kept_in = [&](SpaceId space) {
    return std::find_if(e.keep.begin(), e.keep.end(), [&](ValueId id) {
      const Place& place = e.value_places[id];
      return place.bytes > 0 && place.space == space && place.offset >= paged.program.spaces[space].persistent_bytes;
    });
  };
  if (kept_in(kMemory) == e.keep.end() || kept_in(kHost) == e.keep.end()) return;
  caught("a staging area over what is kept", "lies over what", [&](Program& p) {
    p.staging[0].offset = e.value_places[*kept_in(kHost)].offset;
    return true;
  });
}

// What lives across runs in one memory and is used in the other has to be brought home, as it is then.
TEST_P(VerifySpaces, OfWhatLivesAcrossRuns) {
  int tried = 0;
  const auto& code = paged.program.entries[0].code;
  for (int32_t i = 0; i < static_cast<int32_t>(code.size()); ++i) {
    const Instruction& copy = code[static_cast<size_t>(i)];
    if (!is_copy(copy) || uses_file(copy) || copy.to.offset >= paged.program.spaces[copy.to.space].persistent_bytes) continue;
    ++tried;
    caught("a home that stays as it was", "", [&](Program& p) { return drop(p, paged.graph, {i}), true; });
    for (const Persistent& other : paged.program.persistent) {
      if (other.home.space != copy.to.space || other.home.offset == copy.to.offset || other.home.bytes != copy.to.bytes) continue;
      Program mutant = paged.program;
      at(mutant, i).to = other.home;
      const std::string complaint = paged.complaint(mutant);
      EXPECT_NE(complaint, "") << "another's home";
      strangers_ += complaint.find("over what lives across runs") != std::string::npos;
    }
  }
  homes_ += tried;
  if (GetParam() == kSeeds - 1) {
    EXPECT_GT(homes_, 10);
    EXPECT_GT(strangers_, 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, VerifySpaces, ::testing::Range(0u, kSeeds));

}  // namespace
}  // namespace ort_train
