// The budget changes where bytes live, never what is computed: each job once with everything in memory, and many times otherwise. Every
// value of a factor (budget, disk, threads, recompute, order of micro-batches, size of parts, resumption, checks of what is read) meets
// every value of each other one, and all but the budgets meet every job. Losses, norms, weights and the written model are the same bits in
// all runs, nothing is left on the disk, and each mechanism is counted where it really occurred. Resident memory: promises.py and
// memory.py.
//
// With ORT_TRAIN_SOAK="FIRST COUNT" the matrix is all combinations in a fixed random order, of which these are run.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "exec/cuda/kernels.h"
#include "exec/workers.h"
#include "graph/op_def.h"
#include "tests/discrete_device.h"
#include "tests/host_libraries.h"
#include "tests/nominal_machine.h"
#include "tests/onnx_models.h"
#include "tests/promise_jobs.h"
#include "tests/trainer_on.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using fixtures::PromiseJob;

// Of what lies between the smallest budget and all that a job takes.
constexpr double kShares[] = {0, 0.01, 0.03, 0.06, 0.1, 0.18, 0.4, 1};
constexpr int kThreads[] = {1, 2, 3, 8};
constexpr const char* kRecompute[] = {"auto", "none", "sqrt", "all"};
constexpr const char* kOrders[] = {"auto", "horizontal", "vertical"};
constexpr int64_t kParts[] = {0, 20'000, 66'000, 300'000, int64_t{1} << 30};
enum ResumeAs { kWhole, kSameWay, kFromMemory };  // how the run is resumed: as it was, or after a first half with everything in memory

enum Factor { kJob, kShare, kThread, kDisk, kRecomputed, kOrder, kPart, kResumed, kChecked, kFactors };
using Row = std::array<int, kFactors>;

int64_t page_floor(int64_t bytes) { return bytes / 4096 * 4096; }

// --- which combinations ---------------------------------------------------------------------------------------------------------------

struct Matrix {
  std::vector<bool> accumulates;  // by job: in the others, the order of micro-batches means nothing
  Row levels{};

  explicit Matrix(const std::vector<PromiseJob>& jobs) {
    for (const PromiseJob& job : jobs) accumulates.push_back(job.accumulates());
    levels = {static_cast<int>(jobs.size()),
              std::size(kShares),
              std::size(kThreads),
              2,
              std::size(kRecompute),
              std::size(kOrders),
              std::size(kParts),
              3,
              2};
  }

  Row normal(Row row) const {
    if (!accumulates[static_cast<size_t>(row[kJob])]) row[kOrder] = 0;
    return row;
  }
  // Whether the pair counts: not each job with each budget, and orders only where there are micro-batches.
  bool counts(const Row& row, int a, int b) const {
    if (a == kJob && b == kShare) return false;
    return (a != kOrder && b != kOrder) || accumulates[static_cast<size_t>(row[kJob])];
  }
  using Pair = std::array<int, 4>;
  std::set<Pair> pairs_of(const Row& row) const {
    std::set<Pair> pairs;
    for (int a = 0; a < kFactors; ++a) {
      for (int b = a + 1; b < kFactors; ++b) {
        if (counts(row, a, b)) pairs.insert({a, row[static_cast<size_t>(a)], b, row[static_cast<size_t>(b)]});
      }
    }
    return pairs;
  }
  Row random_row(std::mt19937_64& bits) const {
    Row row;
    for (size_t i = 0; i < kFactors; ++i) row[i] = static_cast<int>(bits() % static_cast<uint64_t>(levels[i]));
    return normal(row);
  }

  // Rows in which each pair of values occurs: greedily, the best of some random ones at a time.
  std::vector<Row> pairwise(uint64_t seed) const {
    std::mt19937_64 bits(seed);
    std::set<Pair> open;
    for (int i = 0; i < 20'000; ++i) open.merge(pairs_of(random_row(bits)));
    std::vector<Row> rows;
    while (!open.empty()) {
      const Pair wanted = *std::next(open.begin(), static_cast<int64_t>(bits() % open.size()));
      Row best{};
      size_t most = 0;
      for (int i = 0; i < 200; ++i) {
        Row row = random_row(bits);
        row[static_cast<size_t>(wanted[0])] = wanted[1];
        row[static_cast<size_t>(wanted[2])] = wanted[3];
        row = normal(row);
        const std::set<Pair> pairs = pairs_of(row);
        const auto found = static_cast<size_t>(std::count_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return open.count(p); }));
        if (found > most) best = row, most = found;
      }
      if (most == 0) continue;  // this pair got no row in which it counts: other rows are drawn
      for (const Pair& pair : pairs_of(best)) open.erase(pair);
      rows.push_back(best);
    }
    return rows;
  }

  int64_t combinations() const { return std::accumulate(levels.begin(), levels.end(), int64_t{1}, std::multiplies<>()); }
  // The combination at a place of a fixed random order: multiplying by a number that has no factor in common with the count permutes.
  Row at(int64_t place) const {
    int64_t factor = combinations() / 2 * 1.236067977;
    while (std::gcd(factor, combinations()) != 1) ++factor;
    auto rest =
        static_cast<int64_t>(static_cast<unsigned __int128>(place) * static_cast<uint64_t>(factor) % static_cast<uint64_t>(combinations()));
    Row row;
    for (size_t i = 0; i < kFactors; ++i) row[i] = static_cast<int>(rest % levels[i]), rest /= levels[i];
    return normal(row);
  }
};

// --- running them ---------------------------------------------------------------------------------------------------------------------

struct Outcome {
  std::map<int64_t, std::array<uint64_t, 3>> steps;  // the bits of loss, norm (NaN, where a step is skipped), evaluated loss (0: none)
  std::string weights_hash, model;
  bool operator==(const Outcome&) const = default;
};

struct Promises : ::testing::Test {
  // As many threads as a job asks for, on a machine of whatever size.
  tbb::global_control allow{tbb::global_control::max_allowed_parallelism, 8};
  TestFolder folder;
  const std::string profile = nominal_machine(folder);
  const std::vector<PromiseJob> jobs = fixtures::promise_jobs(folder, profile);
  const std::string nvme = folder / "nvme", out = folder / "out";

  struct Plain {
    Outcome outcome;
    int64_t most = 0;
  };
  std::map<int, Plain> plain;            // by job
  std::map<std::string, int64_t> least;  // smallest budgets that are known
  std::map<std::string, int> counted;    // runs in which a mechanism occurred
  int runs = 0, accumulating = 0;

  Promises() { fs::create_directory(nvme); }

  // Trains, adding what it sees to `outcome`; `stop_after` a step, or not.
  Summary train(const DeviceChoice& on, const Options& options, Outcome& outcome, int64_t stop_after = -1, PlanReport* plan = nullptr) {
    Trainer* running = nullptr;
    fixtures::TrainerOn trainer(
        on, options,
        {.on_step =
             [&](const StepReport& step) {
               outcome.steps[step.step] = {std::bit_cast<uint64_t>(step.loss), std::bit_cast<uint64_t>(step.grad_norm), 0};
               if (step.step == stop_after) running->request_stop();
             },
         .on_eval = [&](const EvalReport& eval) { outcome.steps[eval.step][2] = std::bit_cast<uint64_t>(eval.loss); }});
    running = &trainer;
    if (plan) *plan = trainer.plan();
    const Summary summary = trainer.train();
    EXPECT_EQ(summary.stopped, stop_after >= 0);
    EXPECT_LE(summary.measured_peak_bytes, summary.planned_peak_bytes);
    outcome.weights_hash = summary.weights_hash;
    if (!summary.stopped) outcome.model = read_file(summary.model_path);
    return summary;
  }
  void clean() {
    fs::remove_all(out);
    for (const auto& entry : fs::directory_iterator(nvme)) fs::remove(entry.path());
  }

  const Plain& plain_of(int job) {
    if (const auto found = plain.find(job); found != plain.end()) return found->second;
    clean();
    Options options = jobs[static_cast<size_t>(job)].options;
    options.output_dir = out;
    options.recompute = "none";
    PlanReport plan;
    Plain& made = plain[job];
    train({}, options, made.outcome, -1, &plan);
    made.most = plan.at_peak.total + 1'000'000;
    EXPECT_EQ(static_cast<int64_t>(made.outcome.steps.size()), options.max_steps);
    return made;
  }

  Options options_of(const Row& row) const {
    Options o = jobs[static_cast<size_t>(row[kJob])].options;
    o.output_dir = out;
    o.threads = kThreads[row[kThread]];
    if (row[kDisk]) o.nvme_path = nvme;
    o.recompute = kRecompute[row[kRecomputed]];
    o.micro_batches = kOrders[row[kOrder]];
    o.nvme_checksums = row[kChecked] == 0;
    return o;
  }
  static DeviceChoice device_of(const Row& row) { return {.part_bytes = kParts[row[kPart]]}; }
  std::string where(const Row& row) const {
    return fmt::format("{}: budget {} of the way, {} threads, {} disk, recompute {}, {}, parts of {}, resumed {}, {}",
                       jobs[static_cast<size_t>(row[kJob])].name, kShares[row[kShare]], kThreads[row[kThread]],
                       row[kDisk] ? "with a" : "no", kRecompute[row[kRecomputed]], kOrders[row[kOrder]], kParts[row[kPart]], row[kResumed],
                       row[kChecked] ? "unchecked" : "checked");
  }

  int64_t least_of(const Row& row) {
    Row key = row;
    for (const Factor factor : {kShare, kResumed, kChecked}) key[factor] = 0;
    const auto [found, fresh] = least.emplace(where(key), 0);
    if (fresh) found->second = fixtures::TrainerOn(device_of(key), options_of(key)).plan().minimum_budget;
    return found->second;
  }

  // A step after which a run may be stopped: who stops doesn't evaluate first.
  static int64_t half_of(const Options& options) {
    const int64_t half = (options.max_steps + 1) / 2;
    return options.eval_steps > 0 && half % options.eval_steps == 0 ? half - 1 : half;
  }

  // What lies on the disk beside the state file that a checkpoint refers to.
  std::vector<std::string> leftovers() const {
    std::set<ino_t> needed;
    struct stat status {};
    for (const auto& entry : fs::recursive_directory_iterator(out)) {
      if (entry.path().filename() == "state.bin" && ::stat(entry.path().c_str(), &status) == 0) needed.insert(status.st_ino);
    }
    std::vector<std::string> names;
    for (const std::string& name : names_in(nvme)) {
      if (::stat((nvme + "/" + name).c_str(), &status) == 0 && !needed.count(status.st_ino)) names.push_back(name);
    }
    return names;
  }

  void count(const Row& row, const PlanReport& plan, const Summary& summary) {
    const auto moves = [&](const PlanMoves& moved) { return moved.read > 0 || moved.written > 0; };
    bool state = false, activations = false;
    for (const PlanMoves& moved : plan.moves) (moved.kind == "activations" ? activations : state) |= moves(moved);
    const bool used = summary.disk_bytes_read > 0;
    const bool again = plan.saved_recomputed > 0, together = plan.micro_batches_together > 1;
    const std::string recompute = kRecompute[row[kRecomputed]], order = kOrders[row[kOrder]];
    const bool accumulates = jobs[static_cast<size_t>(row[kJob])].accumulates();
    if (recompute != "auto") {
      EXPECT_EQ(again, recompute != "none");
    }
    if (order != "auto" || !accumulates) {
      EXPECT_EQ(together, accumulates && order == "vertical");
    }
    if (row[kDisk] == 0) {
      EXPECT_FALSE(state || activations);
      EXPECT_EQ(plan.disk_bytes + summary.disk_bytes_read + summary.disk_bytes_written, 0);
    }
    if (row[kResumed] == kWhole) {
      EXPECT_EQ(used, summary.disk_bytes_written > 0);
    }
    for (const auto& [name, occurred] : std::initializer_list<std::pair<const char*, bool>>{
             {"recompute", again},
             {"streamed state", state},
             {"streamed activations", activations},
             {"vertical", together},
             {"updates in the next step", plan.updates_in_next_step},
             {"updates in the next step, accumulating", plan.updates_in_next_step && accumulates},
             {"weights in parts", plan.divided > 0},
             {"resumed from the disk", row[kResumed] == kSameWay && used},
             {"resumed from memory", row[kResumed] == kFromMemory && used},
             {"unchecked", row[kChecked] && used}})
      counted[name] += occurred;
    ++runs;
    accumulating += accumulates;
  }

  void run(const Row& row) {
    SCOPED_TRACE(where(row));
    const auto& [wanted, most] = plain_of(row[kJob]);
    clean();
    Options options = options_of(row);
    const int64_t smallest = least_of(row);
    options.budget =
        smallest + page_floor(static_cast<int64_t>(kShares[row[kShare]] * static_cast<double>(std::max<int64_t>(0, most - smallest))));
    Outcome outcome;
    if (row[kResumed] != kWhole) {
      const int64_t half = half_of(options);
      Options first = options;
      DeviceChoice on = device_of(row);
      if (row[kResumed] == kFromMemory) {
        first = jobs[static_cast<size_t>(row[kJob])].options;
        on = {};
        first.output_dir = out;
      }
      train(on, first, outcome, half);
      options.resume = true;
    }
    PlanReport plan;
    const Summary summary = train(device_of(row), options, outcome, -1, &plan);
    EXPECT_TRUE(outcome == wanted);
    EXPECT_LE(plan.at_peak.total, options.budget);
    EXPECT_EQ(plan.minimum_budget, smallest);
    EXPECT_EQ(leftovers(), std::vector<std::string>());
    count(row, plan, summary);
  }

  void print() const {
    std::string text = fmt::format("{} runs of {} jobs, {} accumulating", runs, jobs.size(), accumulating);
    for (const auto& [name, number] : counted) text += fmt::format(", {} with {}", number, name);
    fmt::print("{}\n", text);
  }
};

TEST_F(Promises, EachPairOfChoicesGivesTheSameBits) {
  const Matrix matrix(jobs);
  if (const char* soak = std::getenv("ORT_TRAIN_SOAK")) {
    int64_t first = 0, number = 0;
    ASSERT_EQ(std::sscanf(soak, "%ld %ld", &first, &number), 2);
    for (int64_t place = first; place < first + number && !HasFailure(); ++place) run(matrix.at(place % matrix.combinations()));
    fmt::print("combinations {} to {} of {}\n", first, first + number - 1, matrix.combinations());
    print();
    return;
  }
  std::vector<Row> rows = matrix.pairwise(1);
  for (const Row& row : matrix.pairwise(2)) rows.push_back(row);  // each pair meets other values of the rest
  std::set<Matrix::Pair> met;
  for (const Row& row : rows) {
    run(row);
    met.merge(matrix.pairs_of(row));
  }
  print();
  size_t pairs = 0;
  for (int a = 0; a < kFactors; ++a) {
    for (int b = a + 1; b < kFactors; ++b) {
      if (a == kJob && b == kShare) continue;
      const auto some = std::count(matrix.accumulates.begin(), matrix.accumulates.end(), true);
      pairs += static_cast<size_t>((a == kJob && b == kOrder ? some : matrix.levels[static_cast<size_t>(a)]) *
                                   matrix.levels[static_cast<size_t>(b)]);
    }
  }
  EXPECT_EQ(met.size(), pairs);
  // Not only asked for: each mechanism occurred in a good part of the runs.
  for (const char* name : {"recompute", "streamed state"}) EXPECT_GE(3 * counted[name], runs) << name;
  for (const char* name : {"streamed activations", "weights in parts", "resumed from the disk", "resumed from memory", "unchecked"})
    EXPECT_GE(10 * counted[name], runs) << name;
  EXPECT_GE(4 * counted["vertical"], accumulating);
  EXPECT_GE(counted["updates in the next step"] - counted["updates in the next step, accumulating"], 4);
  EXPECT_GE(counted["updates in the next step, accumulating"], 4);
}

// One page less than the smallest budget is refused, on any number of threads, and leaves nothing behind.
TEST_F(Promises, ASmallestBudgetIsExact) {
  size_t helped = 0;  // jobs that take less memory where there is a disk
  for (int job = 0; job < static_cast<int>(jobs.size()); ++job) {
    int64_t without = 0;
    for (const int disk : {0, 1}) {
      Row row{};
      row[kJob] = job;
      row[kDisk] = disk;
      row[kThread] = (job + disk) % static_cast<int>(std::size(kThreads));
      SCOPED_TRACE(where(row));
      const int64_t smallest = least_of(row);
      if (disk == 0) without = smallest;
      helped += smallest < without;
      Options options = options_of(row);
      options.budget = smallest;
      EXPECT_EQ(Trainer(options).plan().minimum_budget, smallest);
      options.budget -= 4096;
      const Error refusal = fixtures::error_of([&] { Trainer trainer(options); });
      EXPECT_EQ(refusal.code(), ErrorCode::budget);
      EXPECT_HAS(refusal.what(), fmt::format(" {})", smallest)) << "the sentence names it";
      EXPECT_EQ(names_in(nvme), std::vector<std::string>());
    }
  }
  EXPECT_GE(helped, 4u);  // those with much state; for the others the disk engine takes more memory than it saves
}

// A discrete device with something wrong, of which it is told by a number that is asked for when it is made.
struct FaultyDevice : fixtures::DiscreteDevice {
  FaultyDevice(const Program& program, const std::vector<const Graph*>& graphs)
      : DiscreteDevice(program, graphs, /*threads=*/1, /*seed=*/8) {}
};
template <typename Faulty> DeviceChoice on_faulty(std::function<int64_t()> number) {
  constexpr int64_t kBytes = 500'000'000;  // of each memory
  return {.make = [number = std::move(number)](const Program& program, const std::vector<const Graph*>& graphs) -> std::unique_ptr<Device> {
            return std::make_unique<Faulty>(program, graphs, number());
          },
          .memories = {.device = kBytes, .host = kBytes},
          .page = 4096};
}

// Once its kernels are loaded, it has so many bytes in its memory.
struct LateDevice : FaultyDevice {
  LateDevice(const Program& program, const std::vector<const Graph*>& graphs, int64_t used_) : FaultyDevice(program, graphs), used(used_) {}
  bool loads_late() const override { return true; }
  int64_t used_bytes() const override { return used; }
  int64_t used;
};

TEST_F(Promises, WhatLibrariesLoadLateIsPlannedFor) {
  Options options = jobs[0].options;
  options.output_dir = out;
  const Plain& wanted = plain_of(0);
  options.threads = 1;
  options.budget = 1'000'000'000;
  for (const int64_t late : {1, 2}) {  // how many devices keep too much
    int64_t made = 0;
    const DeviceChoice on = on_faulty<LateDevice>([&] { return options.budget + (made++ < late ? 1 : 0); });
    clean();
    Outcome outcome;
    if (late == 1) {
      train(on, options, outcome);
      EXPECT_TRUE(outcome == wanted.outcome);
    } else {
      const Error problem = fixtures::error_of([&] { train(on, options, outcome); });
      EXPECT_EQ(problem.code(), ErrorCode::budget);
      EXPECT_HAS(problem.what(), "1 more than `budget` 1000000000");
    }
    EXPECT_EQ(made, 2);
  }
}

// It is lost behind so many runs.
struct LostDevice : FaultyDevice {
  LostDevice(const Program& program, const std::vector<const Graph*>& graphs, int64_t runs_) : FaultyDevice(program, graphs), runs(runs_) {}
  void issue(const Work& work) override {
    if (runs <= 0) throw Error(ErrorCode::device, "the GPU: a step failed on it");
    DiscreteDevice::issue(work);
  }
  void finish() override {
    --runs;
    DiscreteDevice::finish();
  }
  int64_t runs;
};

TEST_F(Promises, ARunWhoseDeviceIsLostGoesOnFromItsLastCheckpoint) {
  Options options = jobs[0].options;
  options.output_dir = out;
  const Plain& wanted = plain_of(0);
  options.threads = 1;
  options.save_steps = 2;
  const auto on = [](int64_t runs) { return on_faulty<LostDevice>([runs] { return runs; }); };
  clean();
  int64_t steps = 0;
  const auto lose = [&](int64_t runs) {
    fixtures::TrainerOn trainer(on(runs), options, {.on_step = [&](const StepReport& step) { steps = step.step; }});
    const Error problem = fixtures::error_of([&] { trainer.train(); });
    EXPECT_EQ(problem.code(), ErrorCode::device);
    return std::string(problem.what());
  };
  int64_t runs = 1;
  for (; steps == 0; ++runs) EXPECT_HAS(lose(runs), "a step failed on it; nothing was saved before");
  for (runs = 3 * (runs - 1); steps < 3; ++runs) {
    clean();
    const std::string said = lose(runs);
    if (steps == 3) {
      EXPECT_HAS(said, "step 4: the GPU: a step failed on it; the last good state is ");
    }
  }
  options.resume = true;
  Outcome outcome;
  EXPECT_EQ(train(on(1'000'000), options, outcome).weights_hash, wanted.outcome.weights_hash);
}

// Each job on a device with memory of its own (discrete_device.h), in three memories of several sizes; some with CUDA's kernels, run on the
// host: resumed, with weights in parts, or recomputing.
TEST_F(Promises, ADeviceWithMemoryOfItsOwnGivesTheSameBits) {
  int refused = 0, on_disk = 0, again = 0, blocks = 0;
  for (int job = 0; job < static_cast<int>(jobs.size()); ++job) {
    Options options = jobs[static_cast<size_t>(job)].options;
    options.output_dir = out;
    const Plain& wanted = plain_of(job);
    const int64_t arena = Trainer(options).plan().arena_bytes;
    options.nvme_path = nvme;
    options.threads = 1;
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(fmt::format("{}, sizes {}", jobs[static_cast<size_t>(job)].name, i));
      const auto seed = static_cast<uint32_t>(4 * job + i);
      const bool is_float32 = !options.bf16 && !options.fp16 && !options.bf16_full;
      const bool with_blocks = job % 4 == 0 && i == job / 4 % 3 && options.base_dtype.empty();  // they take long
      blocks += with_blocks;
      const auto libraries = with_blocks && !is_float32 ? std::make_optional<fixtures::HostLibrariesInUse>() : std::nullopt;
      const KernelTable& kernels = with_blocks ? cuda_kernels_on_host() : cpu_kernels();
      DeviceChoice on{.part_bytes = i == 1 ? 20'000 : 0,
                      .kernels = &kernels,
                      .make =
                          [&](const Program& program, const std::vector<const Graph*>& graphs) {
                            return std::make_unique<fixtures::DiscreteDevice>(program, graphs, 1, seed, kernels);
                          },
                      .memories = {.device = arena * (i + 4) / 6, .host = arena / (i == 2 ? 1 : 3)}};
      on.memories.host_updates = i > 0;
      clean();
      options.recompute = i == 2 ? "all" : "none";
      options.resume = false;
      Outcome outcome, in_all_memory = wanted.outcome;
      // Convolutions, and what libraries make of 16 bits, have bits of their own there.
      if (with_blocks && (!is_float32 || jobs[static_cast<size_t>(job)].name.find("cnn") != std::string::npos)) {
        DeviceChoice all = on;
        all.memories = {.device = 4 * arena, .host = arena};
        train(all, options, in_all_memory);
        clean();
      }
      try {
        if (i == 0) {
          train(on, options, outcome, half_of(options));
          options.resume = true;
        }
        PlanReport plan;
        const Summary summary = train(on, options, outcome, -1, &plan);
        on_disk += summary.disk_bytes_read > 0;
        again += plan.saved_recomputed > 0;
      } catch (const Error& problem) {
        ASSERT_EQ(problem.code(), ErrorCode::budget) << problem.what();
        ++refused;
        continue;
      }
      EXPECT_TRUE(outcome == in_all_memory);
    }
  }
  fmt::print("{} jobs, {} runs refused, {} with a disk, {} recomputing\n", jobs.size(), refused, on_disk, again);
  EXPECT_GE(blocks, 8);
  EXPECT_LE(refused, static_cast<int>(jobs.size()) / 3);
  EXPECT_GE(on_disk, static_cast<int>(jobs.size()) / 2);
}

// What a budget's checks of the disk cost is no traffic.
TEST_F(Promises, ChecksOfWhatIsReadMoveNoBytes) {
  int used = 0;
  for (int job = 0; job < static_cast<int>(jobs.size()); job += 5) {
    Row row{};
    row[kJob] = job;
    row[kDisk] = 1;
    Summary summaries[2];
    for (const int unchecked : {0, 1}) {
      row[kChecked] = unchecked;
      SCOPED_TRACE(where(row));
      clean();
      Options options = options_of(row);
      options.budget = least_of(row);
      Outcome outcome;
      summaries[unchecked] = train(device_of(row), options, outcome);
      EXPECT_TRUE(outcome == plain_of(job).outcome);
    }
    EXPECT_EQ(summaries[0].disk_bytes_read, summaries[1].disk_bytes_read);
    used += summaries[0].disk_bytes_read > 0;
  }
  EXPECT_GE(used, 3);
}

// That the runs above were on so many threads: each waits for the others.
TEST_F(Promises, ThreadsThatAreAskedForAreThere) {
  for (const int threads : kThreads) {
    Workers workers(threads);
    std::set<std::thread::id> met;
    std::mutex mutex;
    std::atomic<int> arrived{0};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    workers.parallel_for(threads, [&](int64_t, int) {
      {
        const std::lock_guard lock(mutex);
        met.insert(std::this_thread::get_id());
      }
      arrived.fetch_add(1);
      while (arrived.load() < threads && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT_EQ(met.size(), static_cast<size_t>(threads));
  }
}

}  // namespace
}  // namespace ort_train
