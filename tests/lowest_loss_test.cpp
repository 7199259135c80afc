// load_best_model_at_end and early stopping: which step's weights are the result, when a run ends, and that one which is interrupted comes
// to the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "frontend/held_out.h"
#include "tests/chain_model.h"
#include "tests/classifier_runs.h"
#include "tests/failures.h"
#include "tests/io_faults.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As transformers counts: EarlyStoppingCallback.check_metric_value, then Trainer._determine_best_metric. (What is no number counts as no
// better.)
TEST(HeldOutLosses, AreComparedWithTheLowestOfAllBefore) {
  HeldOutState seen;
  const auto expect = [&](int64_t step, double loss, int64_t without_better, int64_t best_step) {
    seen.observe(step, loss, /*threshold=*/0.5);
    EXPECT_EQ(seen.without_better, without_better) << step;
    EXPECT_EQ(seen.best_step, best_step) << step;
  };
  expect(10, std::numeric_limits<double>::quiet_NaN(), 1, 0);
  expect(20, 4.0, 0, 20);
  expect(30, 3.75, 1, 30);  // lower, and not by the threshold
  expect(40, 3.25, 2, 40);  // nor is this, by 0.5 than the last
  expect(50, 3.25, 3, 40);  // a tie isn't lower
  expect(60, std::numeric_limits<double>::infinity(), 4, 40);
  expect(70, 2.5, 0, 70);
  EXPECT_EQ(seen.best, 2.5);
  EXPECT_EQ(seen.lowest, 2.5);
}

// The weights of the lowest loss couldn't be saved: the next lowest of the others counts for the result, and none of them as better.
TEST(HeldOutLosses, CountAsSeenWhereTheirWeightsAreNotKept) {
  HeldOutState seen;
  seen.observe(10, 4.0, /*threshold=*/0);
  seen.observe(20, 1.0, 0);
  seen.best = 4.0;
  seen.best_step = 10;
  seen.observe(30, 2.0, 0);
  EXPECT_EQ(seen.without_better, 1);
  EXPECT_EQ(seen.best_step, 30);
  EXPECT_EQ(seen.best, 2.0);
  EXPECT_EQ(seen.lowest, 1.0);
  seen.observe(40, 0.5, 0);
  EXPECT_EQ(seen.without_better, 0);
  EXPECT_EQ(seen.best_step, 40);
  EXPECT_EQ(seen.lowest, 0.5);
}

struct LowestLoss : ClassifierRuns {
  // Evaluated every two steps; the loss is lowest in the middle.
  Options job() const {
    Options o = ClassifierRuns::job();
    o.eval_steps = 2;
    return o;
  }
  Options best_job() const {
    Options o = job();
    o.load_best_model_at_end = true;
    return o;
  }
  // The summary and the notes of a run whose disk is full from the evaluation of a step to the next step, where `is_full` says so.
  static std::pair<Summary, std::string> run_with_full_disk(const Options& o, const std::function<bool(int64_t step)>& is_full) {
    std::optional<IoFaults> full;
    std::string notes;
    const Summary summary = Trainer(o, {.on_step = [&](const StepReport&) { full.reset(); },
                                        .on_eval =
                                            [&](const EvalReport& report) {
                                              if (is_full(report.step)) full.emplace(Fault::full, 1, /*lasts=*/true);
                                            },
                                        .on_note = [&](const std::string& note) { notes += note + "\n"; }})
                                .train();
    return {summary, notes};
  }
  static int64_t lowest(const std::map<int64_t, double>& losses) {
    return std::min_element(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
  }
  // The weights after that many steps.
  std::string hash_after(int64_t steps) const {
    Options o = job();
    o.output_dir = folder / fmt::format("after-{}", steps);
    o.overwrite = true;
    o.log_file.clear();
    o.max_steps = steps;
    return Trainer(o).train().weights_hash;
  }
};

TEST_F(LowestLoss, HasTheWeightsThatAreTheResult) {
  const Options o = best_job();
  Seen seen;
  Trainer trainer(o, {.on_eval = [&](const EvalReport& report) { seen.losses[report.step] = report.loss; },
                      .on_note = [&](const std::string& note) { seen.notes += note + "\n"; }});
  const Summary summary = trainer.train();
  const int64_t best = lowest(seen.losses);
  ASSERT_GT(best, 2);
  ASSERT_LT(best, 10);
  EXPECT_EQ(summary.steps, 16);
  EXPECT_EQ(summary.best_step, best);
  EXPECT_EQ(summary.best_eval_loss, seen.losses.at(best));
  EXPECT_EQ(summary.eval_loss, seen.losses.at(16)) << "of the last evaluation";
  EXPECT_EQ(trainer.evaluate(), summary.best_eval_loss) << "the trainer goes on with them";
  EXPECT_EQ(summary.weights_hash, hash_after(best));
  EXPECT_EQ(read_file(summary.model_path), read_file(folder / fmt::format("after-{}/model.onnx", best)));
  EXPECT_THAT(seen.notes, HasSubstr(fmt::format("the held-out loss was lowest after step {}: {:.6g}", best, summary.best_eval_loss)));
  EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-16", fmt::format("checkpoint-{}", best)));
  const nlohmann::json reported = summary_of(log);
  EXPECT_EQ(reported.at("best_step").get<int64_t>(), best);
  EXPECT_EQ(reported.at("best_eval_loss").get<double>(), summary.best_eval_loss);
  EXPECT_EQ(reported.at("weights_hash").get<std::string>(), summary.weights_hash);
  EXPECT_FALSE(reported.at("early_stopped").get<bool>());
  // What the run goes on from is its last step.
  Options longer = o;
  longer.resume = true;
  longer.max_steps = 17;
  EXPECT_THAT(run(longer).steps, ElementsAre(17));
}

TEST_F(LowestLoss, IsReportedWithoutTheOption) {
  const Seen seen = run(job());
  EXPECT_EQ(seen.summary.best_step, lowest(seen.losses));
  EXPECT_EQ(seen.summary.weights_hash, hash_after(16));
  Options o = job();
  o.eval_steps = 0;
  o.overwrite = true;
  const Summary none = Trainer(o).train();
  EXPECT_EQ(none.best_step, 0);
  EXPECT_TRUE(std::isnan(none.best_eval_loss));
}

TEST_F(LowestLoss, StaysWhileOtherCheckpointsComeAndGo) {
  for (const int64_t limit : {1, 2, 3}) {
    Options o = best_job();
    o.save_steps = 1;
    o.save_total_limit = limit;
    const Summary summary = Trainer(o).train();
    EXPECT_LT(summary.best_step, 14);
    std::vector<std::string> kept{fmt::format("checkpoint-{}", summary.best_step), "checkpoint-16"};
    if (limit == 3) kept.push_back("checkpoint-15");
    EXPECT_THAT(checkpoints_in(out), ::testing::UnorderedElementsAreArray(kept)) << limit;
    EXPECT_EQ(summary.weights_hash, hash_after(summary.best_step));
    fs::remove_all(out);
  }
}

// Where the last step is the best nothing is loaded.
TEST_F(LowestLoss, MayBeTheLastStepsOwn) {
  Options o = best_job();
  o.max_steps = 4;
  const Seen seen = run(o);
  ASSERT_EQ(lowest(seen.losses), 4);
  EXPECT_EQ(seen.summary.best_step, 4);
  EXPECT_EQ(seen.summary.weights_hash, hash_after(4));
  Options again = o;
  again.resume = true;  // from a checkpoint that was saved before that was known
  EXPECT_EQ(run(again).summary.best_step, 4);
}

TEST_F(LowestLoss, EndsARunThatDoesNotGetBetter) {
  Options o = best_job();
  o.early_stopping_patience = 2;
  const Seen seen = run(o);
  const int64_t best = lowest(seen.losses), end = best + 4;
  ASSERT_LT(end, 16);
  EXPECT_EQ(seen.summary.steps, end);
  EXPECT_TRUE(seen.summary.early_stopped);
  EXPECT_EQ(seen.summary.best_step, best);
  EXPECT_EQ(seen.summary.weights_hash, hash_after(best));
  EXPECT_TRUE(fs::exists(seen.summary.model_path));
  EXPECT_THAT(seen.notes, HasSubstr(fmt::format("the run ends early, after step {} of 16: 2 evaluations without a better loss", end)));
  EXPECT_TRUE(summary_of(log).at("early_stopped").get<bool>());
  // It is over; with more patience it goes on.
  o.resume = true;
  const Seen again = run(o);
  EXPECT_THAT(again.steps, IsEmpty());
  EXPECT_EQ(again.summary.weights_hash, seen.summary.weights_hash);
  EXPECT_TRUE(again.summary.early_stopped);
  o.early_stopping_patience = 4;
  const Seen longer = run(o);
  EXPECT_EQ(longer.summary.steps, best + 8);
  EXPECT_EQ(longer.summary.best_step, best);
  EXPECT_EQ(longer.summary.weights_hash, seen.summary.weights_hash);
}

// Without load_best_model_at_end the weights are those of the step at which the run ends. An earlier run's checkpoints go then.
TEST_F(LowestLoss, EndsARunWithItsLastWeights) {
  Options o = job();
  o.max_steps = 3;
  Trainer(o).train();
  o = job();
  o.overwrite = true;
  o.early_stopping_patience = 1;
  o.early_stopping_threshold = 1e9;
  o.save_steps = 4;
  const Seen seen = run(o);
  EXPECT_EQ(seen.summary.steps, 4) << "the second evaluation is no better";
  EXPECT_EQ(seen.summary.weights_hash, hash_after(4));
  EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-4"));
}

TEST_F(LowestLoss, CountsOnlyWhatIsLowerByTheThreshold) {
  const Seen plain = run(job());
  // By as much as between the last two evaluations before the lowest.
  const int64_t best = lowest(plain.losses);
  const double last_gain = plain.losses.at(best - 2) - plain.losses.at(best);
  ASSERT_GT(last_gain, 0);
  Options o = job();
  o.overwrite = true;
  o.early_stopping_patience = 1;
  o.early_stopping_threshold = last_gain;
  EXPECT_EQ(run(o).summary.steps, best);
  o.early_stopping_threshold = 0;
  EXPECT_EQ(run(o).summary.steps, best + 2);
}

// Stopped after each of these steps, before its evaluation where one is due.
TEST_F(LowestLoss, IsTheSameInARunThatIsStoppedAgainAndAgain) {
  for (const int64_t save_steps : {3, 500}) {
    Options o = best_job();
    o.early_stopping_patience = 3;
    o.save_steps = save_steps;
    o.output_dir = folder / fmt::format("whole-{}", save_steps);
    o.log_file = folder / "whole.jsonl";
    const Seen whole = run(o);
    ASSERT_TRUE(whole.summary.early_stopped);
    Options pieces = o;
    pieces.output_dir = folder / fmt::format("pieces-{}", save_steps);
    pieces.log_file = log;
    Seen seen;
    for (const int64_t stop_after : {1, 2, 5, 6, 7, 8, 11}) {
      add_run(pieces, seen, stop_after);
      pieces.resume = true;
    }
    add_run(pieces, seen);
    EXPECT_EQ(seen.losses, whole.losses);
    EXPECT_EQ(seen.steps, whole.steps);
    EXPECT_EQ(seen.summary.best_step, whole.summary.best_step);
    EXPECT_EQ(seen.summary.best_eval_loss, whole.summary.best_eval_loss);
    EXPECT_EQ(seen.summary.weights_hash, whole.summary.weights_hash);
    EXPECT_EQ(seen.summary.early_stopped, whole.summary.early_stopped);
    EXPECT_EQ(read_file(seen.summary.model_path), read_file(whole.summary.model_path));
    EXPECT_EQ(lines_of(log), lines_of(o.log_file));
  }
}

// Elsewhere the checkpoint of the lowest loss isn't there, unless it is the one that the run goes on from.
TEST_F(LowestLoss, GoesAlongIntoAnotherFolderWhereTheRunGoesOnFromIt) {
  Options o = best_job();
  const int64_t best = lowest(run(o).losses);
  o.overwrite = true;
  o.save_steps = best + 1;
  o.save_total_limit = 20;
  run(o);
  o.overwrite = false;
  for (const int64_t from : {best, best + 1}) {
    Options other = o;
    other.log_file.clear();
    other.resume_from_checkpoint = fmt::format("{}/checkpoint-{}", out, from);
    other.output_dir = folder / fmt::format("from-{}", from);
    const Seen seen = run(other);
    const bool is_lost = seen.notes.find("only later ones count") != std::string::npos;
    EXPECT_EQ(is_lost, from != best) << seen.notes;
    EXPECT_EQ(seen.summary.best_step, is_lost ? best + 2 : best) << "after it the loss rises";
    EXPECT_EQ(seen.summary.weights_hash, hash_after(seen.summary.best_step));
  }
}

TEST_F(LowestLoss, ThatCantBeSavedGivesWayToTheOneBefore) {
  Options o = best_job();
  const int64_t best = lowest(run(o).losses);
  o.overwrite = true;
  const auto [summary, notes] = run_with_full_disk(o, [&](int64_t step) { return step == best; });
  EXPECT_THAT(notes, HasSubstr(fmt::format("step {} could not be saved", best)));
  EXPECT_NE(summary.best_step, best);
  EXPECT_EQ(summary.weights_hash, hash_after(summary.best_step));
}

// What can't be saved is no reason to train for longer.
TEST_F(LowestLoss, EndsARunAtTheSameStepWhereItCantBeSaved) {
  Options o = best_job();
  o.log_file.clear();
  o.early_stopping_patience = 2;
  const Seen whole = run(o);
  ASSERT_TRUE(whole.summary.early_stopped);
  o.overwrite = true;
  const auto [summary, notes] = run_with_full_disk(o, [&](int64_t step) { return step < whole.summary.steps; });
  EXPECT_THAT(notes, HasSubstr("step 2 could not be saved"));
  EXPECT_EQ(summary.steps, whole.summary.steps);
  EXPECT_TRUE(summary.early_stopped);
  EXPECT_EQ(summary.best_step, summary.steps) << "of no other step are the weights there";
  EXPECT_EQ(summary.weights_hash, hash_after(summary.steps));
}

TEST_F(LowestLoss, ThatIsGoneAtTheEndIsOneSentence) {
  Options o = best_job();
  const Summary whole = Trainer(o).train();
  o.overwrite = true;
  const std::string sentence = error_of(ErrorCode::io, [&] {
    Trainer(o, {.on_step =
                    [&](const StepReport& report) {
                      if (report.step == 12) fs::remove_all(fmt::format("{}/checkpoint-{}", out, whole.best_step));
                    }})
        .train();
  });
  const std::string what = fmt::format("the weights of the lowest held-out loss, after step {}, can't be loaded", whole.best_step);
  EXPECT_THAT(sentence,
              AllOf(HasSubstr(what), HasSubstr("is not there any more"), HasSubstr("the run is saved in " + out + "/checkpoint-16")));
  o.overwrite = false;
  o.resume = true;
  o.load_best_model_at_end = false;
  EXPECT_EQ(Trainer(o).train().weights_hash, hash_after(16));
}

TEST_F(LowestLoss, OptionsThatDontGoTogetherAreRefused) {
  const auto refusal = [&](const auto& change) {
    Options o = job();
    change(o);
    return error_of(ErrorCode::usage, [&] { Trainer{o}; });
  };
  EXPECT_THAT(refusal([](Options& o) { o.load_best_model_at_end = true, o.eval_steps = 0; }),
              HasSubstr("`load_best_model_at_end` goes by the held-out loss: it needs evaluations (`eval_steps`)"));
  EXPECT_THAT(refusal([](Options& o) { o.early_stopping_patience = 2, o.eval_steps = 0; }),
              HasSubstr("`early_stopping_patience` 2: follows the held-out loss: it needs evaluations (`eval_steps`)"));
  EXPECT_THAT(refusal([](Options& o) { o.early_stopping_patience = -1; }), HasSubstr("`early_stopping_patience` -1: is negative"));
  EXPECT_THAT(refusal([](Options& o) { o.early_stopping_threshold = 0.1; }), HasSubstr("goes with `early_stopping_patience`"));
  for (const double wrong : {-0.1, double{INFINITY}, double{NAN}}) {
    EXPECT_THAT(refusal([&](Options& o) { o.early_stopping_patience = 1, o.early_stopping_threshold = wrong; }),
                HasSubstr("`early_stopping_threshold`"));
  }
}

// --- where weights live on a disk -------------------------------------------------------------------------------------------------------

struct LowestLossOfStreams : TrainerRuns {
  // Rates that drive the weights away after a first step that leaves them where they are.
  Options job() const {
    Options o = chain_job(folder / "chain", 6, 128, 640);
    o.profile = profile;
    o.learning_rate = 0.5;
    o.lr_scheduler_type = "constant_with_warmup";
    o.warmup_steps = 2;
    o.eval_steps = 1;
    o.validation_split = 0.2;
    o.load_best_model_at_end = true;
    o.max_steps = 4;
    return o;
  }
};

TEST_F(LowestLossOfStreams, IsThatOfTheRunInMemory) {
  Options o = job();
  o.output_dir = folder / "memory";
  const Summary plain = Trainer(o).train();
  ASSERT_LT(plain.best_step, 4);
  fs::create_directory(folder / "nvme");
  o.nvme_path = folder / "nvme";
  o.output_dir = folder / "disk";
  o.save_steps = 1;
  o.budget = Trainer(o).plan().minimum_budget;
  ASSERT_GT(Trainer(o).plan().state_bytes, 0);
  const auto expect_best = [&](const Summary& summary) {
    EXPECT_EQ(summary.best_step, plain.best_step);
    EXPECT_EQ(summary.best_eval_loss, plain.best_eval_loss);
    EXPECT_EQ(summary.weights_hash, plain.weights_hash);
    EXPECT_EQ(read_file(summary.model_path), read_file(plain.model_path));
    EXPECT_EQ(ClassifierRuns::checkpoints_in(o.output_dir).size(), 2u);
    const std::string best = fmt::format("{}/checkpoint-{}", o.output_dir, summary.best_step);
    EXPECT_TRUE(fs::exists(best + "/weights.safetensors")) << "the slots are those of the last step";
    EXPECT_FALSE(fs::exists(o.output_dir + "/checkpoint-4/weights.safetensors"));
  };
  {
    Trainer trainer(o);
    const Summary summary = trainer.train();
    EXPECT_GT(summary.disk_bytes_read, 0);
    expect_best(summary);
    EXPECT_EQ(trainer.evaluate(), summary.best_eval_loss);
  }
  // Stopped after each step.
  o.output_dir = folder / "pieces";
  Options pieces = o;
  for (const int64_t stop_after : {1, 2, 3}) {
    Trainer* self = nullptr;
    Trainer trainer(pieces, {.on_step = [&](const StepReport& report) {
                      if (report.step == stop_after) self->request_stop();
                    }});
    self = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
    pieces.resume = true;
  }
  expect_best(Trainer(pieces).train());
}

// The last step was the best, in slots that a longer run would write to.
TEST_F(LowestLossOfStreams, IsWrittenOutBeforeTheRunGoesOn) {
  Options o = job();
  o.nvme_path = folder / "nvme";
  fs::create_directory(o.nvme_path);
  o.output_dir = folder / "disk";
  o.budget = Trainer(o).plan().minimum_budget;
  o.max_steps = 1;
  const Summary first = Trainer(o).train();
  ASSERT_EQ(first.best_step, 1);
  EXPECT_FALSE(fs::exists(o.output_dir + "/checkpoint-1/weights.safetensors"));
  o.resume = true;
  o.max_steps = 4;
  const Summary summary = Trainer(o).train();
  EXPECT_EQ(summary.best_step, 1);
  EXPECT_EQ(summary.weights_hash, first.weights_hash);
}

// The newest checkpoint is written out, so a run that goes on from it makes a state file beside that of the one before.
TEST_F(LowestLossOfStreams, IsNoStateFileToGoOnIn) {
  Options o = job();
  o.nvme_path = folder / "nvme";
  fs::create_directory(o.nvme_path);
  o.output_dir = folder / "disk";
  o.eval_steps = 2;
  o.save_steps = 1;
  o.save_total_limit = 2;
  o.budget = Trainer(o).plan().minimum_budget;
  const PlanReport plan = Trainer(o).plan();
  ASSERT_GT(plan.state_bytes, 0);
  o.nvme_budget = plan.disk_bytes;
  {
    Trainer* self = nullptr;
    Trainer trainer(o, {.on_eval = [&](const EvalReport&) { self->request_stop(); }});
    self = &trainer;
    EXPECT_EQ(trainer.train().steps, 2);
  }
  ASSERT_TRUE(fs::exists(o.output_dir + "/checkpoint-2/weights.safetensors"));
  ASSERT_TRUE(fs::exists(o.output_dir + "/checkpoint-1/state.bin"));
  o.resume = true;
  EXPECT_THAT(error_of(ErrorCode::budget, [&] { Trainer{o}; }), HasSubstr(fmt::format("more than `nvme_budget` {}", plan.disk_bytes)));
  o.nvme_budget = 2 * plan.disk_bytes;
  EXPECT_EQ(Trainer(o).train().steps, 4);
}

// The plan counts on the newest checkpoint's state file; that checkpoint turns out to be damaged.
TEST_F(LowestLossOfStreams, IsGoneOnFromOnlyWithinTheBudgetOfTheDisk) {
  Options o = job();
  o.nvme_path = folder / "nvme";
  fs::create_directory(o.nvme_path);
  o.output_dir = folder / "disk";
  o.budget = Trainer(o).plan().minimum_budget;
  const PlanReport plan = Trainer(o).plan();
  o.save_steps = 1;
  o.nvme_budget = plan.disk_bytes;
  {
    Trainer* self = nullptr;
    Trainer trainer(o, {.on_step = [&](const StepReport& report) {
                      if (report.step == 2) self->request_stop();
                    }});
    self = &trainer;
    EXPECT_EQ(trainer.train().best_step, 1);
  }
  ASSERT_TRUE(fs::exists(o.output_dir + "/checkpoint-1/weights.safetensors"));
  const std::string newest = o.output_dir + "/checkpoint-2";
  {
    const nlohmann::json slots = nlohmann::json::parse(read_file(newest + "/state.json")).at("body").at("slots");
    const nlohmann::json& tensors = slots.at("tensors");
    const nlohmann::json& tensor = *std::find_if(tensors.begin(), tensors.end(), [](const auto& of) { return of.at("current") >= 0; });
    const auto at = tensor.at("slots").at(tensor.at("current").get<size_t>()).get<int64_t>();
    std::fstream file(slots.at("path").get<std::string>(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  o.resume = true;
  EXPECT_THAT(error_of(ErrorCode::budget, [&] { Trainer(o).train(); }),
              AllOf(HasSubstr("can't go on in the state file of its newest checkpoint"),
                    HasSubstr(fmt::format("more than `nvme_budget` {}", plan.disk_bytes))));
  o.nvme_budget = 2 * plan.disk_bytes;
  EXPECT_EQ(Trainer(o).train().steps, 4);
}

}  // namespace
}  // namespace ort_train
