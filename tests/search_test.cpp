// Plans of the problems in tests/problems: sound, within the memory, and no further above the lower bound than they have been.

#include "passes/plan/search.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "passes/plan/backing.h"
#include "test_paths.h"
#include "tests/device_problems.h"
#include "tests/problem_file.h"
#include "tests/sound_plan.h"

namespace ort_train::planning {
namespace {

struct Known {
  const char* name;
  double above;  // per cent above the bound, with room for what a little rounding changes: with as many choices, by up to two
};

struct Corpus : ::testing::TestWithParam<Known> {};

TEST_P(Corpus, IsPlannedAsWellAsBefore) {
  const Problem problem = read_problems(ORT_TRAIN_SOURCE_DIR "/tests/problems/" + std::string(GetParam().name) + ".json.gz").at(0);
  Search search(problem);
  const std::optional<Plan> plan = search.best();
  ASSERT_TRUE(plan.has_value());
  EXPECT_GE(plan->seconds, search.bound() * (1 - 1e-6));
  EXPECT_LE(plan->seconds, search.bound() * (1 + GetParam().above / 100));
  int64_t resident = problem.immovable;
  for (size_t i = 0; i < problem.lasting.size(); ++i) resident += plan->resident[i] ? problem.lasting[i].held : 0;
  for (size_t r = 0; r < problem.runs.size(); ++r)
    ort_train::fixtures::expect_sound(problem.runs[r], plan->runs[r], problem.memory - resident);
}

INSTANTIATE_TEST_SUITE_P(Problems, Corpus,
                         ::testing::Values(Known{"char-gpt-47MB", 9}, Known{"char-gpt-50MB", 3}, Known{"char-gpt-55MB", 1},
                                           Known{"char-gpt-60MB", 0.8}, Known{"gpt2-1x256-60", 7}, Known{"gpt2-1x256-min30", 5},
                                           Known{"gpt2-1x256-min10", 7}, Known{"gpt2-4x512-60", 0.5}, Known{"gpt2-4x512-min10", 3},
                                           Known{"gpt2-1x1024-50", 0.5}, Known{"gpt2-1x1024-min20", 2}, Known{"gpt2-bf16-min30", 5},
                                           Known{"gpt2-acc-min20", 3.5}, Known{"xl-4GB", 0.5}, Known{"xl-2GB-8bit", 0.5},
                                           Known{"xl-400MB", 4}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Devices with memory of their own: each memory's plan is sound, what a step needs of the memory behind is there, and the plan isn't far
// above the bound.
struct DeviceCorpus : ::testing::TestWithParam<ort_train::fixtures::DeviceCase> {};

void expect_sound_layer(const Problem& problem, const Plan& plan) {
  int64_t resident = problem.immovable;
  for (size_t i = 0; i < problem.lasting.size(); ++i) resident += plan.resident[i] ? problem.lasting[i].held : 0;
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    ort_train::fixtures::expect_sound(problem.runs[r], plan.runs[r], problem.memory - resident);
    for (const Stay& stay : plan.runs[r].stays) {
      const Piece& piece = problem.runs[r].pieces[stay.piece];
      if (stay.reads) {
        EXPECT_GE(stay.issue, piece.first_readable_step) << piece.name;
      }
      if (stay.writes && piece.written_by_step >= 0) {
        EXPECT_LE(stay.released, piece.written_by_step) << piece.name;
      }
    }
  }
}

TEST_P(DeviceCorpus, IsPlannedInAllMemories) {
  const Problem problem = ort_train::fixtures::problem_of(GetParam());
  EXPECT_EQ(to_json(problem_from_json(to_json(problem))), to_json(problem));
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<HierarchyPlan> layers = plan_hierarchy(problem);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(layers.has_value());
  ASSERT_EQ(layers->plans.size(), 2u);
  expect_sound_layer(problem, layers->plans[0]);
  expect_sound_layer(layers->backing[0], layers->plans[1]);
  EXPECT_LE(bytes_of(problem, layers->plans[0]), problem.memory);
  EXPECT_LE(bytes_of(layers->backing[0], layers->plans[1]), problem.backing[0].bytes);
  EXPECT_GE(layers->seconds, layers->bound * (1 - 1e-6));
  EXPECT_LE(layers->seconds, layers->bound * (1 + GetParam().above / 100));
  const StreamForecast& forecast = layers->forecasts[0];
  std::printf(
      "%-24s bound %7.2f s, plan %7.2f s, %5.1f %% above; computes %.2f s, up %.2f s, down %.2f s, read %.2f s, written %.2f s; planned in "
      "%.2f s\n",
      GetParam().name.c_str(), layers->bound, layers->seconds, 100 * (layers->seconds / layers->bound - 1), forecast.compute, forecast.up,
      forecast.down, forecast.read, forecast.write, took);
}

INSTANTIATE_TEST_SUITE_P(Problems, DeviceCorpus, ::testing::ValuesIn(ort_train::fixtures::device_cases()),
                         [](const auto& info) { return "of_" + info.param.name; });

}  // namespace
}  // namespace ort_train::planning
