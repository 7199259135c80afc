// The example of docs/planning.md: what the planner's modules print of it is what stands there.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "passes/plan/timing.h"
#include "test_paths.h"
#include "tests/print_plan.h"

namespace ort_train::planning {
namespace {

Problem example() {
  constexpr int64_t kUnit = 1'024'000;  // whole sectors, read in 1 ms
  Problem problem{
      .memory = 34 * kUnit,
      .store = {.read = 1e3 * kUnit, .write = 1e3 * kUnit},
      .lasting = {{.name = "w1", .bytes = 8 * kUnit, .held = 8 * kUnit}, {.name = "w2", .bytes = 8 * kUnit, .held = 8 * kUnit}}};
  auto& run = problem.runs.emplace_back();
  run.name = "train";
  run.seconds = {0.01, 0.01, 0.02, 0.01, 0.01, 0.002, 0.002};
  run.blocks = {{4 * kUnit, 1, 3}, {10 * kUnit, 2, 2}, {8 * kUnit, 3, 5}, {8 * kUnit, 4, 6}};
  run.pieces = {{"h1", 6 * kUnit, -1, {{0, false, true}, {1, true, false}, {4, true, false}}},
                {"w1", 8 * kUnit, 0, {{0, true, false}, {4, true, false}, {6, true, true}}},
                {"w2", 8 * kUnit, 1, {{1, true, false}, {3, true, false}, {5, true, true}}}};
  return problem;
}

TEST(Example, IsWhatTheDocumentationShows) {
  std::ostringstream documentation;
  documentation << std::ifstream(ORT_TRAIN_SOURCE_DIR "/docs/planning.md").rdbuf();
  const auto stands_there = [&](const std::string& printed) {  // each line behind four blanks, as Markdown has it
    std::string code;
    std::istringstream lines(printed);
    for (std::string line; std::getline(lines, line);) code += "    " + line + "\n";
    EXPECT_THAT(documentation.str(), ::testing::HasSubstr(code)) << code;
  };
  const Problem problem = example();
  const auto& run = problem.runs[0];
  stands_there(print(problem));
  Bound bound(problem);
  ASSERT_TRUE(bound.solve_with_free(0));
  stands_there(fmt::format(
      "bound {:.1f} ms\nresident: w1 {:.2f}, w2 {:.2f}\nheld: h1 {:.2f} and {:.2f}, w1 {:.2f} and {:.2f}, w2 {:.2f} and {:.2f}\n",
      1e3 * bound.seconds(), bound.resident(0), bound.resident(1), bound.held(0, 0, 0), bound.held(0, 0, 1), bound.held(0, 1, 0),
      bound.held(0, 1, 1), bound.held(0, 2, 0), bound.held(0, 2, 1)));
  const std::optional<Plan> plan = Search(problem).best();
  ASSERT_TRUE(plan.has_value());
  stands_there(print(run, plan->runs[0].stays));
  stands_there(print(run, plan->runs[0]));
  const StreamForecast forecast = forecast_of({{.run = &run, .plan = &plan->runs[0], .store = problem.store}});
  stands_there(fmt::format("{:.1f} ms: {:.1f} computing, {:.1f} waiting; the disk reads for {:.1f} and writes for {:.1f}\n",
                           1e3 * forecast.seconds, 1e3 * forecast.compute, 1e3 * forecast.stalled, 1e3 * forecast.read,
                           1e3 * forecast.write));
}

}  // namespace
}  // namespace ort_train::planning
