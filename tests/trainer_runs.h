// A fixture for tests that compare runs of trainers.

#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "frontend/ort_train.h"
#include "tests/nominal_machine.h"

namespace ort_train {

struct TrainerRuns : ::testing::Test {
  const TestFolder folder;
  const std::string profile = nominal_machine(folder);

  struct Run {
    PlanReport plan;
    Summary summary;
    std::vector<double> losses;  // and gradient norms
  };
  Run train(Options o) {
    Run run;
    o.output_dir = folder / ("out" + std::to_string(count_++));
    Trainer trainer(o, {.on_step = [&](const StepReport& step) { run.losses.insert(run.losses.end(), {step.loss, step.grad_norm}); }});
    run.plan = trainer.plan();
    run.summary = trainer.train();
    EXPECT_LE(run.summary.measured_peak_bytes, run.summary.planned_peak_bytes);
    return run;
  }

 private:
  int count_ = 0;
};

}  // namespace ort_train
