// The lower bound of a step: that no plan beats it, whatever is held, and that it says what can be computed by hand.

#include "passes/plan/bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <random>

#include "exec/program.h"
#include "frontend/memory.h"
#include "passes/linear_program.h"
#include "passes/plan/search.h"
#include "passes/plan/timing.h"
#include "test_paths.h"
#include "tests/problem_file.h"
#include "tests/sanitized.h"

namespace ort_train::planning {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LinearProgram, GoesOnFromASolution) {
  LinearProgram program;  // max x + 2 y, x + y <= 1.5, of x and y in [0, 1]
  const int32_t x = program.add_column(-1, 0, 1), y = program.add_column(-2, 0, 1);
  program.add_row(-kInfinity, 1.5, {{x, 1}, {y, 1}});
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.value(x), 0.5, 1e-9);
  EXPECT_NEAR(program.value(y), 1, 1e-9);
  EXPECT_NEAR(program.bound(), -2.5, 1e-9);
  const int32_t z = program.add_column(-4, 0, 2);
  program.add_row(0, kInfinity, {{y, 1}, {z, -1}});  // z <= y
  program.add_row(-kInfinity, 1, {{x, 1}, {z, 1}});
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.value(z), 1, 1e-9);
  EXPECT_NEAR(program.bound(), -6, 1e-9);
  program.set_cost(x, -9);
  program.set_upper(y, 0.25);
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.bound(), -9.5, 1e-9);
  program.add_row(3, kInfinity, {{x, 1}, {y, 1}});
  EXPECT_FALSE(program.solve());
}

// Fixed bytes at each step, and what each computes.
Run run_of(const std::vector<int64_t>& fixed, std::vector<double> seconds, Piece piece) {
  Run run{.seconds = std::move(seconds)};
  for (int32_t t = 0; t < static_cast<int32_t>(fixed.size()); ++t) run.blocks.push_back({fixed[static_cast<size_t>(t)], t, t});
  run.pieces.push_back(std::move(piece));
  return run;
}

double bound_of(const Run& run, size_t lasting, int64_t memory, const StreamRates& rates) {
  return Bound({.memory = memory, .store = rates, .lasting = std::vector<Lasting>(lasting), .runs = {run}}).seconds();
}

// A tensor of 100 bytes waits while another takes the memory: half of it can stay.
TEST(Bound, IsWhatOneComputesByHand) {
  const StreamRates rates{.read = 10, .write = 20};
  const auto run =
      run_of({0, 0, 60, 0, 0}, {1, 1, 1, 1, 1},
             {.bytes = 100, .uses = {{.step = 0, .reads = false, .changes = true}, {.step = 4, .reads = true, .changes = false}}});
  // Everything fits: 5 s of computing. Else what doesn't is written before the full step and read behind it, besides a step each.
  EXPECT_NEAR(bound_of(run, 0, 160, rates), 5, 1e-9);
  EXPECT_NEAR(bound_of(run, 0, 110, rates), 5 + (50 / 20. - 1) + (50 / 10. - 1), 1e-6);
  EXPECT_NEAR(bound_of(run, 0, 100, rates), 5 + (60 / 20. - 1) + (60 / 10. - 1), 1e-6);
  // A weight that is changed: read before its first use, written behind its last one, where it isn't resident.
  const auto weight = run_of({50, 0, 50}, {1, 1, 1}, {.bytes = 100, .lasting = 0, .uses = {{.step = 1, .reads = true, .changes = true}}});
  EXPECT_NEAR(bound_of(weight, 1, 150, rates), 3, 1e-9);
  EXPECT_NEAR(bound_of(weight, 1, 100, rates), 3 + 50 / 10. + 50 / 20., 1e-6);
}

// What is under way takes memory too: where there is none, transfers don't hide behind computing.
TEST(Bound, TransfersUnderWayNeedRoom) {
  const StreamRates rates{.read = 10, .write = 20};
  const auto weight = run_of({100, 0}, {10, 1}, {.bytes = 100, .lasting = 0, .uses = {{.step = 1, .reads = true, .changes = false}}});
  EXPECT_NEAR(bound_of(weight, 1, 200, rates), 11, 1e-9);
  EXPECT_NEAR(bound_of(weight, 1, 150, rates), 16, 1e-6) << "half of it is there, or read ahead";
  EXPECT_NEAR(bound_of(weight, 1, 100, rates), 21, 1e-6);
  // Made, out of the way of a full step, and back: its write is over before that step, its read begins behind it.
  const auto made =
      run_of({0, 100, 0, 0}, {1, 20, 4, 1},
             {.bytes = 100, .uses = {{.step = 0, .reads = false, .changes = true}, {.step = 3, .reads = true, .changes = false}}});
  const double bound = bound_of(made, 0, 100, rates);
  EXPECT_GE(bound, 26 + (5 - 1) + (10 - 4) - 1e-6);
  EXPECT_LE(bound, 26 + 5 + (10 - 4) + 1e-6);
}

// Pieces with any uses, made or lasting, in one run or two. Bytes in sectors.
Problem random_problem(std::mt19937& random) {
  const auto upto = [&](uint32_t most) { return static_cast<int32_t>(random() % (most + 1)); };
  Problem problem{.lasting = std::vector<Lasting>(random() % 12), .runs = std::vector<Run>(1 + random() % 2)};
  for (Lasting& value : problem.lasting) value.bytes = value.held = kSector * (1 + upto(20));
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    Run& run = problem.runs[r];
    const int32_t steps = 8 + upto(30);
    for (int32_t t = 0; t < steps; ++t) {
      run.blocks.push_back({kSector * upto(5), t, t});
      run.seconds.push_back(random() % 4 == 0 ? 0.01 : 0.2 * upto(10));
    }
    run.runs_per_step = r == 0 ? 1 : random() % 2 ? 0.5 : 0.01;
    const auto add = [&](int64_t bytes, int32_t lasting) {
      Piece piece{.bytes = bytes, .lasting = lasting};
      for (int32_t step = upto(static_cast<uint32_t>(steps) - 1); step < steps; step += 1 + upto(12)) {
        const bool made = lasting < 0 && piece.uses.empty();
        const bool changes = made || random() % 4 == 0;
        piece.uses.push_back({.step = step, .reads = !made && (!changes || random() % 4 != 0), .changes = changes});
      }
      run.pieces.push_back(std::move(piece));
    };
    for (size_t i = 0; i < problem.lasting.size(); ++i) {
      if (random() % 4 != 0) add(problem.lasting[i].bytes, static_cast<int32_t>(i));
    }
    for (int32_t i = upto(20); i >= 0; --i) add(kSector * (1 + upto(20)), -1);
  }
  // What no run uses stays.
  for (size_t i = 0; i < problem.lasting.size(); ++i) {
    const auto uses = [&](const Run& run) {
      return std::any_of(run.pieces.begin(), run.pieces.end(),
                         [&](const Piece& piece) { return piece.lasting == static_cast<int32_t>(i); });
    };
    if (std::none_of(problem.runs.begin(), problem.runs.end(), uses)) problem.immovable += problem.lasting[i].held;
  }
  return problem;
}

TEST(Bound, NoPlanIsFaster) {
  int64_t plans = 0, waiting = 0, close = 0;
  double gaps = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    Problem problem = random_problem(random);
    const auto rate = [&] { return static_cast<double>(kSector) * (1 + static_cast<double>(random() % 1500) / 100); };
    problem.store = {.read = rate(), .write = rate()};
    if (random() % 2) {  // computing and transfers get in each other's way
      const auto share = [&](double most) { return most * static_cast<double>(random() % 1000) / 1000; };
      problem.store.duplex = 1 + share(1);
      problem.store.while_computing = 1 - share(0.9);
      problem.store.compute_lost = share(0.95 * problem.store.while_computing);
    }
    const int64_t floor = floor_bytes(problem);
    const double computed = step_seconds(problem, [&](size_t r) { return planning::computing(problem.runs[r]); });
    double last = kInfinity;
    for (const double more : {0.0, 0.1, 0.25, 0.5, 1.0, 100.0}) {
      problem.memory = whole_sectors(static_cast<int64_t>((1 + more) * static_cast<double>(floor)));
      Search search(problem);
      const double bound = search.bound();
      EXPECT_GE(bound, computed * (1 - 1e-9)) << "seed " << seed;
      EXPECT_LE(bound, last * 1.02) << "seed " << seed;  // up to what the rounds leave out
      last = bound;
      const std::optional<Plan> plan = search.best();
      waiting += bound > computed * 1.01;
      ++plans;
      if (plan) {
        EXPECT_GE(plan->seconds, bound * (1 - 1e-9)) << "seed " << seed << ", memory " << problem.memory;
        close += plan->seconds <= bound * 1.01;
        gaps += plan->seconds / bound - 1;
      }
      // Nor one that holds what chance says.
      Holder holder(problem);
      for (int round = 0; round < 3; ++round) {
        HoldOrder order = holder.by_gain();
        std::shuffle(order.begin(), order.end(), random);
        order.resize(order.size() * (1 + random() % 4) / 4);
        holder.fill(order, problem.memory);
        Plan chance{.resident = holder.resident()};
        for (size_t r = 0; r < problem.runs.size(); ++r)
          chance.runs.push_back(assign_without_addresses(problem.runs[r], holder.stays(r),
                                                         problem.memory - bytes_below(problem, chance.resident), problem.store,
                                                         random() % 2 ? 1e9 : 0.0));
        EXPECT_GE(step_seconds(problem, [&](size_t r) { return chance.runs[r].seconds; }), bound * (1 - 1e-9))
            << "seed " << seed << ", memory " << problem.memory;
      }
    }
  }
  std::printf("%ld plans, %ld of them bound by the disk, %ld within 1 %% of the bound, %.2f %% above it in the mean\n", plans, waiting,
              close, 100 * gaps / static_cast<double>(plans));
  EXPECT_GE(waiting * 4, plans);
}

// What the linear program takes is counted, so that it can be held to a limit; the process takes no more than that.
TEST(Bound, TakesNoMoreThanItMay) {
  const Problem problem = read_problems(ORT_TRAIN_SOURCE_DIR "/tests/problems/xl-400MB.json.gz").at(0);
  const Problem small = read_problems(ORT_TRAIN_SOURCE_DIR "/tests/problems/char-gpt-47MB.json.gz").at(0);
  EXPECT_GT(Bound(small).seconds(), 0);  // the solver's code is in memory
  release_free_heap();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const int64_t before = process_memory().peak;
  const Bound whole(problem);
  const int64_t took = process_memory().peak - before;
  EXPECT_TRUE(kSanitized || took <= whole.bytes()) << took << " of " << whole.bytes();
  const int64_t rows = whole.bytes() - whole.bytes() / 8;
  Bound limited(problem, kInfinity, rows);
  EXPECT_LT(limited.bytes(), whole.bytes());
  EXPECT_LE(limited.seconds(), whole.seconds());
  EXPECT_TRUE(limited.solve_with_free(0));
  // Without room for the program, pieces are held by gain.
  Search coarse(problem, kInfinity, 0);
  EXPECT_GE(coarse.bound(), computing(problem.runs[0]) * problem.runs[0].runs_per_step);
  const std::optional<Plan> plan = coarse.best();
  ASSERT_TRUE(plan.has_value());
  EXPECT_GE(plan->seconds, whole.seconds());
}

}  // namespace
}  // namespace ort_train::planning
