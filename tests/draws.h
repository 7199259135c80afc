// What tests of nodes that draw random numbers share: addresses decide what is drawn, and of a run's options the seed alone.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/ort_train.h"
#include "graph/types.h"
#include "tests/trainer_runs.h"

namespace ort_train::fixtures {

// draw(shape, random, ordinal, shared) is what a node draws; `random` is kRandomInput: seed, step, samples before, samples. `whole` is
// draw({8, 5, 1001}, {42, 3, 0, 8}, 5, false). expect_other(drawn, what): that it isn't whole.
template <typename Draw, typename ExpectOther>
void expect_addresses_decide(const std::vector<float>& whole, const Draw& draw, const ExpectOther& expect_other) {
  for (const int64_t samples : {1, 2, 4}) {  // micro-batches draw what the large batch draws
    std::vector<float> parts;
    for (int64_t first = 0; first < 8; first += samples) {
      const std::vector<float> part = draw({samples, 5, 1001}, {42, 3, first, samples}, 5, false);
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, whole) << samples;
  }
  EXPECT_EQ(draw({8 * 5, 1001}, {42, 3, 0, 8}, 5, false), whole);  // batch and positions merged
  // What depends on no sample is the same in each micro-batch.
  EXPECT_EQ(draw({1, 1001}, {42, 3, 6, 2}, 5, true), draw({1, 1001}, {42, 3, 0, 2}, 5, true));
  expect_other(draw({8, 5, 1001}, {42, 4, 0, 8}, 5, false), "step");
  expect_other(draw({8, 5, 1001}, {43, 3, 0, 8}, 5, false), "seed");
  expect_other(draw({8, 5, 1001}, {42 + (int64_t{1} << 40), 3, 0, 8}, 5, false), "upper half of the seed");
  expect_other(draw({8, 5, 1001}, {42, 3, 8, 8}, 5, false), "samples");
  expect_other(draw({8, 5, 1001}, {42, 3, 0, 8}, 6, false), "node");
}

// with_recompute(options) is a run that recomputes. Returns the run of the options as they are.
template <typename WithRecompute>
TrainerRuns::Run expect_only_the_seed_decides(TrainerRuns& runs, const Options& o, const WithRecompute& with_recompute) {
  const TrainerRuns::Run plain = runs.train(o);
  Options other = o;
  other.seed = 43;
  EXPECT_NE(runs.train(other).losses, plain.losses);
  for (const int threads : {1, 3}) {
    other = o;
    other.threads = threads;
    EXPECT_EQ(runs.train(other).summary.weights_hash, plain.summary.weights_hash) << threads;
  }
  for (const char* const mode : {"sqrt", "all"}) {
    other = o;
    other.recompute = mode;
    const TrainerRuns::Run run = with_recompute(other);
    EXPECT_EQ(run.losses, plain.losses) << mode;
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << mode;
  }
  return plain;
}

struct LossesAtRest {
  std::vector<double> trained, evaluated;
};

// Of a run that changes no weight: of its steps, and of half of the samples, which it evaluates after each of them.
inline LossesAtRest losses_at_rest(Options o) {
  o.learning_rate = 0;
  o.eval_steps = 1;
  o.validation_split = 0.5;
  o.overwrite = true;
  LossesAtRest losses;
  Trainer trainer(o, {.on_step = [&](const StepReport& step) { losses.trained.push_back(step.loss); },
                      .on_eval = [&](const EvalReport& report) { losses.evaluated.push_back(report.loss); }});
  trainer.train();
  return losses;
}

}  // namespace ort_train::fixtures
