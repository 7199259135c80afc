// Devices with memory of their own: programs in three spaces have the bits of the processor on each of them (devices()), whatever the
// budgets, wherever updates are computed and, on the discrete one, however late copies are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "exec/cpu_device.h"
#include "frontend/import.h"
#include "graph/op_def.h"
#include "offload/file_range.h"
#include "passes/build.h"
#include "passes/plan.h"
#include "test_paths.h"
#include "tests/discrete_device.h"
#include "tests/paging_planner.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"

namespace ort_train {
namespace {

using fixtures::DiscreteDevice;
using fixtures::LazyDisk;
using fixtures::PagedEntry;
using fixtures::PagingOptions;
using fixtures::StreamMachine;
using Bytes = std::vector<std::byte>;

constexpr int kThreads = 2;

// The devices that are tested here.
struct TestDevice {
  std::string name;
  std::function<std::unique_ptr<Device>(const Program&, const std::vector<const Graph*>&, int threads, uint32_t seed)> make;
};
const std::vector<TestDevice>& devices() {
  static const std::vector<TestDevice> all{
      {"discrete",
       [](const Program& program, const std::vector<const Graph*>& graphs, int threads, uint32_t seed) -> std::unique_ptr<Device> {
         return std::make_unique<DiscreteDevice>(program, graphs, threads, seed);
       }}};
  return all;
}

bool is_update(const Node& node) { return node.stage == Stage::update && !node.op->writes.empty(); }

// The entries of a job, and its weights.
struct Job {
  std::vector<EntryGraph> entries;
  std::map<std::string, Tensor> weights{};  // random, where there are none
  int64_t limit = 2;                        // of tokens and labels

  std::vector<PagedEntry> paged() const {
    std::vector<PagedEntry> all;
    for (const EntryGraph& entry : entries) all.push_back({.name = entry.graph.name, .graph = &entry.graph, .role = entry.role});
    return all;
  }
  std::vector<const Graph*> graphs() const {
    std::vector<const Graph*> all;
    for (const EntryGraph& entry : entries) all.push_back(&entry.graph);
    return all;
  }
};

// Of a model of tests/golden: training with clipping and AdamW, evaluation.
Job golden_job(const std::string& name, const std::map<std::string, int64_t>& shapes, const OptimizerSpec& optimizer, int64_t limit) {
  Workers workers(kThreads);
  const std::string path = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/" + name + ".onnx";
  Imported imported = import_model(path, {.shapes = shapes}, workers);
  optimize_forward(imported.graph, {});
  Job job{.entries = {build_train_graph(imported.graph, {}, optimizer, {})}, .limit = limit};
  if (optimizer.accumulate) job.entries.push_back(build_update_graph(job.entries[0], optimizer, {}));
  job.entries.push_back(build_evaluate_graph(imported.graph, {}, {}));
  for (const Weight& weight : imported.weights) {
    const ValueId id = imported.graph.find_value(weight.parameter);
    if (id == kNone) continue;
    Tensor tensor(imported.graph.value(id).dtype, imported.graph.value(id).shape);
    read_range(weight.places[0].bytes, tensor.bytes);
    job.weights.emplace(weight.parameter, std::move(tensor));
  }
  return job;
}

// What some steps leave: the outputs of each run, and everything that lives across runs.
Bytes train(const Job& job, StreamMachine& machine, int steps) {
  machine.set_parameters(1);
  for (const auto& [name, tensor] : job.weights) {
    std::memcpy(machine.executor().blank(name).data(), tensor.bytes.data(), tensor.bytes.size());
    machine.executor().changed(name);
  }
  Bytes left;
  uint32_t number = 0;
  const auto run = [&](size_t entry) {
    const Graph& graph = job.entries[entry].graph;
    std::map<ValueId, uint32_t> seeds;
    for (const ValueId id : graph.inputs) seeds[id] = number + static_cast<uint32_t>(graph.value(id).name.size());
    ++number;
    machine.run(entry, seeds, job.limit, graph.outputs, left);
  };
  for (int step = 0; step < steps; ++step) {
    for (size_t entry = 0; entry < job.entries.size(); ++entry) {
      if (job.entries[entry].role.leaves_update) run(entry);  // a micro-batch before
      run(entry);
    }
  }
  machine.append_state(left);
  return left;
}

Bytes train_on_processor(const Job& job, int steps) {
  Job own = job;  // plan() changes its order
  std::vector<PlanEntry> entries;
  for (EntryGraph& entry : own.entries)
    entries.push_back({.name = entry.graph.name, .graph = &entry.graph, .keep = {}, .role = entry.role});
  const Program program = plan(entries, {.threads = kThreads});
  Workers workers(kThreads);
  StreamMachine machine(program, own.graphs(), workers, nullptr);
  return train(own, machine, steps);
}

struct Counts {
  int64_t up = 0, down = 0, read = 0, written = 0, on_host = 0, on_device = 0;
  explicit Counts(const Program& program) {
    for (const Entry& entry : program.entries) {
      for (const Instruction& instruction : entry.code) {
        up += instruction.queue == kUp;
        down += instruction.queue == kDown;
        read += instruction.queue == kRead;
        written += instruction.queue == kWrite;
        on_host += instruction.queue == kHostCompute;
        on_device += instruction.queue == kCompute;
      }
    }
  }
};

// A job as a program in three spaces, on a device.
struct OnDevice {
  OnDevice(const Job& job, const PagingOptions& options) : program(page(job.paged(), options)) {
    verify(program, job.graphs(), fixtures::kernels_of_pages);
  }
  const Program program;

  Bytes train(const Job& job, const TestDevice& on, int steps, uint32_t seed) {
    const std::unique_ptr<Device> device = on.make(program, job.graphs(), kThreads, seed);
    LazyDisk disk(program.file().bytes, seed);
    StreamMachine machine(program, job.graphs(), *device, &disk);
    const Bytes left = ort_train::train(job, machine, steps);
    for (const SpaceId space : {kMemory, kHost}) {
      EXPECT_LE(machine.executor().measured_peak_bytes(space), program.spaces[space].bytes);
    }
    if (const auto* const discrete = dynamic_cast<DiscreteDevice*>(device.get())) {
      const DiscreteDevice::Tricks tricks = discrete->tricks();
      EXPECT_GT(tricks.late_copies, 0);
      late += tricks.late_copies + tricks.late_nodes;
      poisoned += tricks.poisoned_sources;
    }
    return left;
  }
  int64_t late = 0, poisoned = 0;  // of the discrete device's
};

// --- whole jobs -----------------------------------------------------------------------------------------------------------------------

struct JobCase {
  std::string name, model;
  std::map<std::string, int64_t> shapes;
  int64_t limit;  // of tokens and labels
  OptimizerSpec optimizer{};
};

class DeviceJobs : public ::testing::TestWithParam<std::tuple<TestDevice, JobCase>> {};

TEST_P(DeviceJobs, HaveTheBitsOfTheProcessor) {
  constexpr int kSteps = 3;
  const auto& [device, of] = GetParam();
  const Job job = golden_job(of.model, of.shapes, of.optimizer, of.limit);
  const Bytes wanted = train_on_processor(job, kSteps);
  uint32_t seed = 0;
  const std::map<std::string, std::function<bool(const Node&)>> places{
      {"device", nullptr}, {"host", is_update}, {"both", [](const Node& node) {
                                                   return is_update(node) && std::hash<std::string>{}(node.name) % 2 == 0;
                                                 }}};
  for (const auto& [where, on_host] : places) {
    PagingOptions options{.threads = kThreads, .seed = seed, .on_host = on_host};
    PagingOptions least = options;
    least.device_bytes = fixtures::least_limit(job.paged(), options, &PagingOptions::device_bytes);
    least.host_bytes = fixtures::least_limit(job.paged(), least, &PagingOptions::host_bytes);
    PagingOptions between = least;
    between.device_bytes *= 2;
    between.host_bytes *= 2;
    int64_t copies_before = -1;
    for (const auto& [name, chosen] :
         {std::pair{"plenty", options}, std::pair{"twice the least", between}, std::pair{"the least", least}}) {
      OnDevice run(job, chosen);
      const Counts counts(run.program);
      EXPECT_EQ(counts.on_host > 0, where != "device");
      EXPECT_GT(counts.up, 0);
      EXPECT_GT(counts.down, 0);
      EXPECT_GT(counts.up + counts.down + counts.read + counts.written, copies_before) << name;
      copies_before = counts.up + counts.down + counts.read + counts.written;
      for (int i = 0; i < 2; ++i) ASSERT_EQ(run.train(job, device, kSteps, ++seed), wanted) << where << ", " << name;
      if (device.name == "discrete") {
        EXPECT_GT(run.poisoned, 0);
      }
      std::printf(
          "updates on the %s, %s: device %lld, host %lld, file %lld bytes; %lld up, %lld down, %lld read, %lld written; %lld poisoned\n",
          where.c_str(), name, static_cast<long long>(run.program.memory().bytes), static_cast<long long>(run.program.spaces[kHost].bytes),
          static_cast<long long>(run.program.file().bytes), static_cast<long long>(counts.up), static_cast<long long>(counts.down),
          static_cast<long long>(counts.read), static_cast<long long>(counts.written), static_cast<long long>(run.poisoned));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceJobs,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(JobCase{"gpt2", "gpt2-dynamo-20-folded", {{"batch", 2}, {"sequence", 8}}, 16},
                                                              JobCase{"cnn", "cnn-dynamo-20-live", {{"batch", 2}}, 4},
                                                              JobCase{"gpt2_accumulating",
                                                                      "gpt2-torchscript-17-sdpa",
                                                                      {{"batch", 2}, {"sequence", 8}},
                                                                      16,
                                                                      {.weight_decay = 0.1, .accumulate = true}})),
                         [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name; });

// --- random programs ------------------------------------------------------------------------------------------------------------------

TEST(DeviceRandom, GraphsHaveTheBitsOfTheProcessor) {
  int64_t on_host = 0, late = 0, poisoned = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Job job{
        .entries = {EntryGraph{.graph = fixtures::random_graph(seed, 30 + static_cast<int>(seed % 4) * 10, {.pieces = seed % 2 == 1})}}};
    PagingOptions options{.threads = kThreads, .seed = seed, .on_host = [&](const Node& node) {
                            return (seed % 3 == 0 ? 0 : std::hash<std::string>{}(node.name) + node.outputs[0]) % 3 == 1;
                          }};
    if (seed % 2 == 0) {
      options.device_bytes = fixtures::least_limit(job.paged(), options, &PagingOptions::device_bytes);
      options.host_bytes = fixtures::least_limit(job.paged(), options, &PagingOptions::host_bytes);
    }
    OnDevice run(job, options);
    for (const TestDevice& device : devices()) ASSERT_EQ(run.train(job, device, 2, seed), train_on_processor(job, 2)) << seed;
    on_host += Counts(run.program).on_host;
    late += run.late;
    poisoned += run.poisoned;
  }
  EXPECT_GT(on_host, 200);
  EXPECT_GT(late, 1000);
  EXPECT_GT(poisoned, 300);
}

// The processor's programs, with a disk and with views, on a device that computes in the host's memory while others wait for it.
TEST(DeviceRandom, ProgramsOfTheProcessorRunInTheBackground) {
  int64_t views = 0, copies = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    EntryGraph entry{.graph = fixtures::random_graph(seed, 40, {.rows = 32, .width = 128, .near = 1, .saved = true, .pieces = true})};
    Job job{.entries = {std::move(entry)}};
    const Planner planner({{.name = "run", .graph = &job.entries[0].graph, .keep = {}}}, {.threads = kThreads});
    const Program program = planner.streamed(0, {}, {}).program;
    const auto result = [&](Device& device) {
      LazyDisk disk(program.file().bytes, seed);
      StreamMachine machine(program, job.graphs(), device, &disk);
      return train(job, machine, 2);
    };
    Workers workers(kThreads);
    CpuDevice processor(workers);
    DiscreteDevice discrete(program, job.graphs(), kThreads, seed);
    ASSERT_EQ(result(discrete), result(processor)) << seed;
    for (const Instruction& instruction : program.entries[0].code) {
      copies += is_copy(instruction);
      views += !is_copy(instruction) && is_view(job.entries[0].graph.node(instruction.node), instruction);
    }
  }
  EXPECT_GT(views, 200);
  EXPECT_GT(copies, 200);
}

// --- the executor and its memory ------------------------------------------------------------------------------------------------------

struct Chain {
  explicit Chain(int length) {
    ValueId x = graph.add_value({.name = "x", .shape = {64}, .kind = ValueKind::input});
    graph.inputs = {x};
    for (int i = 0; i < length; ++i) x = Builder(graph).named(fmt::format("/n{}", i)).emit("Neg", {x});
    graph.outputs = {x};
  }
  std::vector<PagedEntry> paged() const { return {{.name = "run", .graph = &graph}}; }
  Graph graph;
};

TEST(DeviceMemory, TrapsWhereTheHostTouchesIt) {
  const Chain chain(2);
  const Program program = page(chain.paged(), {});
  DiscreteDevice device(program, {&chain.graph}, 1, 0);
  const auto memory = device.allocate(SpaceKind::device, 4096);
  EXPECT_DEATH(static_cast<volatile std::byte*>(memory->data())[100] = std::byte{1}, "");
  std::byte seven{7}, back{0};
  device.transfer(memory->data() + 100, &seven, 1);
  device.transfer(&back, memory->data() + 100, 1);
  EXPECT_EQ(back, seven);
}

TEST(DeviceExecutor, StopsBetweenInstructionsAndGoesOn) {
  const Chain chain(40);
  const Program program = page(chain.paged(), {});
  for (const TestDevice& on : devices()) {
    const std::unique_ptr<Device> device = on.make(program, {&chain.graph}, 1, 3);
    LazyDisk disk(program.file().bytes, 1);
    StreamMachine machine(program, {&chain.graph}, *device, &disk);
    std::atomic<bool> stop{true};
    EXPECT_FALSE(machine.executor().run(0, &stop));
    stop = false;
    std::vector<std::byte> left;
    machine.run(0, 1, 2, left);
    EXPECT_EQ(left, fixtures::random_tensor({DType::float32, {64}}, 1).bytes);  // forty negations
  }
}

// What the trainer does between runs: values that the host can't touch are looked at, and changed, in a staging area.
TEST(DeviceExecutor, ShowsWhatLivesOnTheDeviceInStagingAreas) {
  const Job job = golden_job("gpt2-torchscript-17-sdpa", {{"batch", 2}, {"sequence", 8}}, {.accumulate = true}, 16);
  const Program program = page(job.paged(), {.threads = kThreads, .seed = 5});
  std::map<SpaceId, std::vector<const Persistent*>> sums;  // by where they live
  for (const Persistent& value : program.persistent) {
    if (value.purpose == Purpose::gradients) sums[value.home.space].push_back(&value);
  }
  ASSERT_GE(sums[kMemory].size(), 2u);
  ASSERT_GE(sums[kFile].size(), 1u);
  ASSERT_GE(sums[kHost].size(), 1u);
  const auto fill = [](std::span<std::byte> bytes, int with) { std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(with)); };
  const auto holds = [](std::span<const std::byte> bytes, int what) {
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == static_cast<std::byte>(what); });
  };
  for (const TestDevice& on : devices()) {
    const std::unique_ptr<Device> device = on.make(program, job.graphs(), 1, 0);
    LazyDisk disk(program.file().bytes, 0);
    StreamMachine machine(program, job.graphs(), *device, &disk);
    Executor& executor = machine.executor();
    const std::string &one = sums[kMemory][0]->name, &other = sums[kMemory][1]->name, &far = sums[kFile][0]->name;
    for (const auto& [space, values] : sums) {
      for (const Persistent* value : values) EXPECT_TRUE(holds(executor.persistent(value->name), 0)) << value->name;
    }
    for (const std::string& second : {other, far}) {
      const auto first_bytes = executor.persistent(one), second_bytes = executor.persistent(second, 1);
      fill(first_bytes, 3);
      fill(second_bytes, 4);
      EXPECT_TRUE(holds(first_bytes, 3));  // they lie beside each other
      executor.changed(one);
      executor.changed(second, 1);
      fill(executor.persistent(sums[kHost][0]->name), 5);  // nothing to bring anywhere
      EXPECT_TRUE(holds(executor.persistent(second), 4));
      EXPECT_TRUE(holds(executor.persistent(one), 3));
      const auto shown = executor.persistent(one);
      fill(executor.spare(program.spare.bytes), 6);  // beside the staging area
      EXPECT_TRUE(holds(shown, 3));
    }
    EXPECT_TRUE(holds(executor.persistent(sums[kHost][0]->name), 5));
  }
}

// A problem in the background is told by the wait, with the name of its node; the next run is a fresh one.
TEST(DeviceExecutor, KernelErrorsNameTheirNode) {
  Graph graph;
  const ValueId table = graph.add_constant(make_tensor<float>({2}, {1, 2}));
  graph.inputs = {graph.add_value({.name = "index", .dtype = DType::int64, .shape = {1}, .kind = ValueKind::input})};
  Builder builder(graph);
  const ValueId row = builder.named("/embedding").emit("Gather", {table, graph.inputs[0]}, {{"axis", int64_t{0}}});
  graph.outputs = {builder.named("/last").emit("Neg", {row})};
  for (const bool on_host : {false, true}) {
    const Program program = fixtures::page({{.name = "run", .graph = &graph}},
                                           {.on_host = [&](const Node& node) { return on_host && node.op->name == "Gather"; }});
    verify(program, {&graph}, fixtures::kernels_of_pages);
    for (const TestDevice& on : devices()) {
      const std::unique_ptr<Device> device = on.make(program, {&graph}, 1, 3);
      LazyDisk disk(program.file().bytes, 1);
      StreamMachine machine(program, {&graph}, *device, &disk);
      const auto run = [&](int64_t index) {
        std::memcpy(machine.executor().input(0, graph.inputs[0]).data(), &index, sizeof(index));
        machine.executor().run(0);
      };
      for (int i = 0; i < 2; ++i) {
        try {
          run(7);
          FAIL();
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::data);
          EXPECT_STREQ(e.what(), "[Gather '/embedding'] index 7 at position 0 is outside an axis of 2 elements");
        }
      }
      run(1);
      float y = 0;
      std::memcpy(&y, machine.executor().bytes(0, graph.outputs[0]).data(), sizeof(y));
      EXPECT_EQ(y, -2);
    }
  }
}

TEST(DeviceExecutor, WhereNothingIsComputedTheNodeIsNamed) {
  const Chain chain(1);
  const Program program = page(chain.paged(), {});
  Workers workers(1);
  CpuDevice device(workers);  // which computes nothing in a device's memory
  try {
    Executor(program, {&chain.graph}, device);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_STREQ(e.what(), "[Neg '/n0'] can't be run: nothing is computed in the device");
  }
}

}  // namespace
}  // namespace ort_train
