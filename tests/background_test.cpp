// Programs with memory to spare: products are put off to the end, so that the last updates have something to run beside.

#include "passes/background.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "exec/program.h"
#include "passes/plan.h"
#include "passes/timeline.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using fixtures::GptShape, fixtures::gpt_training;

// Steps of a hand-made model; each waits for one other, or for none.
struct Steps {
  MemoryModel model;
  StepOrder order;
  std::vector<bool> beside;
  std::vector<double> seconds;

  uint32_t add(double takes, bool in_background = false, int behind = -1) {
    const auto step = static_cast<uint32_t>(order.size());
    model.steps.emplace_back();
    order.push_back(step);
    beside.push_back(in_background);
    seconds.push_back(takes);
    if (behind >= 0) wait(step, static_cast<uint32_t>(behind));
    return step;
  }
  void wait(uint32_t step, uint32_t behind) {
    model.steps[behind].after.push_back(step);
    model.steps[step].before.push_back(behind);
  }
  StepOrder products_last() const { return with_products_last(model, order, beside, seconds, /*share=*/0.5); }
};

// Product a and its update, product b and its, a lookup and its update, which takes long: 0 to 5.
Steps two_products() {
  Steps steps;
  for (const double product : {1.0, 1.0, 0.1}) {
    const auto at = static_cast<int>(steps.add(product));
    steps.add(product == 1 ? 1 : 2, /*in_background=*/true, at);
  }
  return steps;
}

TEST(ProductsLast, ComeBehindTheWorkThatTheyHide) { EXPECT_EQ(two_products().products_last(), (StepOrder{4, 5, 0, 1, 2, 3})); }

TEST(ProductsLast, ArentMoreThanIsNeeded) {
  Steps steps = two_products();
  steps.seconds[5] = 0.5;  // the update at the end lacks little
  EXPECT_EQ(steps.products_last(), (StepOrder{0, 1, 4, 5, 2, 3}));
  steps.seconds[5] = steps.seconds[3] = 0.1;  // and nothing
  EXPECT_EQ(steps.products_last(), steps.order);
}

TEST(ProductsLast, StayBeforeWhatElseNeedsThem) {
  Steps read = two_products();  // the lookup reads what product b made, and the norm at the end all of it
  read.wait(4, 2);
  read.add(0.01, false, 5);
  read.wait(6, 1);
  EXPECT_EQ(read.products_last(), (StepOrder{2, 3, 4, 5, 0, 1, 6}));
  Steps both = two_products();  // and nothing changes where all are read by others
  both.wait(4, 2);
  both.wait(4, 0);
  EXPECT_EQ(both.products_last(), both.order);
  Steps none = two_products();  // or where nothing is beside anything
  none.beside.assign(none.beside.size(), false);
  EXPECT_EQ(none.products_last(), none.order);
}

// An update that waits for the norm of all gradients can't come before that.
TEST(ProductsLast, LeaveUpdatesBehindTheNorm) {
  Steps steps;
  for (int product = 0; product < 2; ++product) {
    const auto at = static_cast<int>(steps.add(1));
    steps.add(0.5, /*in_background=*/true, at);  // its sum of squares
  }
  steps.add(2, /*in_background=*/true);                           // something else
  const auto norm = static_cast<int>(steps.add(0.01, false, 1));  // 5
  steps.wait(5, 3);
  for (const uint32_t product : {0, 2}) steps.wait(steps.add(1, /*in_background=*/true, norm), product);
  EXPECT_EQ(steps.products_last(), (StepOrder{4, 0, 1, 2, 3, 5, 6, 7}));
}

// GPT-2's embedding, which is its head, too, has its whole gradient last of all.
TEST(Overlapped, ProgramsOfGptEndWithProducts) {
  constexpr GptShape kShape{.layers = 4, .heads = 4, .width = 128, .vocabulary = 8000, .length = 64};
  for (const auto& [threads, max_norm] : {std::pair(1, 0.0), {2, 0.0}, {16, 0.0}, {2, 1.0}, {16, 1.0}}) {
    SCOPED_TRACE(fmt::format("{} threads, max_grad_norm {}", threads, max_norm));
    EntryGraph job = gpt_training(kShape, {.optimizer = make_optimizer("adamw"), .max_grad_norm = max_norm}, /*part_bytes=*/512 << 10);
    Planner planner({{.name = "train", .graph = &job.graph}}, {.threads = threads});
    const Program plain = planner.all_in_memory();
    planner.overlap_updates();
    const Program overlapped = planner.all_in_memory();
    const auto seconds = [&](const Program& program) { return run_work(program, program.entries[0], job.graph, ComputeRates{}).seconds; };
    const auto kernels = [](SpaceKind) { return &cpu_kernels(); };
    verify(overlapped, {&job.graph}, kernels);
    if (threads == 1) {
      EXPECT_EQ(seconds(overlapped), seconds(plain));
      continue;
    }
    EXPECT_LT(seconds(overlapped), (max_norm == 0 ? 0.95 : 1.0) * seconds(plain));
    EXPECT_LT(overlapped.memory().bytes, 1.2 * static_cast<double>(plain.memory().bytes));
  }
}

}  // namespace
}  // namespace ort_train
