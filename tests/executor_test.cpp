// The executor: planned, proven and run against node-by-node evaluation, bit for bit; errors, stopping, times, memory.

#include "exec/executor.h"

#include <gtest/gtest.h>

#include <cstring>

#include "exec/cpu_device.h"
#include "graph/op_def.h"
#include "passes/plan.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using fixtures::random_graph;
using fixtures::random_tensor;
using fixtures::Reference;

// One program with its memory. Whatever isn't persistent is filled with rubbish before each run.
struct Machine {
  Machine(const Program& program_, std::vector<const Graph*> graphs_, Workers& workers)
      : program(program_), graphs(graphs_), device(workers), executor(program_, graphs_, device), arena(program_.memory().bytes) {
    executor.attach(arena);
  }
  bool run(size_t entry, const std::map<ValueId, Tensor>& inputs) {
    std::memset(arena.data() + program.memory().persistent_bytes, 0xcd,
                static_cast<size_t>(program.memory().bytes - program.memory().persistent_bytes));
    for (const auto& [id, tensor] : inputs) std::memcpy(executor.input(entry, id).data(), tensor.bytes.data(), tensor.bytes.size());
    return executor.run(entry);
  }
  bool holds(size_t entry, ValueId value, const Tensor& tensor) {
    return std::memcmp(executor.bytes(entry, value).data(), tensor.bytes.data(), tensor.bytes.size()) == 0;
  }
  const Program& program;
  std::vector<const Graph*> graphs;
  CpuDevice device;
  Executor executor;
  Arena arena;
};

std::map<ValueId, Tensor> random_inputs(const Graph& graph, uint32_t seed, int64_t limit = 2) {
  std::map<ValueId, Tensor> inputs;
  for (ValueId id : graph.inputs) inputs[id] = random_tensor(graph.value(id).type(), seed++, limit);
  return inputs;
}

void set_parameters(const Graph& graph, Machine& machine, Reference& reference) {
  for (ValueId id : graph.parameters()) {
    const Value& value = graph.value(id);
    reference.state[value.name] = random_tensor(value.type(), 1000 + id);
    std::memcpy(machine.executor.persistent(value.name).data(), reference.state[value.name].bytes.data(),
                static_cast<size_t>(value.bytes()));
  }
}

void expect_state(Machine& machine, const Reference& reference, uint32_t seed) {
  for (const auto& [name, tensor] : reference.state) {
    EXPECT_EQ(0, std::memcmp(machine.executor.persistent(name).data(), tensor.bytes.data(), tensor.bytes.size()))
        << name << ", seed " << seed;
  }
}

TEST(Executor, RandomGraphsGiveTheBitsOfPlainEvaluation) {
  int64_t views = 0, in_place = 0, copies = 0, workspaces = 0, moved = 0, changes = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Graph graph = random_graph(seed, 20 + static_cast<int>(seed % 5) * 20, {.pieces = seed % 2 == 1});
    const Graph own = graph;
    Workers workers(1 + static_cast<int>(seed % 3));
    std::vector<ValueId> keep;
    for (ValueId id = seed % 7; id < graph.value_count(); id += 29) {
      if (graph.value(id).producer != kNone && graph.value(id).kind == ValueKind::activation) keep.push_back(id);
    }
    const Program program = plan({{.name = "run", .graph = &graph, .keep = keep}}, {.threads = workers.threads()});
    ASSERT_NO_THROW(verify(program, {&graph})) << seed;
    Machine machine(program, {&graph}, workers);
    Reference reference(workers);
    set_parameters(graph, machine, reference);
    for (uint32_t run = 0; run < 2; ++run) {
      const auto inputs = random_inputs(graph, seed * 7 + run);
      const auto values = reference.run(own, inputs);  // in the graph's own order
      ASSERT_TRUE(machine.run(0, inputs));
      for (ValueId id : program.entries[0].keep)
        ASSERT_TRUE(machine.holds(0, id, values.at(id))) << graph.value(id).name << ", seed " << seed << ", run " << run;
      expect_state(machine, reference, seed);
    }
    EXPECT_LE(machine.executor.measured_peak_bytes(), program.memory().bytes);
    EXPECT_GE(machine.executor.measured_peak_bytes(), program.memory().bytes - kPlaceAlignment);
    moved += graph.order() != own.order();
    for (const Instruction& instruction : program.entries[0].code) {
      const Node& node = graph.node(instruction.node);
      workspaces += instruction.workspace.bytes > 0;
      if (is_view(node, instruction))
        ++views;
      else if (!node.op->alias.empty())
        ++copies;
      else if (!node.op->writes.empty())
        ++changes;
      else
        for (const Place& input : instruction.inputs) in_place += input == instruction.outputs[0];
    }
  }
  EXPECT_GT(views, 500);  // each mechanism really occurred
  EXPECT_GT(in_place, 500);
  EXPECT_GT(copies, 20);
  EXPECT_GT(changes, 500);
  EXPECT_GT(workspaces, 200);
  EXPECT_GT(moved, 50);
}

// Forward, loss, backward, clipping and AdamW; and accumulation over micro-batches with the update as an entry of its own.
TEST(Executor, TrainingStepsGiveTheBitsOfPlainEvaluation) {
  const fixtures::GptShape shape{.layers = 2, .heads = 2, .width = 16, .vocabulary = 20, .batch = 2, .length = 8};
  for (const bool accumulate : {false, true}) {
    OptimizerSpec optimizer{.weight_decay = 0.1, .accumulate = accumulate};
    EntryGraph train = fixtures::gpt_training(shape, optimizer);
    std::vector<EntryGraph> jobs = {train};
    if (accumulate) jobs.push_back(build_update_graph(train, optimizer, {}));
    const std::vector<EntryGraph> own = jobs;
    std::vector<PlanEntry> entries;
    std::vector<const Graph*> graphs;
    for (EntryGraph& job : jobs) {
      entries.push_back({.name = job.graph.name, .graph = &job.graph, .keep = {}, .role = job.role});
      graphs.push_back(&job.graph);
    }
    Workers workers(2);
    const Program program = plan(entries, {.threads = 2});
    verify(program, graphs);
    Machine machine(program, graphs, workers);
    Reference reference(workers);
    set_parameters(jobs[0].graph, machine, reference);
    for (uint32_t step = 0; step < 3; ++step) {
      for (size_t entry = 0; entry < jobs.size(); ++entry) {
        for (uint32_t micro = 0; micro < (accumulate && entry == 0 ? 2u : 1u); ++micro) {
          const auto inputs = random_inputs(jobs[entry].graph, step * 10 + micro * 5, shape.vocabulary);
          const auto values = reference.run(own[entry].graph, inputs);
          ASSERT_TRUE(machine.run(entry, inputs));
          for (ValueId id : jobs[entry].graph.outputs)
            EXPECT_TRUE(machine.holds(entry, id, values.at(id))) << jobs[entry].graph.value(id).name;
          expect_state(machine, reference, step);
        }
      }
    }
    EXPECT_LT(machine.executor.prepared_kernels(), program.entries[0].code.size() * 3 / 4);  // equal specs share one
  }
}

struct ChainGraph {
  explicit ChainGraph(int length) {
    ValueId x = graph.add_value({.name = "x", .shape = {64}, .kind = ValueKind::input});
    graph.inputs = {x};
    for (int i = 0; i < length; ++i) x = Builder(graph).named(fmt::format("/n{}", i)).emit("Neg", {x});
    graph.outputs = {x};
  }
  Graph graph;
};

TEST(Executor, StopsBetweenInstructions) {
  ChainGraph chain(4);
  const Program program = plan({{.name = "run", .graph = &chain.graph, .keep = {}}}, {});
  Workers workers(1);
  Machine machine(program, {&chain.graph}, workers);
  std::atomic<bool> stop{true};
  EXPECT_FALSE(machine.executor.run(0, &stop));
  stop = false;
  EXPECT_TRUE(machine.executor.run(0, &stop));
}

TEST(Executor, MeasuresEachInstruction) {
  ChainGraph chain(4);
  const Program program = plan({{.name = "run", .graph = &chain.graph, .keep = {}}}, {});
  Workers workers(1);
  Machine machine(program, {&chain.graph}, workers);
  machine.executor.run(0);
  ASSERT_EQ(machine.executor.times(0).seconds.size(), 4u);
  for (double seconds : machine.executor.times(0).seconds) EXPECT_GT(seconds, 0);
}

TEST(Executor, KernelErrorsNameTheirNode) {
  Graph graph;
  const ValueId table = graph.add_constant(make_tensor<float>({2}, {1, 2}));
  graph.inputs = {graph.add_value({.name = "index", .dtype = DType::int64, .shape = {1}, .kind = ValueKind::input})};
  Builder builder(graph);
  graph.outputs = {builder.named("/embedding").emit("Gather", {table, graph.inputs[0]}, {{"axis", int64_t{0}}})};
  const Program program = plan({{.name = "run", .graph = &graph, .keep = {}}}, {});
  Workers workers(1);
  Machine machine(program, {&graph}, workers);
  for (int i = 0; i < 2; ++i) {  // and it is usable afterwards
    try {
      machine.run(0, {{graph.inputs[0], make_tensor<int64_t>({1}, {7})}});
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
      EXPECT_STREQ(e.what(), "[Gather '/embedding'] index 7 at position 0 is outside an axis of 2 elements");
    }
  }
}

TEST(Executor, UnknownNamesAndMissingMemoryAreErrors) {
  ChainGraph chain(2);
  const ValueId unused = chain.graph.add_value({.name = "unused", .shape = {4}});
  const Program program = plan({{.name = "run", .graph = &chain.graph, .keep = {}}}, {});
  Workers workers(1);
  CpuDevice device(workers);
  Executor executor(program, {&chain.graph}, device);
  EXPECT_THROW(executor.run(0), Error);
  EXPECT_THROW(executor.bytes(0, chain.graph.inputs[0]), Error);
  Arena small(program.memory().bytes - kPlaceAlignment), arena(program.memory().bytes);
  EXPECT_THROW(executor.attach(small), Error);
  executor.attach(arena);
  EXPECT_THROW(executor.persistent("nothing"), Error);
  EXPECT_THROW(executor.bytes(0, unused), Error);
}

TEST(Arena, IsZeroAndMovable) {
  Arena arena(100'000);
  EXPECT_EQ(arena.bytes(), 100'000);
  for (int64_t i = 0; i < arena.bytes(); ++i) ASSERT_EQ(arena.data()[i], std::byte{0});
  const std::byte* data = arena.data();
  const Arena other(std::move(arena));
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(arena.data(), nullptr);
  EXPECT_EQ(Arena(0).bytes(), 0);
}

TEST(Arena, WhatTheMachineHasNotIsAnError) {
  try {
    Arena arena(int64_t{1} << 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::budget);
    EXPECT_NE(std::string(e.what()).find("1152921504606846976 bytes"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ort_train
