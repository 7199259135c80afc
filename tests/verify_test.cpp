// The verifier, by mutation: what breaks a program must be caught; what isn't caught must not change a single bit of what it computes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "exec/cpu_device.h"
#include "exec/executor.h"
#include "graph/op_def.h"
#include "passes/plan.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using fixtures::complaint;
using fixtures::random_graph;
using fixtures::random_tensor;

struct Planned {
  explicit Planned(Graph graph_, std::vector<ValueId> keep = {}) : graph(std::move(graph_)) {
    program = plan({{.name = "run", .graph = &graph, .keep = std::move(keep)}}, {.threads = 2});
  }
  Graph graph;
  Program program;

  std::string complaint(const Program& p) const { return fixtures::complaint(p, graph); }
};

// Each of these changes must be caught wherever it is made.
void expect_caught(const Planned& planned, const char* what, const std::function<bool(Program&)>& change) {
  Program mutant = planned.program;
  if (!change(mutant)) return;
  EXPECT_NE(planned.complaint(mutant), "") << what;
}

int32_t position_of(const Program& program, NodeId node) {
  const auto& code = program.entries[0].code;
  for (size_t at = 0; at < code.size(); ++at) {
    if (code[at].node == node) return static_cast<int32_t>(at);
  }
  return -1;
}

// Moves a value's whole storage: in the table, in the values' places and in each instruction.
void shift_storage(Program& program, size_t storage, int64_t by) {
  Entry& entry = program.entries[0];
  const Storage before = entry.storages[storage];
  entry.storages[storage].place.offset += by;
  if (before.purpose == Purpose::workspace) {
    entry.code[static_cast<size_t>(before.first)].workspace.offset += by;
    return;
  }
  for (ValueId value : before.values) entry.value_places[value].offset += by;
}
void refresh_instructions(Program& program, const Graph& graph) {
  Entry& entry = program.entries[0];
  for (Instruction& instruction : entry.code) {
    const Node& node = graph.node(instruction.node);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      instruction.inputs[i] = node.inputs[i] == kNone ? Place{} : entry.value_places[node.inputs[i]];
    for (size_t i = 0; i < node.outputs.size(); ++i)
      instruction.outputs[i] = node.outputs[i] == kNone ? Place{} : entry.value_places[node.outputs[i]];
  }
}

class VerifyEachInstruction : public ::testing::TestWithParam<uint32_t> {};

TEST_P(VerifyEachInstruction, CatchesEveryKindOfDamage) {
  const Planned planned(random_graph(GetParam(), 60, {.pieces = GetParam() % 2 == 1}));
  ASSERT_EQ(planned.complaint(planned.program), "");
  const auto& code = planned.program.entries[0].code;
  const auto at = [](Program& p, size_t i) -> Instruction& { return p.entries[0].code[i]; };
  for (size_t i = 0; i < code.size(); ++i) {
    for (int64_t by : {-64, 64, 1, 32}) {
      for (size_t k = 0; k < code[i].inputs.size(); ++k) {
        if (code[i].inputs[k].bytes > 0)
          expect_caught(planned, "a shifted input", [&](Program& p) { return at(p, i).inputs[k].offset += by, true; });
      }
      for (size_t k = 0; k < code[i].outputs.size(); ++k) {
        if (code[i].outputs[k].bytes > 0)
          expect_caught(planned, "a shifted output", [&](Program& p) { return at(p, i).outputs[k].offset += by, true; });
      }
      if (code[i].workspace.bytes > 0)
        expect_caught(planned, "a shifted workspace", [&](Program& p) { return at(p, i).workspace.offset += by, true; });
    }
    if (code[i].workspace.bytes > 0) {
      expect_caught(planned, "a shrunk workspace", [&](Program& p) { return at(p, i).workspace.bytes -= 1, true; });
      expect_caught(planned, "a missing workspace", [&](Program& p) { return at(p, i).workspace = {}, true; });
      expect_caught(planned, "a workspace over the output",
                    [&](Program& p) { return at(p, i).workspace.offset = code[i].outputs[0].offset, true; });
      expect_caught(planned, "a workspace over the weights", [&](Program& p) { return at(p, i).workspace.offset = 0, true; });
    }
    expect_caught(planned, "a dropped instruction",
                  [&](Program& p) { return p.entries[0].code.erase(p.entries[0].code.begin() + static_cast<std::ptrdiff_t>(i)), true; });
    expect_caught(planned, "a repeated instruction", [&](Program& p) { return p.entries[0].code.push_back(code[i]), true; });
    expect_caught(planned, "another instruction's node",
                  [&](Program& p) { return at(p, i).node = code[(i + 1) % code.size()].node, true; });
    expect_caught(planned, "a node that isn't there", [&](Program& p) { return at(p, i).node = 1'000'000, true; });
    expect_caught(planned, "a missing output", [&](Program& p) { return at(p, i).outputs.pop_back(), true; });
    expect_caught(planned, "an output with fewer bytes", [&](Program& p) { return at(p, i).outputs[0].bytes -= 4, true; });
  }
}

// A reader behind the writer of what it reads, and a writer before the last reader of what it overwrites.
TEST_P(VerifyEachInstruction, CatchesBrokenOrders) {
  const Planned planned(random_graph(GetParam(), 60, {.pieces = GetParam() % 2 == 1}));
  const Graph& graph = planned.graph;
  int tried = 0;
  const auto swap = [&](NodeId first, NodeId second, const char* what) {
    expect_caught(planned, what, [&](Program& p) {
      auto& code = p.entries[0].code;
      const int32_t a = position_of(p, first), b = position_of(p, second);
      if (a < 0 || b <= a) return false;
      ++tried;
      std::rotate(code.begin() + a, code.begin() + b, code.begin() + b + 1);  // `second` runs right before `first`
      return true;
    });
  };
  const auto readers = graph.readers();
  for (ValueId value = 0; value < graph.value_count(); ++value) {
    for (NodeId reader : readers[value]) {
      if (graph.value(value).producer != kNone && graph.value(value).bytes() > 0)
        swap(graph.value(value).producer, reader, "a read before its write");
      for (NodeId other : readers[value]) {
        const Node& node = graph.node(other);
        const bool changes = std::any_of(node.op->writes.begin(), node.op->writes.end(), [&](const Alias& w) {
          return static_cast<size_t>(w.input) < node.inputs.size() && node.inputs[static_cast<size_t>(w.input)] == value;
        });
        if (changes && other != reader) swap(reader, other, "a read after the change");
      }
    }
  }
  EXPECT_GT(tried, 60);
}

TEST_P(VerifyEachInstruction, CatchesWrongStatements) {
  const Planned planned(random_graph(GetParam(), 60, {.pieces = GetParam() % 2 == 1}));
  const Program& program = planned.program;
  const auto entry = [](Program& p) -> Entry& { return p.entries[0]; };
  expect_caught(planned, "an arena that is too small", [&](Program& p) { return p.memory().bytes -= 64, true; });
  expect_caught(planned, "a peak that is too low", [&](Program& p) { return entry(p).peaks[kMemory].bytes -= 64, true; });
  expect_caught(planned, "a peak that is too high", [&](Program& p) { return entry(p).peaks[kMemory].bytes += 64, true; });
  expect_caught(planned, "a peak nowhere", [&](Program& p) { return entry(p).peaks[kMemory].instruction = -1, true; });
  expect_caught(planned, "fewer threads' workspaces", [&](Program& p) { return p.threads = 0, true; });
  expect_caught(planned, "a smaller persistent part", [&](Program& p) { return p.memory().persistent_bytes -= 64, true; });
  expect_caught(planned, "a persistent part beyond the arena",
                [&](Program& p) { return p.memory().persistent_bytes = p.memory().bytes + 64, true; });
  expect_caught(planned, "no entry", [&](Program& p) { return p.entries.clear(), true; });
  for (size_t i = 0; i < program.persistent.size(); ++i) {
    expect_caught(planned, "a persistent value that is gone",
                  [&](Program& p) { return p.persistent.erase(p.persistent.begin() + static_cast<std::ptrdiff_t>(i)), true; });
    expect_caught(planned, "a persistent value elsewhere", [&](Program& p) { return p.persistent[i].home.offset += 64, true; });
    expect_caught(planned, "a persistent value misaligned", [&](Program& p) { return p.persistent[i].home.offset += 4, true; });
    expect_caught(planned, "two persistent values in one place",
                  [&](Program& p) { return p.persistent[i].home.offset = p.persistent[(i + 1) % p.persistent.size()].home.offset, true; });
    expect_caught(planned, "a persistent value of another type", [&](Program& p) { return p.persistent[i].type.shape = {1, 2, 3}, true; });
    if (program.persistent[i].initial) {
      expect_caught(planned, "another constant", [&](Program& p) {
        Tensor other = *program.persistent[i].initial;
        other.bytes[0] ^= std::byte{1};
        p.persistent[i].initial = std::make_shared<const Tensor>(std::move(other));
        return true;
      });
    }
  }
  const auto last = static_cast<int32_t>(program.entries[0].code.size()) - 1;
  for (size_t s = 0; s < program.entries[0].storages.size(); ++s) {
    const Storage& storage = program.entries[0].storages[s];
    expect_caught(planned, "a storage that begins too late",
                  [&](Program& p) { return storage.first < storage.last ? entry(p).storages[s].first++, true : false; });
    // One that lives a moment longer is a harmless statement unless it changes the peak or overlaps; one that lives shorter is wrong.
    expect_caught(planned, "a storage that ends too early",
                  [&](Program& p) { return storage.first < storage.last ? entry(p).storages[s].last--, true : false; });
    expect_caught(planned, "a storage beyond the end", [&](Program& p) { return entry(p).storages[s].last = last + 1, true; });
    expect_caught(planned, "a storage that is gone",
                  [&](Program& p) { return entry(p).storages.erase(entry(p).storages.begin() + static_cast<std::ptrdiff_t>(s)), true; });
    expect_caught(planned, "a storage elsewhere", [&](Program& p) { return entry(p).storages[s].place.offset += 64, true; });
    expect_caught(planned, "a storage over the weights",
                  [&](Program& p) { return shift_storage(p, s, -storage.place.offset), refresh_instructions(p, planned.graph), true; });
  }
  for (ValueId value = 0; value < planned.graph.value_count(); ++value) {
    if (program.entries[0].value_places[value].bytes == 0) continue;
    expect_caught(planned, "a value's place that isn't", [&](Program& p) { return entry(p).value_places[value].offset += 64, true; });
    expect_caught(planned, "a value without place", [&](Program& p) { return entry(p).value_places[value] = {}, true; });
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, VerifyEachInstruction, ::testing::Range(0u, 8u));

// --- soundness: accepted means the same bits -----------------------------------------------------------------------------------------

// What a program leaves: everything that is kept and everything that lives across runs.
std::vector<std::byte> result_of(const Program& program, const Graph& graph, Workers& workers) {
  CpuDevice device(workers);
  Executor executor(program, {&graph}, device);
  Arena arena(program.memory().bytes);
  executor.attach(arena);
  std::memset(arena.data() + program.memory().persistent_bytes, 0xcd,
              static_cast<size_t>(program.memory().bytes - program.memory().persistent_bytes));
  uint32_t seed = 1;
  std::vector<std::span<const std::byte>> left;
  const auto fill = [&](std::span<std::byte> place, const Value& value) {
    std::memcpy(place.data(), random_tensor(value.type(), seed++).bytes.data(), place.size());
  };
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(id);
    if (value.producer != kNone || value.kind == ValueKind::constant) continue;
    if (value.kind == ValueKind::input) {
      if (program.entries[0].value_places[id].bytes > 0) fill(executor.input(0, id), value);
      continue;
    }
    fill(executor.persistent(value.name), value);
    left.push_back(executor.persistent(value.name));
  }
  executor.run(0);
  for (ValueId id : program.entries[0].keep) left.push_back(executor.bytes(0, id));
  std::vector<std::byte> bytes;
  for (const auto& part : left) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

// Fills in the statements that a mutant makes of itself, so that only what it does can be wrong with it.
void restate(Program& program) {
  Entry& entry = program.entries[0];
  std::vector<int64_t> live(entry.code.size() + 1, program.memory().persistent_bytes);
  for (const Storage& storage : entry.storages) {
    for (int32_t at = storage.first; at <= storage.last; ++at) live[static_cast<size_t>(at)] += aligned(storage.place.bytes);
    program.memory().bytes = std::max(program.memory().bytes, aligned(storage.place.end()));
  }
  const auto peak = std::max_element(live.begin(), live.end());
  entry.peaks[kMemory].bytes = *peak;
  entry.peaks[kMemory].instruction = static_cast<int32_t>(peak - live.begin());
}

// Lifetimes as the mutant's own order makes them.
void recompute_lifetimes(Program& program, const Graph& graph) {
  Entry& entry = program.entries[0];
  std::vector<int32_t> first(graph.value_count(), -1), last(graph.value_count(), -1);
  const auto end = static_cast<int32_t>(entry.code.size()) - 1;
  std::vector<int32_t> workspace_at;
  for (int32_t at = 0; at <= end; ++at) {
    const Node& node = graph.node(entry.code[static_cast<size_t>(at)].node);
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (ValueId value : *values) {
        if (value == kNone) continue;
        if (first[value] < 0) first[value] = at;
        last[value] = at;
      }
    }
    if (entry.code[static_cast<size_t>(at)].workspace.bytes > 0) workspace_at.push_back(at);
  }
  for (ValueId value : entry.keep) last[value] = end;
  for (ValueId value = 0; value < graph.value_count(); ++value) {
    if (graph.value(value).kind == ValueKind::input && graph.value(value).producer == kNone)
      first[value] = 0, last[value] = std::max(last[value], 0);
  }
  size_t workspace = 0;
  for (Storage& storage : entry.storages) {
    if (storage.purpose == Purpose::workspace) {
      storage.first = storage.last = workspace_at[workspace++];
      storage.place = entry.code[static_cast<size_t>(storage.first)].workspace;
      continue;
    }
    storage.first = end;
    storage.last = 0;
    for (ValueId value : storage.values) {
      storage.first = std::min(storage.first, first[value]);
      storage.last = std::max(storage.last, last[value]);
    }
  }
}

TEST(VerifySoundness, WhatIsAcceptedComputesTheSameBits) {
  Workers workers(1);
  std::mt19937 random(11);
  const auto pick = [&](size_t n) { return random() % n; };
  int caught = 0, harmless = 0, moved_harmless = 0;
  for (uint32_t seed = 100; seed < 160; ++seed) {
    const Planned planned(random_graph(seed, 40, {.pieces = seed % 2 == 1}));
    const auto wanted = result_of(planned.program, planned.graph, workers);
    for (int mutation = 0; mutation < 60; ++mutation) {
      Program mutant = planned.program;
      Entry& entry = mutant.entries[0];
      const bool address = pick(2) == 0;
      if (address) {  // a storage somewhere else, everywhere in the program
        const size_t s = pick(entry.storages.size());
        const int64_t room = (mutant.memory().bytes - mutant.memory().persistent_bytes) / kPlaceAlignment;
        const int64_t to = mutant.memory().persistent_bytes + static_cast<int64_t>(pick(static_cast<size_t>(room) + 2)) * kPlaceAlignment;
        shift_storage(mutant, s, to - entry.storages[s].place.offset);
        refresh_instructions(mutant, planned.graph);
      } else {  // an instruction somewhere else
        const size_t from = pick(entry.code.size()), to = std::min(entry.code.size() - 1, from + 1 + pick(4));
        std::rotate(entry.code.begin() + static_cast<std::ptrdiff_t>(from), entry.code.begin() + static_cast<std::ptrdiff_t>(from) + 1,
                    entry.code.begin() + static_cast<std::ptrdiff_t>(to) + 1);
        recompute_lifetimes(mutant, planned.graph);
      }
      restate(mutant);
      if (!planned.complaint(mutant).empty()) {
        ++caught;
        continue;
      }
      ++harmless;
      moved_harmless += !address;
      ASSERT_EQ(result_of(mutant, planned.graph, workers), wanted)
          << "seed " << seed << ", mutation " << mutation << (address ? " (address)" : " (order)");
    }
  }
  EXPECT_GT(caught, 1000);  // and the test is not vacuous either way
  EXPECT_GT(harmless, 300);
  EXPECT_GT(moved_harmless, 100);
}

// --- single rules, named ------------------------------------------------------------------------------------------------------------

struct Small {
  Graph graph;
  ValueId sum, x, view, y, z;
  Program program;
  Small() {
    sum = graph.add_value({.name = "sum", .shape = {4, 16}, .kind = ValueKind::optimizer_state});
    x = graph.add_value({.name = "x", .shape = {4, 16}, .kind = ValueKind::input});
    graph.inputs = {x};
    Builder b(graph);
    view = b.named("/view").emit("Reshape", {x}, {{"shape", Shape{64}}});
    y = b.named("/y").emit("Tanh", {view});
    z = b.named("/z").emit("Softmax", {b.reshape(y, {4, 16})}, {{"axis", int64_t{-1}}});
    graph.value(b.named("/sum").emit("Accumulate", {sum, z})).kind = ValueKind::optimizer_state;
    graph.outputs = {z};
    program = plan({{.name = "run", .graph = &graph, .keep = {}}}, {});
  }
};

TEST(Verify, SaysWhatIsWrongAndWhere) {
  Small s;
  ASSERT_EQ(complaint(s.program, s.graph), "");
  Program late = s.program;
  std::rotate(late.entries[0].code.begin(), late.entries[0].code.begin() + 1, late.entries[0].code.end());
  for (Instruction& instruction : late.entries[0].code) {
    for (int32_t& earlier : instruction.waits) --earlier;
  }
  EXPECT_NE(complaint(late, s.graph).find("Tanh '/y'"), std::string::npos) << complaint(late, s.graph);
  EXPECT_NE(complaint(late, s.graph).find("read before it is written"), std::string::npos);

  Program elsewhere = s.program;
  elsewhere.entries[0].code.back().outputs[0].offset += 256;
  elsewhere.entries[0].value_places[s.graph.node(elsewhere.entries[0].code.back().node).outputs[0]].offset += 256;
  EXPECT_NE(complaint(elsewhere, s.graph).find("not in its place"), std::string::npos) << complaint(elsewhere, s.graph);
}

TEST(Verify, InPlaceNeedsTheOpsConsent) {  // a MatMul over its own input
  Graph graph;
  const ValueId x = graph.add_value({.name = "x", .shape = {8, 8}, .kind = ValueKind::input});
  const ValueId w = graph.add_value({.name = "w", .shape = {8, 8}, .kind = ValueKind::input});
  graph.inputs = {x, w};
  const ValueId y = Builder(graph).emit("MatMul", {x, w});
  graph.outputs = {y};
  Program program = plan({{.name = "run", .graph = &graph, .keep = {}}}, {});
  EXPECT_EQ(complaint(program, graph), "");
  Entry& entry = program.entries[0];
  entry.value_places[y] = entry.code[0].outputs[0] = entry.value_places[x];
  EXPECT_NE(complaint(program, graph).find("lies over the input 'x'"), std::string::npos) << complaint(program, graph);
}

TEST(Verify, TakesTheKernelsWordForWorkspaces) {
  Graph graph;
  const ValueId x = graph.add_value({.name = "x", .shape = {300'000}, .kind = ValueKind::input});
  graph.inputs = {x};
  graph.outputs = {Builder(graph).emit("SquaredError", {x, x})};
  Program program = plan({{.name = "run", .graph = &graph, .keep = {}}}, {});
  ASSERT_GT(program.entries[0].code[0].workspace.bytes, 0);
  program.entries[0].code[0].workspace.bytes -= 8;
  for (Storage& storage : program.entries[0].storages) storage.place.bytes -= storage.purpose == Purpose::workspace ? 8 : 0;
  EXPECT_NE(complaint(program, graph).find("workspace"), std::string::npos);
}

// A step that accumulates, the update that it leaves, and an evaluation.
struct Roles {
  std::vector<EntryGraph> jobs;
  std::vector<const Graph*> graphs;
  Program program;
  Roles() {
    const fixtures::GptShape shape{.layers = 1, .heads = 2, .width = 16, .vocabulary = 20, .batch = 2, .length = 8};
    const OptimizerSpec optimizer{.accumulate = true};
    jobs.push_back(fixtures::gpt_training(shape, optimizer));
    jobs.push_back(build_update_graph(jobs[0], optimizer, {}));
    jobs.push_back(build_evaluate_graph(fixtures::gpt_forward(shape), {}, {}));
    std::vector<PlanEntry> entries;
    for (EntryGraph& job : jobs) {
      entries.push_back({.name = job.graph.name, .graph = &job.graph, .role = job.role});
      graphs.push_back(&job.graph);
    }
    program = plan(entries, {});
  }
  std::string complaint(const Program& changed) const {
    try {
      verify(changed, graphs);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }
};

TEST(VerifyRoles, AnUpdateIsMadeOnce) {
  const Roles roles;
  ASSERT_EQ(roles.complaint(roles.program), "");
  for (size_t i = 0; i < roles.program.entries.size(); ++i) {
    for (bool EntryRole::*flag : {&EntryRole::completes_update, &EntryRole::leaves_update, &EntryRole::adds_up}) {
      Program changed = roles.program;
      changed.entries[i].role.*flag = !(changed.entries[i].role.*flag);
      EXPECT_NE(roles.complaint(changed), "") << i;
    }
  }
  Program evaluates = roles.program;
  evaluates.entries[1].role.kind = EntryKind::evaluate;
  EXPECT_NE(roles.complaint(evaluates).find("changes what lives across runs"), std::string::npos) << roles.complaint(evaluates);
  Program never = roles.program;
  never.entries.erase(never.entries.begin() + 1);
  try {
    verify(never, {roles.graphs[0], roles.graphs[2]});
    ADD_FAILURE() << "no entry makes the update";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no entry makes"), std::string::npos) << e.what();
  }
}

TEST(VerifyRoles, AnEntryThatMayNotFollowIsNotRun) {
  const Roles roles;
  Workers workers(1);
  CpuDevice device(workers);
  Executor executor(roles.program, roles.graphs, device);
  Arena arena(roles.program.memory().bytes);
  executor.attach(arena);
  constexpr size_t kTrain = 0, kUpdate = 1, kEvaluate = 2;
  const auto run = [&](size_t entry) {
    std::memset(arena.data() + roles.program.memory().persistent_bytes, 0,  // its inputs
                static_cast<size_t>(roles.program.memory().bytes - roles.program.memory().persistent_bytes));
    return executor.run(entry);
  };
  EXPECT_THROW(run(kUpdate), Error) << "there is nothing to update with";
  EXPECT_TRUE(run(kEvaluate));
  EXPECT_TRUE(run(kTrain));
  EXPECT_TRUE(run(kTrain));
  EXPECT_THROW(run(kEvaluate), Error) << "the update is not made yet";
  EXPECT_TRUE(run(kUpdate));
  EXPECT_THROW(run(kUpdate), Error) << "it is made";
  EXPECT_TRUE(run(kEvaluate));
}

}  // namespace
}  // namespace ort_train
