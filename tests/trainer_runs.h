// A fixture for tests that compare runs of trainers.

#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "frontend/ort_train.h"
#include "tests/nominal_machine.h"
#include "tests/trainer_on.h"

namespace ort_train {

struct TrainerRuns : ::testing::Test {
  const TestFolder folder;
  const std::string profile = nominal_machine(folder);
  DeviceChoice on;  // of all runs

  // From -1 to 1, the same each time.
  static std::vector<float> numbers(int64_t count, int64_t step) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i * step % 2003) / 1000 - 1);
    return values;
  }

  struct Run {
    PlanReport plan;
    Summary summary;
    std::vector<double> losses;  // and gradient norms
  };
  Run train(Options o) {
    Run run;
    o.output_dir = folder / ("out" + std::to_string(count_++));
    fixtures::TrainerOn trainer(on, o, {.on_step = [&](const StepReport& step) {
                                  run.losses.insert(run.losses.end(), {step.loss, step.grad_norm});
                                }});
    run.plan = trainer.plan();
    run.summary = trainer.train();
    EXPECT_LE(run.summary.measured_peak_bytes, run.summary.planned_peak_bytes);
    return run;
  }
  int64_t least_budget(const Options& o) const { return fixtures::TrainerOn(on, o).plan().minimum_budget; }
  // Stopped after a step, as by Ctrl-C, and resumed by another trainer: the summary of that one.
  Summary train_in_two(const Options& o, int64_t stop_after) const { return train_in_two(o, o, stop_after); }
  Summary train_in_two(const Options& begun, Options resumed, int64_t stop_after) const {
    {
      Trainer* running = nullptr;
      fixtures::TrainerOn trainer(on, begun, {.on_step = [&](const StepReport& step) {
                                    if (step.step == stop_after) running->request_stop();
                                  }});
      running = &trainer;
      EXPECT_TRUE(trainer.train().stopped);
    }
    resumed.resume = true;
    return fixtures::TrainerOn(on, resumed).train();
  }

 private:
  int count_ = 0;
};

}  // namespace ort_train
