// Problems as values, and assign: what it makes of random problems has every stay in memory while it is used, nothing on top of anything
// else, and transfers in an order that keeps what they carry.

#include "passes/plan/assign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "passes/plan/search.h"
#include "passes/plan/timing.h"
#include "passes/problem_dump.h"
#include "tests/onnx_models.h"
#include "tests/sound_plan.h"

namespace ort_train::planning {
namespace {

using fixtures::error_of;
using fixtures::expect_sound;

// Weights that come from the file and go back, activations that wait there, blocks between them.
Problem random_problem(unsigned seed) {
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return static_cast<int32_t>(random() % static_cast<unsigned>(n)); };
  Problem problem{.store = {.read = 2e9,
                            .write = 1e9,
                            .duplex = 1.5,
                            .while_computing = 0.9,
                            .compute_lost = 0.1,
                            .read_latency = 1e-4,
                            .write_latency = 1e-4}};
  Run run{.name = "train"};
  const int32_t steps = 20 + upto(60);
  for (int32_t t = 0; t < steps; ++t) run.seconds.push_back(1e-4 * upto(20));
  for (int i = 0; i < 30; ++i) {
    const int32_t first = upto(steps), last = std::min(steps - 1, first + upto(6));
    run.blocks.push_back({.bytes = 64 * (1 + upto(2000)), .first = first, .last = last});
  }
  for (int i = 0; i < 20; ++i) {
    Piece piece{.name = "p" + std::to_string(i), .bytes = int64_t{4096} * (1 + upto(50))};
    if (upto(2) == 0) {
      piece.lasting = static_cast<int32_t>(problem.lasting.size());
      problem.lasting.push_back({.name = piece.name, .bytes = piece.bytes, .held = piece.bytes});
    }
    int32_t step = upto(steps / 3);
    for (int use = 0; use < 1 + upto(4) && step < steps; ++use, step += 1 + upto(steps / 3))
      piece.uses.push_back({.step = step, .reads = use > 0 || piece.lasting >= 0, .changes = upto(2) == 0});
    if (!piece.uses.empty()) run.pieces.push_back(std::move(piece));
  }
  problem.runs.push_back(std::move(run));
  return problem;
}

// Each piece in memory from use to use where `held` says so.
template <typename Held> std::vector<Stay> stays_of(const Run& run, Held&& held) {
  std::vector<Stay> stays;
  for (uint32_t p = 0; p < run.pieces.size(); ++p) {
    const Piece& piece = run.pieces[p];
    for (size_t u = 0; u < piece.uses.size(); ++u) {
      Stay stay{.piece = p, .first = piece.uses[u].step, .last = piece.uses[u].step, .reads = u > 0 || piece.lasting >= 0};
      while (u + 1 < piece.uses.size() && (piece.uses[u + 1].step == piece.uses[u].step + 1 || held())) stay.last = piece.uses[++u].step;
      stay.writes = u + 1 < piece.uses.size() || piece.lasting >= 0;
      stay.issue = stay.first;
      stay.released = stay.last + 1;
      stays.push_back(stay);
    }
  }
  std::stable_sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) { return a.first < b.first; });
  return stays;
}

// At each step no more than `bytes`.
void expect_fits(const Run& run, const RunPlan& plan, int64_t bytes) {
  std::vector<int64_t> load(run.steps());
  const auto add = [&](int64_t more, int32_t from, int32_t until) {
    for (int32_t t = from; t < std::min(until, static_cast<int32_t>(load.size())); ++t) load[static_cast<size_t>(t)] += more;
  };
  for (const Block& block : run.blocks) add(block.bytes, block.first, block.last + 1);
  for (const Stay& stay : plan.stays)
    add(run.pieces[stay.piece].bytes, stay.reads ? stay.issue : stay.first, stay.writes ? stay.released : stay.last + 1);
  EXPECT_LE(*std::max_element(load.begin(), load.end()), bytes);
}

TEST(Assign, GivesPlacesAndTimesThatDontMeet) {
  int placed = 0, early = 0, late = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed);
    const auto& run = problem.runs[0];
    std::mt19937 random(seed + 1000);
    const std::vector<Stay> stays = stays_of(run, [&] { return random() % 3 == 0; });
    int64_t most = 0;
    for (int32_t t = 0; t < static_cast<int32_t>(run.steps()); ++t) {
      int64_t load = 0;
      for (const Stay& stay : stays) load += stay.first <= t && t <= stay.last ? run.pieces[stay.piece].bytes : 0;
      for (const Block& block : run.blocks) load += block.first <= t && t <= block.last ? block.bytes : 0;
      most = std::max(most, load);
    }
    const RunPlan alone{.stays = stays};
    EXPECT_FALSE(place_cores(run, alone, most - 1).has_value());
    const double computed = computing(run);
    for (const double room : {1.05, 1.3, 2.0}) {
      const auto bytes = static_cast<int64_t>(room * static_cast<double>(most)) / 4096 * 4096;
      for (const double seconds : {0.0, 2e-3, 1.0}) {
        const RunPlan wish = assign_without_addresses(run, stays, bytes, problem.store, seconds);
        expect_fits(run, wish, bytes);
        EXPECT_GE(wish.seconds, computed);
        const std::optional<Cores> cores = place_cores(run, wish, bytes);
        if (!cores) continue;
        ++placed;
        const RunPlan plan = assign(run, wish.stays, *cores, bytes, problem.store, seconds);
        expect_sound(run, plan, bytes);
        EXPECT_GE(plan.seconds, computed);
        EXPECT_NEAR(forecast_of({{.run = &run, .plan = &plan, .store = problem.store}}).seconds / plan.seconds, 1, 1e-9);
        for (const Stay& stay : plan.stays) {
          early += stay.reads && stay.issue < stay.first;
          late += stay.writes && stay.released > stay.last + 1;
        }
      }
    }
  }
  EXPECT_GT(placed, 900);
  EXPECT_GT(early, 1000);
  EXPECT_GT(late, 1000);
}

// Lengths of samples, each in a twentieth of the steps.
TEST(Problem, OfManyRunsThatShareAStepIsThatOfAllOfThem) {
  Problem problem = random_problem(5);
  problem.memory = 2 * floor_bytes(problem);
  const double alone = Search(problem).bound();
  problem.runs[0].runs_per_step = 0.05;
  problem.runs.resize(20, problem.runs[0]);
  Search search(problem);
  const std::optional<Plan> plan = search.best();
  ASSERT_TRUE(plan);
  EXPECT_NEAR(search.bound() / alone, 1, 0.02);
  EXPECT_GE(plan->seconds, search.bound() * (1 - 1e-9));
  problem.runs[0].runs_per_step = 4;  // beside which the others are rare
  EXPECT_NEAR(step_seconds(problem, [](size_t) { return 1.0; }), 4, 1e-9);
}

TEST(Problem, IsTheSameAfterWritingAndReading) {
  const Problem problem = random_problem(7);
  const std::string text = to_json(problem);
  EXPECT_EQ(to_json(problem_from_json(text)), text);
  EXPECT_GT(problem.runs[0].pieces.size(), 5u);
}

TEST(Problem, ThatIsNoneIsRefused) {
  const std::string text = to_json(random_problem(3));
  EXPECT_HAS(error_of([&] { problem_from_json(text.substr(0, text.size() / 2)); }).what(), "no problem of a plan");
  EXPECT_HAS(error_of([&] { problem_from_json("{}"); }).what(), "no problem of a plan");
  EXPECT_HAS(error_of([&] { problem_from_json(R"({"version": 1})"); }).what(), "it is of version 1");
  Problem wrong = random_problem(3);
  wrong.runs[0].blocks[0].last = 1000;
  EXPECT_HAS(error_of([&] { problem_from_json(to_json(wrong)); }).what(), "is no block of");
  wrong = random_problem(3);
  wrong.runs[0].pieces[0].uses.clear();
  EXPECT_HAS(error_of([&] { problem_from_json(to_json(wrong)); }).what(), "has no use");
}

}  // namespace
}  // namespace ort_train::planning
