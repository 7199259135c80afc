// eval_strategy and save_strategy: after which steps a run evaluates and saves, also one that is stopped and resumed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "tests/classifier_runs.h"
#include "tests/failures.h"

namespace ort_train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An epoch is 8 steps of a batch, or 3 of up to 3 batches, the last of 2.
struct EpochStrategies : ClassifierRuns {
  Options job(const std::string& eval_strategy, const std::string& save_strategy, int64_t accumulation = 1) const {
    Options o = ClassifierRuns::job();
    o.overwrite = true;
    o.eval_strategy = eval_strategy;
    o.save_strategy = save_strategy;
    o.save_total_limit = 20;
    o.gradient_accumulation_steps = accumulation;
    return o;
  }
  static std::vector<std::string> saved_by(const Options& o) {
    std::filesystem::remove_all(o.output_dir);
    Trainer(o).train();
    return checkpoints_in(o.output_dir);
  }
};

TEST_F(EpochStrategies, EvaluateAfterEachEpoch) {
  EXPECT_THAT(run(job("epoch", "")).evaluated(), ElementsAre(8, 16));
  Options o = job("epoch", "", 3);
  o.max_steps = 8;
  EXPECT_THAT(run(o).evaluated(), ElementsAre(3, 6, 8));
  std::vector<double> epochs;  // of the lines with a held-out loss
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("eval_loss")) epochs.push_back(json.at("epoch"));
  }
  EXPECT_THAT(epochs, ElementsAre(1.0, 2.0, 2.75)) << "the last one ends with 24 of 32 samples";
  o.max_steps = 2;
  EXPECT_THAT(run(o).evaluated(), ElementsAre(2)) << "the run is shorter than an epoch";
  o.max_steps = -1;
  o.num_train_epochs = 1.5;
  EXPECT_THAT(run(o).evaluated(), ElementsAre(3, 5));
}

TEST_F(EpochStrategies, EvaluateAsThatManyStepsDo) {
  Options by_epoch = job("epoch", "", 3), by_steps = job("steps", "", 3);
  by_steps.eval_steps = 3;
  const Seen one = run(by_epoch);
  const std::vector<std::string> lines = lines_of(by_epoch.log_file);
  EXPECT_EQ(run(by_steps).losses, one.losses);
  EXPECT_EQ(lines_of(by_steps.log_file), lines);
  by_steps.eval_strategy.clear();
  EXPECT_EQ(run(by_steps).losses, one.losses);
}

TEST_F(EpochStrategies, HoldNothingOutWhereNothingIsEvaluated) {
  EXPECT_THAT(run(job("no", "")).evaluated(), IsEmpty());
  EXPECT_THAT(run(job("", "")).evaluated(), IsEmpty());
  Options single = job("no", "");
  single.data += "/train.safetensors";
  EXPECT_EQ(Trainer(single).plan().train_samples, kTrained);
  single.eval_strategy = "epoch";
  EXPECT_EQ(Trainer(single).plan().train_samples, kTrained - 4) << "a tenth is held out";
}

TEST_F(EpochStrategies, SaveAfterEachEpoch) {
  EXPECT_THAT(saved_by(job("", "epoch")), ElementsAre("checkpoint-16", "checkpoint-8"));
  Options o = job("", "epoch", 3);
  o.max_steps = 8;
  EXPECT_THAT(saved_by(o), ElementsAre("checkpoint-3", "checkpoint-6", "checkpoint-8"));
  o.save_strategy = "no";
  EXPECT_THAT(saved_by(o), ElementsAre("checkpoint-8"));
  for (const char* by_steps : {"", "steps"}) {
    o.save_strategy = by_steps;
    o.save_steps = 5;
    EXPECT_THAT(saved_by(o), ElementsAre("checkpoint-5", "checkpoint-8"));
  }
}

TEST_F(EpochStrategies, SaveWhereTheRunIsStopped) {
  for (const char* strategy : {"no", "epoch"}) {
    const Options o = job("", strategy);
    std::filesystem::remove_all(o.output_dir);
    Seen seen;
    add_run(o, seen, /*stop_after=*/5);
    EXPECT_THAT(checkpoints_in(o.output_dir), ElementsAre("checkpoint-5")) << strategy;
  }
}

// Stopped after each of these steps: within epochs, and at their ends before the evaluation that is due there.
TEST_F(EpochStrategies, AreTheSameInARunThatIsStoppedAgainAndAgain) {
  for (const char* saves : {"epoch", "no"}) {
    Options o = job("epoch", saves, 3);
    o.max_steps = 11;
    o.load_best_model_at_end = true;
    o.lr_scheduler_type = "reduce_lr_on_plateau";
    o.lr_scheduler_kwargs = {{"patience", "0"}};
    o.output_dir = folder / "whole";
    o.log_file = folder / "whole.jsonl";
    const Seen whole = run(o);
    EXPECT_THAT(whole.evaluated(), ElementsAre(3, 6, 9, 11));
    Options pieces = o;
    pieces.output_dir = folder / fmt::format("pieces-{}", saves);
    pieces.log_file = folder / "pieces.jsonl";
    Seen seen;
    for (const int64_t stop_after : {1, 3, 4, 6, 8, 9, 10}) {
      add_run(pieces, seen, stop_after);
      pieces.overwrite = false;
      pieces.resume = true;
    }
    add_run(pieces, seen);
    EXPECT_EQ(seen.losses, whole.losses);
    EXPECT_EQ(seen.rates, whole.rates);
    EXPECT_EQ(seen.summary.best_step, whole.summary.best_step);
    EXPECT_EQ(seen.summary.weights_hash, whole.summary.weights_hash);
    EXPECT_EQ(lines_of(pieces.log_file), lines_of(o.log_file));
    std::filesystem::remove(pieces.log_file);
  }
}

// Where the epoch that it is in ends is what counts then: a number of steps says something else.
TEST_F(EpochStrategies, FollowTheEpochOfARunThatGoesOnWithAnotherBatch) {
  Options o = job("epoch", "epoch");
  std::filesystem::remove_all(o.output_dir);
  Seen seen;
  add_run(o, seen, /*stop_after=*/5);
  o.overwrite = false;
  o.resume = true;
  o.batch_size = 8;
  add_run(o, seen);
  EXPECT_THAT(seen.evaluated(), ElementsAre(7, 11, 15, 16)) << "two batches were left of the first epoch";
  EXPECT_THAT(checkpoints_in(o.output_dir), ElementsAre("checkpoint-11", "checkpoint-15", "checkpoint-16", "checkpoint-5", "checkpoint-7"));
  EXPECT_THAT(seen.notes, HasSubstr("batch_size"));
}

TEST_F(EpochStrategies, CountEpochsWithoutABetterLoss) {
  Options o = job("epoch", "");
  o.early_stopping_patience = 1;
  o.early_stopping_threshold = 1e9;
  const Seen seen = run(o);
  EXPECT_EQ(seen.summary.steps, 16) << "the first is better than nothing, the second ends the run";
  o.max_steps = 40;
  const Seen longer = run(o);
  EXPECT_TRUE(longer.summary.early_stopped);
  EXPECT_EQ(longer.summary.steps, 16);
}

TEST_F(EpochStrategies, AreRefusedWhereTheyContradictTheSteps) {
  using Case = std::tuple<std::string, std::string, int64_t, int64_t, std::string>;
  for (const auto& [evaluates, saves, eval_steps, save_steps, sentence] :
       {Case{"epochs", "", 0, 500, "`eval_strategy` epochs: is not known: no, steps or epoch"},
        Case{"", "best", 0, 500, "`save_strategy` best: is not known: no, steps or epoch"},
        Case{"steps", "", 0, 500, "`eval_strategy` steps needs `eval_steps`: after how many"},
        Case{"epoch", "", 4, 500, "`eval_strategy` epoch and `eval_steps` 4 contradict each other: give one of them"},
        Case{"no", "", 4, 500, "`eval_strategy` no and `eval_steps` 4 contradict each other: give one of them"},
        Case{"", "epoch", 0, 7, "`save_strategy` epoch and `save_steps` 7 contradict each other: give one of them"},
        Case{"", "epoch", 0, 0, "`save_strategy` epoch and `save_steps` 0 contradict each other: give one of them"},
        Case{"", "no", 0, 7, "`save_strategy` no and `save_steps` 7 contradict each other: give one of them"}}) {
    Options o = job(evaluates, saves);
    o.eval_steps = eval_steps;
    o.save_steps = save_steps;
    EXPECT_EQ(error_of(ErrorCode::usage, [&] { Trainer{o}; }), sentence);
  }
  Options o = job("", "no");
  o.save_steps = 0;
  EXPECT_THAT(saved_by(o), ElementsAre("checkpoint-16"));
}

}  // namespace
}  // namespace ort_train
