// Plans of the problems in tests/problems: sound, within the memory, and no further above the lower bound than they have been.

#include "passes/plan/search.h"

#include <gtest/gtest.h>

#include "test_paths.h"
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
  const Problem problem = read_problem(ORT_TRAIN_SOURCE_DIR "/tests/problems/" + std::string(GetParam().name) + ".json.gz");
  Search search(problem);
  const std::optional<Plan> plan = search.best();
  ASSERT_TRUE(plan.has_value());
  EXPECT_GE(plan->seconds, search.bound() * (1 - 1e-6));
  EXPECT_LE(plan->seconds, search.bound() * (1 + GetParam().above / 100));
  int64_t resident = problem.always;
  for (size_t i = 0; i < problem.lasting.size(); ++i) resident += plan->resident[i] ? problem.lasting[i].held : 0;
  for (size_t r = 0; r < problem.runs.size(); ++r)
    ort_train::fixtures::expect_sound(problem.runs[r], plan->runs[r], problem.memory - resident);
}

INSTANTIATE_TEST_SUITE_P(Problems, Corpus,
                         ::testing::Values(Known{"char-gpt-47MB", 9}, Known{"char-gpt-50MB", 3}, Known{"char-gpt-55MB", 1},
                                           Known{"char-gpt-60MB", 0.5}, Known{"gpt2-1x256-60", 7}, Known{"gpt2-1x256-min30", 5},
                                           Known{"gpt2-1x256-min10", 7}, Known{"gpt2-4x512-60", 0.5}, Known{"gpt2-4x512-min10", 3},
                                           Known{"gpt2-1x1024-50", 0.5}, Known{"gpt2-1x1024-min20", 2}, Known{"gpt2-bf16-min30", 5},
                                           Known{"gpt2-acc-min20", 3.5}, Known{"xl-4GB", 0.5}, Known{"xl-2GB-8bit", 0.5},
                                           Known{"xl-400MB", 4}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace ort_train::planning
