// Streaming, recompute and the order of micro-batches: whatever the arena's limit and whatever is computed again, a program computes the
// bits of the one that has everything in memory and goes through its micro-batches one by one; and what the planner says of itself holds:
// limits, forecasts, packing, and the same plan every time.

#include "passes/stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "offload/spill_disk.h"
#include "passes/micro_batches.h"
#include "passes/plan.h"
#include "passes/recompute.h"
#include "passes/split_weights.h"
#include "passes/timeline.h"
#include "tests/discrete_device.h"
#include "tests/paging_planner.h"
#include "tests/plan_support.h"
#include "tests/sanitized.h"
#include "tests/stream_support.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using fixtures::gpt_forward;
using fixtures::gpt_training;
using fixtures::GptShape;
using fixtures::LazyDisk;
using fixtures::Moves;
using fixtures::moves_of;
using fixtures::random_forward;
using fixtures::random_graph;
using fixtures::StreamMachine;

using Bytes = std::vector<std::byte>;

// Entry graphs that share state, and how they are planned and run.
struct Job {
  std::vector<Graph> graphs;
  std::vector<std::vector<ValueId>> keep;
  std::vector<size_t> runs;  // entries, in the order in which they run
  uint32_t seed = 0;
  int64_t limit = 2;                          // of tokens and labels
  std::vector<RecomputeChoice> recomputed{};  // by entry; where it is empty, nothing is
  std::vector<size_t> together{};             // by entry: micro-batches in its graph; where it is empty, one
  std::vector<size_t> again{};                // by entry: nodes that run again
  std::vector<MicroBatches> batches{};        // by entry
  std::vector<EntryRole> roles{};             // by entry; where it is empty, nothing is accumulated

  std::vector<PlanEntry> entries() {
    std::vector<PlanEntry> entries;
    for (size_t i = 0; i < graphs.size(); ++i) {
      entries.push_back({.name = graphs[i].name + std::to_string(i),
                         .graph = &graphs[i],
                         .keep = i < keep.size() ? keep[i] : std::vector<ValueId>{},
                         .runs_per_step = 1.0 / static_cast<double>(i + 1),
                         .ordered = vertical(i),
                         .role = i < roles.size() ? roles[i] : EntryRole{}});
    }
    return entries;
  }
  std::vector<const Graph*> pointers() const {
    std::vector<const Graph*> all;
    for (const Graph& graph : graphs) all.push_back(&graph);
    return all;
  }
  bool vertical(size_t entry) const { return entry < batches.size() && !batches[entry].empty(); }
  // As a trainer does: what is computed again, then micro-batches side by side.
  void finish() {
    again.assign(graphs.size(), 0);
    for (size_t i = 0; i < recomputed.size(); ++i) {
      Recomputed made;
      recompute(graphs[i], recomputed[i], &made);
      graphs[i].verify("recompute");
      again[i] = made.nodes.size();
    }
    batches.resize(graphs.size());
    for (size_t i = 0; i < together.size(); ++i) {
      if (together[i] < 2) continue;
      batches[i] = join_micro_batches(graphs[i], together[i], {graphs[i].find_value(kInverseCountInput)});
      graphs[i].verify("micro_batches");
    }
  }
};

struct Count {
  int64_t runs = 0, state = 0, activations = 0, recomputed = 0, vertical = 0, all_three = 0, resident = 0, in_place = 0, real_disk = 0,
          programs = 0, several = 0, luckier = 0, arena = 0, needed = 0;
  double worst_packing = 0;

  double share(int64_t of) const { return 100.0 * static_cast<double>(of) / static_cast<double>(runs); }  // of the runs, in %
};

// Runs an entry on the micro-batch of the number, or on as many from there on as its graph takes. Appends what it keeps, batch after batch.
// Returns how many that were.
uint32_t run_entry(const Job& job, const Program& program, StreamMachine& machine, size_t entry, uint32_t number, Bytes& left) {
  const Graph& graph = job.graphs[entry];
  const size_t count = job.vertical(entry) ? job.batches[entry].size() : 1;
  std::map<ValueId, uint32_t> seeds;
  std::vector<ValueId> wanted;
  for (size_t batch = 0; batch < count; ++batch) {
    const auto in_batch = [&](ValueId id) { return count == 1 ? id : job.batches[entry][batch][id]; };
    const auto of_first = [&](ValueId id) { return count == 1 || id < job.batches[entry][0].size(); };
    uint32_t seed = job.seed * 31 + (number + static_cast<uint32_t>(batch)) * 7;
    for (ValueId id : graph.inputs) {
      if (of_first(id)) seeds[in_batch(id)] = graph.value(id).name == kInverseCountInput ? job.seed : seed++;
    }
    for (ValueId id : program.entries[entry].keep) {
      if (of_first(id)) wanted.push_back(in_batch(id));
    }
  }
  machine.run(entry, seeds, job.limit, wanted, left);
  return static_cast<uint32_t>(count);
}

// Everything that the job's runs leave: what each keeps, and the state in the end. Checks what was moved against the forecasts.
Bytes result_of(const Job& job, const Program& program, Workers& workers, LazyDisk* lazy, Disk* disk,
                const std::vector<StreamForecast>& forecasts, Count* count) {
  StreamMachine machine(program, job.pointers(), workers, disk);
  machine.set_parameters(job.seed);
  Bytes left;
  uint32_t number = 0;
  for (const size_t entry : job.runs) {
    const int64_t read = lazy ? lazy->bytes_read() : 0, written = lazy ? lazy->bytes_written() : 0;
    number += run_entry(job, program, machine, entry, number, left);
    if (lazy) {
      EXPECT_EQ(lazy->bytes_read() - read, forecasts[entry].bytes_read);
      EXPECT_EQ(lazy->bytes_written() - written, forecasts[entry].bytes_written);
      EXPECT_EQ(lazy->in_flight(), 0u);
    }
    if (!count || job.graphs[entry].name == "update") continue;  // an update has nothing to compute again and no micro-batches
    const Moves moves = moves_of(program, entry, job.graphs[entry]);
    EXPECT_EQ(moves.read, forecasts[entry].bytes_read);
    EXPECT_EQ(moves.written, forecasts[entry].bytes_written);
    ++count->runs;
    count->state += moves.state > 0;
    count->activations += moves.activations > 0;
    count->recomputed += job.again[entry] > 0;
    count->vertical += job.vertical(entry);
    count->all_three += moves.state > 0 && moves.activations > 0 && job.again[entry] > 0;
    count->in_place += moves.in_place > 0;
    count->resident += moves.read + moves.written == 0;
    count->real_disk += !lazy;
  }
  machine.append_state(left);
  EXPECT_LE(machine.executor().measured_peak_bytes(), program.memory().bytes);
  return left;
}

// What the job leaves with everything in memory and nothing computed again, its micro-batches one by one.
Bytes plain_result(Job job, Workers& workers) {  // a copy: planning puts graphs in order
  return result_of(job, Planner(job.entries(), {.threads = workers.threads()}).all_in_memory(), workers, nullptr, nullptr, {}, nullptr);
}

// What must be there at once: the entries' peaks, and between runs the tensors of the disk that are looked at.
int64_t needed(const Program& program) {
  int64_t bytes = program.memory().persistent_bytes;
  for (const Entry& entry : program.entries) bytes = std::max(bytes, entry.peak().bytes);
  for (const Persistent& value : program.persistent) {
    const int64_t areas = value.purpose == Purpose::gradients ? 2 : 1;
    bytes = std::max(bytes, program.memory().persistent_bytes + areas * file_bytes(value));
  }
  return bytes;
}

void expect_same_plan(const PlannedProgram& a, const PlannedProgram& b, const std::vector<const Graph*>& graphs) {
  EXPECT_EQ(a.program.to_text(graphs), b.program.to_text(graphs));
  EXPECT_EQ(a.program.memory().bytes, b.program.memory().bytes);
  EXPECT_EQ(a.program.file().bytes, b.program.file().bytes);
}

// Plans and runs the job at `limits` limits from the least to more than enough: it must leave `wanted`.
void check_job(Job job, const Bytes& wanted, int limits, Workers& workers, Count& count) {
  job.finish();
  const Planner planner(job.entries(), {.threads = workers.threads()});
  const auto graphs = job.pointers();
  const Program resident = planner.all_in_memory();
  const PlannedProgram least = planner.streamed(0, {}, {});
  std::mt19937 random(job.seed);
  count.several += job.graphs.size() > 1;
  for (int i = 0; i < limits; ++i) {
    const int64_t from = least.program.memory().bytes, room = std::max<int64_t>(0, resident.memory().bytes - from);
    const int64_t parts = limits - 2;  // the last but one has room for all, the last more
    const auto share = [&](int64_t part) { return from + room * part * part / (parts * parts); };  // many small ones
    const int64_t below = i == 0 || i == parts ? 0 : static_cast<int64_t>(random()) % (share(i) - share(i - 1) + 1);
    const int64_t limit = i == limits - 1 ? 2 * resident.memory().bytes + (1 << 20) : share(i) - below;
    const PlannedProgram made = planner.streamed(limit, {}, {});
    const Program& program = made.program;
    ASSERT_NO_THROW(verify(program, graphs)) << "seed " << job.seed << ", limit " << limit;
    EXPECT_LE(program.memory().bytes, limit) << "seed " << job.seed;
    // Addresses now and then come out better for another plan: by little.
    EXPECT_GE(program.memory().bytes * 100, least.program.memory().bytes * 95) << "seed " << job.seed << ", limit " << limit;
    count.luckier += program.memory().bytes < least.program.memory().bytes;
    EXPECT_GE(program.memory().bytes, needed(program));
    if (i % 4 == 0) expect_same_plan(made, planner.streamed(limit, {}, {}), graphs);
    count.arena += program.memory().bytes;
    count.needed += needed(program);
    count.worst_packing = std::max(count.worst_packing, static_cast<double>(program.memory().bytes) / static_cast<double>(needed(program)));
    ++count.programs;
    Bytes left;
    if (random() % 16 == 0 && program.file().bytes > 0) {
      const TestFolder folder;
      SpillDisk disk({.folder = folder.path.string()}, program.file().bytes);
      left = result_of(job, program, workers, nullptr, &disk, made.forecasts, &count);
    } else {
      LazyDisk disk(program.file().bytes, random());
      left = result_of(job, program, workers, &disk, &disk, made.forecasts, &count);
    }
    ASSERT_EQ(left.size(), wanted.size());
    ASSERT_TRUE(left == wanted) << "seed " << job.seed << ", limit " << limit << " of " << resident.memory().bytes;
  }
}

Job random_job(uint32_t seed) {
  Job job{.seed = seed};
  const size_t entries = seed % 3 == 0 ? 2 : 1;
  for (uint32_t i = 0; i < entries; ++i) {
    job.graphs.push_back(random_graph(seed + 10'000 * i, 16 + static_cast<int>((seed + i) % 3) * 12,
                                      {.rows = 32,
                                       .width = 128,
                                       .near = seed % 4 == 0 ? size_t{4} : size_t{1},
                                       .small_state = seed % 5 < 3,
                                       .saved = seed % 16 != 1,
                                       .pieces = seed % 4 == 2,
                                       .state = entries > 1 ? static_cast<int>(seed) : -1}));
    // What is wanted of the forward pass is an output where something is recomputed: a value that is only kept has no reader.
    Graph& graph = job.graphs.back();
    std::vector<ValueId>& keep = seed % 2 == 0 ? job.keep.emplace_back() : graph.outputs;
    for (ValueId id = seed % 7; id < job.graphs.back().value_count(); id += 29) {
      const Value& value = job.graphs.back().value(id);
      if (value.producer != kNone && value.kind == ValueKind::activation) keep.push_back(id);
    }
  }
  for (size_t run = 0; run < 1 + entries; ++run) job.runs.push_back((run + seed) % entries);
  if (seed % 2 == 0) return job;
  std::mt19937 random(seed);
  for (const Graph& graph : job.graphs) {
    const std::vector<RecomputeChoice> ladder = recompute_ladder(graph);
    job.recomputed.push_back(ladder[ladder.size() == 1 ? 0 : 1 + random() % (ladder.size() - 1)]);
  }
  return job;
}

TEST(Stream, RandomGraphsGiveTheBitsOfTheResidentPlan) {
  Count count;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Workers workers(1 + static_cast<int>(seed % 3));
    const Job job = random_job(seed);
    check_job(job, plain_result(job, workers), 8, workers, count);
    if (::testing::Test::HasFatalFailure()) return;
  }
  const double packing = static_cast<double>(count.arena) / static_cast<double>(count.needed);
  std::printf(
      "%ld runs of %ld programs: state streamed in %.1f %%, activations in %.1f %%, recompute in %.1f %%, all three in %.1f %%; in-place "
      "in place in %.1f %%, all resident in %.1f %%, on a real disk %.1f %%; packing %.4f, at worst %.4f; %ld below the least\n",
      count.runs, count.programs, count.share(count.state), count.share(count.activations), count.share(count.recomputed),
      count.share(count.all_three), count.share(count.in_place), count.share(count.resident), count.share(count.real_disk), packing,
      count.worst_packing, count.luckier);
  EXPECT_GE(count.share(count.state), 25);
  EXPECT_GE(count.share(count.activations), 25);
  EXPECT_GE(count.share(count.recomputed), 25);
  EXPECT_GE(count.share(count.all_three), 5);
  EXPECT_GE(count.share(count.in_place), 15);
  EXPECT_GE(count.share(count.resident), 10);
  EXPECT_GE(count.share(count.real_disk), 2);
  EXPECT_GE(count.several, 60);
  EXPECT_LE(count.luckier * 50, count.programs);
  EXPECT_LE(packing, 1.02);
}

// In three memories: a device's, which the host can't touch, the host's and a disk. The device is an adversary (discrete_device.h).
struct DiscreteCount {
  int64_t runs = 0, up = 0, down = 0, file = 0, behind = 0, on_device = 0, on_host = 0, in_file = 0;
  double share(int64_t of) const { return 100.0 * static_cast<double>(of) / static_cast<double>(runs); }
};

void count_discrete(const Program& program, DiscreteCount& count) {
  bool up = false, file = false, behind = false;
  for (const Entry& entry : program.entries) {
    for (const Instruction& instruction : entry.code) {
      up |= is_copy(instruction) && instruction.from.space == kMemory;
      file |= uses_file(instruction);
      behind |= !is_copy(instruction) && program.queues[instruction.queue].from == kHost;
    }
  }
  bool homes[3] = {};
  for (const Persistent& value : program.persistent) homes[value.home.space] |= !value.initial && value.home.bytes > 0;
  ++count.runs;
  count.down += up;
  count.file += file;
  count.behind += behind;
  count.on_device += homes[kMemory];
  count.on_host += homes[kHost];
  count.in_file += homes[kFile];
}

TEST(Stream, RandomGraphsInThreeMemoriesGiveTheBitsOfTheResidentPlan) {
  const int64_t most_seeds = kSanitized ? 20 : 100;
  DiscreteCount count;
  int64_t refused = 0;
  for (uint32_t seed = 0; seed < most_seeds; ++seed) {
    Workers workers(1);
    Job job = random_job(seed);
    const Bytes wanted = plain_result(job, workers);
    job.finish();
    const Planner planner(job.entries(), {.threads = 1});
    const auto graphs = job.pointers();
    const int64_t most = planner.all_in_memory().memory().bytes;
    const auto [least, least_host] = planner.least_discrete();
    std::mt19937 random(seed);
    for (int i = 0; i < 4; ++i) {
      SCOPED_TRACE(fmt::format("seed {}, limits {}", seed, i));
      const auto between = [&](int64_t from, int64_t to) { return from + static_cast<int64_t>(random() % 1000) * (to - from) / 1000; };
      DeviceMemories memories{.device = i == 0   ? least
                                        : i == 3 ? 2 * most
                                                 : between(least, most),
                              .host = i == 0 ? least_host : between(least_host, least_host + (i == 2 ? most : most / 4))};
      if (seed % 4 != 1) {  // which is faster there
        memories.host_updates = true;
        memories.compute = {.bytes_per_second = 1e7, .far_bytes_per_second = 1e7};
        memories.host_compute = {.bytes_per_second = 1e12, .far_bytes_per_second = 1e12};
      }
      const std::optional<PlannedProgram> made = planner.discrete(memories);
      if (!made) {
        ASSERT_NE(i, 0) << "the least is enough";
        ++refused;
        continue;
      }
      const Program& program = made->program;
      try {
        verify(program, graphs, fixtures::kernels_of_pages);
      } catch (...) {
        std::puts(program.to_text(graphs).c_str());
      }
      ASSERT_NO_THROW(verify(program, graphs, fixtures::kernels_of_pages));
      EXPECT_LE(program.spaces[kMemory].bytes, memories.device);
      EXPECT_LE(program.spaces[kHost].bytes, memories.host);
      fixtures::DiscreteDevice device(program, graphs, 1, random());
      LazyDisk disk(program.file().bytes, random());
      StreamMachine machine(program, graphs, device, &disk);
      machine.set_parameters(job.seed);
      Bytes left;
      uint32_t number = 0;
      for (const size_t entry : job.runs) {
        const int64_t read = disk.bytes_read(), written = disk.bytes_written();
        number += run_entry(job, program, machine, entry, number, left);
        EXPECT_EQ(disk.bytes_read() - read, made->forecasts[entry].bytes_read);
        EXPECT_EQ(disk.bytes_written() - written, made->forecasts[entry].bytes_written);
      }
      machine.append_state(left);
      ASSERT_TRUE(left == wanted);
      count_discrete(program, count);
    }
  }
  std::printf(
      "%ld programs, %ld refused: %.1f %% copy to the host, %.1f %% to or from the disk, in %.1f %% the host computes; something lives on "
      "the "
      "device in %.1f %%, in the host's memory in %.1f %%, on the disk in %.1f %%\n",
      count.runs, refused, count.share(count.down), count.share(count.file), count.share(count.behind), count.share(count.on_device),
      count.share(count.on_host), count.share(count.in_file));
  for (const int64_t of : {count.down, count.file, count.behind, count.on_device, count.on_host, count.in_file})
    EXPECT_GE(count.share(of), 25);
  EXPECT_LE(refused * 10, count.runs);
}

// A random model's training on micro-batches that accumulate: the same ones one after the other, and together, but for a rest of a step.
struct RandomTraining {
  Job apart, together;
};

RandomTraining random_training(uint32_t seed) {
  std::mt19937 random(seed);
  const OptimizerSpec optimizer{.weight_decay = 0.1, .accumulate = true};
  Graph forward =
      random_forward(seed, 8 + static_cast<int>(seed % 3) * 4, {.rows = 32, .width = 128, .near = 4, .small_state = seed % 4 == 0});
  if (seed % 3 == 0) mark_parts(forward, {.part_bytes = int64_t{1} << 13, .part_rows = 64});
  EntryGraph train = build_train_graph(forward, {.terms = {{.kind = "output"}}}, optimizer, {});
  const EntryGraph update = build_update_graph(train, optimizer, {});
  for (ValueId id = seed % 5; id < train.graph.value_count(); id += 31) {
    const Value& value = train.graph.value(id);
    if (value.producer != kNone && value.kind == ValueKind::activation) train.graph.outputs.push_back(id);
  }
  RecomputeChoice choice{};
  if (seed % 4 != 3) {
    const std::vector<RecomputeChoice> ladder = recompute_ladder(train.graph);
    choice = ladder[ladder.size() == 1 ? 0 : 1 + random() % (ladder.size() - 1)];
  }
  // From three on, the order of a sum shows in its bits.
  const size_t side_by_side = 2 + seed % 3, rest = seed / 3 % side_by_side, rounds = side_by_side == 2 ? 2 : 1;
  RandomTraining made{.apart = {.graphs = {train.graph, update.graph}, .keep = {}, .runs = {}, .seed = seed, .recomputed = {choice}},
                      .together = {}};
  made.together = made.apart;
  made.together.graphs.push_back(train.graph);
  made.apart.roles = {train.role, update.role};
  made.together.roles = {train.role, update.role, train.role};
  made.together.recomputed = {choice, {}, choice};
  made.together.together = {1, 1, side_by_side};
  for (int step = 0; step < 2; ++step) {
    std::vector<size_t>&one = made.apart.runs, &all = made.together.runs;
    one.insert(one.end(), rounds * side_by_side + rest, 0);
    one.push_back(1);
    all.insert(all.end(), rounds, 2);
    all.insert(all.end(), rest, 0);
    all.push_back(1);
  }
  return made;
}

// What is no number is equal whatever it was computed from.
bool all_finite(const Bytes& numbers) {
  for (size_t at = 0; at < numbers.size(); at += sizeof(float)) {
    float number;
    std::memcpy(&number, numbers.data() + at, sizeof(number));
    if (!std::isfinite(number)) return false;
  }
  return true;
}

TEST(Stream, RandomMicroBatchesGiveTheBitsOfOneByOne) {
  Count count;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Workers workers(1 + static_cast<int>(seed % 3));
    const RandomTraining training = random_training(seed);
    const Bytes wanted = plain_result(training.apart, workers);
    ASSERT_TRUE(all_finite(wanted)) << "seed " << seed;
    if (seed % 3 == 0) check_job(training.apart, wanted, 4, workers, count);
    check_job(training.together, wanted, 6, workers, count);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf(
      "%ld runs of %ld programs: state streamed in %.1f %%, activations in %.1f %%, recompute in %.1f %%, vertical in %.1f %%, all "
      "resident in %.1f %%\n",
      count.runs, count.programs, count.share(count.state), count.share(count.activations), count.share(count.recomputed),
      count.share(count.vertical), count.share(count.resident));
  for (const int64_t mechanism : {count.state, count.activations, count.recomputed, count.vertical}) EXPECT_GE(count.share(mechanism), 25);
  EXPECT_GE(count.share(count.resident), 10);
}

// Training steps as a trainer runs them: micro-batches that accumulate, the update apart, evaluation between.
TEST(Stream, TrainingGivesTheBitsOfTheResidentPlan) {
  const GptShape shape{.layers = 2, .heads = 4, .width = 128, .vocabulary = 150, .batch = 2, .length = 32};
  for (const bool accumulate : {false, true}) {
    for (const char* mode : {"none", "sqrt", "all"}) {
      const int threads = std::string(mode) == "sqrt" ? 1 : 2;
      const OptimizerSpec optimizer{.weight_decay = 0.1, .accumulate = accumulate};
      const EntryGraph train = gpt_training(shape, optimizer);
      Job job{.seed = 5, .limit = shape.vocabulary};
      job.graphs.push_back(train.graph);
      job.graphs.push_back(build_evaluate_graph(gpt_forward(shape), {}, {}).graph);
      job.roles = {train.role, {.kind = EntryKind::evaluate}};
      if (accumulate) {
        const EntryGraph update = build_update_graph(train, optimizer, {});
        job.graphs.push_back(update.graph);
        job.roles.push_back(update.role);
      }
      job.runs = accumulate ? std::vector<size_t>{0, 0, 2, 1, 0, 0, 2, 1} : std::vector<size_t>{0, 0, 1, 0, 1};
      job.recomputed = {recompute_mode(mode)};
      Workers workers(threads);
      Count count;
      check_job(job, plain_result(job, workers), 8, workers, count);
      if (HasFatalFailure()) return;
      EXPECT_GE(count.state * 4, count.runs);
      EXPECT_TRUE(count.activations > 0 || count.recomputed > 0);  // what is computed again need not wait on the disk
      EXPECT_EQ(count.recomputed > 0, std::string(mode) != "none");
    }
  }
}

// A training job with what its arena takes at least and at most; `tenths` of the way between them.
struct Range {
  EntryGraph job;
  int64_t least = 0, most = 0;

  explicit Range(const GptShape& shape) : job(gpt_training(shape)) {
    const Planner planner = make({.threads = 2});
    least = planner.streamed(0, {}, {}).program.memory().bytes;
    most = planner.all_in_memory().memory().bytes;
  }
  Planner make(const PlanOptions& options) { return Planner({{.name = "train", .graph = &job.graph, .keep = {}}}, options); }
  int64_t at(int tenths) const { return least + (most - least) * tenths / 10; }
};

// Of plans that take about as long as any on a disk as it was measured, the careful one takes less on a slower one.
TEST(Stream, CarefulPlansBearASlowerDisk) {
  Range range({.layers = 4, .heads = 4, .width = 256, .vocabulary = 1000, .batch = 4, .length = 64});
  int gained = 0;
  double plain = 0, careful_ones = 0;  // seconds on a slower disk
  for (const int tenths : {5, 6, 7}) {
    for (const double rate : {2.5e9, 4e9, 6e9}) {  // it just hides behind computing
      const StreamRates disk{.read = rate, .write = 1.5 * rate}, slower{.read = 0.8 * rate, .write = 1.2 * rate};
      double nominal[2], slowed[2];
      for (const bool careful : {false, true}) {
        const PlannedProgram made = range.make({.threads = 2, .for_slower_disk = careful}).streamed(range.at(tenths), {}, disk);
        verify(made.program, {&range.job.graph});
        const auto seconds = [&](const StreamRates& rates) {
          return make_timeline(made.program, made.program.entries[0], range.job.graph, {}, rates).seconds();
        };
        nominal[careful] = seconds(disk);
        slowed[careful] = seconds(slower);
        EXPECT_NEAR(made.forecasts[0].seconds / nominal[careful], 1, 1e-6);
      }
      EXPECT_LE(nominal[1], 1.005 * nominal[0]) << tenths << " " << rate;
      EXPECT_LE(slowed[1], 1.005 * slowed[0]) << tenths << " " << rate;
      std::printf("%d tenths, %.1f GB/s: as measured %.4f and %.4f ms, slower %.4f and %.4f\n", tenths, rate / 1e9, 1e3 * nominal[0],
                  1e3 * nominal[1], 1e3 * slowed[0], 1e3 * slowed[1]);
      gained += slowed[1] < 0.999 * slowed[0];
      plain += slowed[0];
      careful_ones += slowed[1];
    }
  }
  EXPECT_GE(gained, 2);
  EXPECT_LT(careful_ones, 0.999 * plain);
}

struct LargeCase {
  const char* name;
  GptShape shape;
  double packing;
};

// Jobs of real size, planned only: what the arena has beyond the bytes that must be there at once. A few tensors fill it,
// each a good part of it, so that some of it is too small for any; and what fits into the limit isn't packed any tighter.
TEST(Stream, LargePlansAreTight) {
  for (const auto& [name, shape, packing] :
       {LargeCase{"gpt2_256", {}, 1.12},
        LargeCase{"char_gpt", {.layers = 6, .heads = 6, .width = 384, .vocabulary = 65, .batch = 16, .length = 256}, 1.25}}) {
    EntryGraph job = gpt_training(shape);
    const Planner planner({{.name = "train", .graph = &job.graph, .keep = {}}}, {.threads = 2});
    const int64_t most = planner.all_in_memory().memory().bytes, least = planner.streamed(0, {}, {}).program.memory().bytes;
    EXPECT_LE(least * 3, most) << name;
    double worst = 1;
    for (int i = 0; i < 8; ++i) {
      const int64_t limit = least + (most - least) * i / 8;
      const PlannedProgram made = planner.streamed(limit, {}, {});
      verify(made.program, {&job.graph});
      EXPECT_LE(made.program.memory().bytes, limit) << name;
      EXPECT_GE(made.program.memory().bytes * 100, least * 97) << name;
      const Moves moves = moves_of(made.program, 0, job.graph);
      EXPECT_EQ(moves.read, made.forecasts[0].bytes_read) << name;
      EXPECT_EQ(moves.written, made.forecasts[0].bytes_written) << name;
      EXPECT_GT(moves.read, 0) << name;
      worst = std::max(worst, static_cast<double>(made.program.memory().bytes) / static_cast<double>(needed(made.program)));
    }
    std::printf("%s: from %.1f to %.1f MB, worst packing %.4f\n", name, static_cast<double>(least) / 1e6, static_cast<double>(most) / 1e6,
                worst);
    EXPECT_LE(worst, packing) << name;
  }
}

}  // namespace
}  // namespace ort_train
