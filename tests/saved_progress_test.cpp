// What a run has computed isn't lost: a step is saved before its evaluation, where bad data end the run, and later where a checkpoint can't
// be written. Nor does a clock that is set back hide it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "frontend/checkpoint.h"
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
using ::testing::Not;

struct SavedProgress : ClassifierRuns {
  // What a run leaves that nothing disturbs.
  struct Whole {
    Summary summary;
    std::vector<std::string> lines;
  };
  Whole whole(Options o) const {
    o.output_dir = folder / "whole";
    o.log_file = folder / "whole.jsonl";
    return {Trainer(o).train(), lines_of(o.log_file)};
  }
  void expect_to_go_on_as(const Whole& wanted, Options o) const {
    o.resume = true;
    EXPECT_EQ(Trainer(o).train().weights_hash, wanted.summary.weights_hash);
    EXPECT_EQ(lines_of(o.log_file), wanted.lines);
  }
  void mend() const { write_data(trained(), held_out()); }
  void spoil_label(size_t sample) const {
    Samples bad = trained();
    bad.labels.at(sample) = 9;
    write_data(bad, held_out());
  }
  void spoil_id(size_t sample) const {
    Samples bad = trained();
    bad.ids.at(sample) = 99;
    write_data(bad, held_out());
  }
  std::string saved_after(int64_t step, int64_t of) const {
    return fmt::format("the run is saved after step {0} of {1} in {2}/checkpoint-{0}: go on with `resume`", step, of, out);
  }
  std::string failure_of(const Options& o, ErrorCode code = ErrorCode::data, Callbacks callbacks = {}) const {
    const std::string sentence = error_of(code, [&] { Trainer(o, std::move(callbacks)).train(); });
    EXPECT_THAT(sentence, Not(HasSubstr("\n")));
    return sentence;
  }
};

// --- before an evaluation ---------------------------------------------------------------------------------------------------------------

TEST_F(SavedProgress, AStepIsSavedBeforeItIsEvaluated) {
  Options o = job();
  o.eval_steps = o.save_steps = 3;
  o.max_steps = 8;
  std::vector<int64_t> evaluated;
  Trainer(o, {.on_eval =
                  [&](const EvalReport& report) {
                    evaluated.push_back(report.step);
                    EXPECT_TRUE(fs::exists(out + fmt::format("/checkpoint-{}", report.step))) << report.step;
                  }})
      .train();
  EXPECT_THAT(evaluated, ElementsAre(3, 6, 8));
}

// As a kill between the two leaves it: the folder as it is when the checkpoint has its name.
TEST_F(SavedProgress, ARunThatIsKilledInAnEvaluationMakesItWhenItGoesOn) {
  Options o = job();
  o.lr_scheduler_type = "reduce_lr_on_plateau";
  o.lr_scheduler_kwargs = {{"patience", "0"}, {"factor", "0.5"}, {"threshold", "0.2"}};  // never so much better
  o.eval_steps = 2;
  o.save_steps = 4;
  o.max_steps = 12;
  const Whole wanted = whole(o);
  for (const int64_t step : {4, 8, 12}) {
    SCOPED_TRACE(step);
    Options killed = o;
    killed.output_dir = folder / fmt::format("killed-{}", step);
    killed.log_file = folder / fmt::format("killed-{}.jsonl", step);
    std::vector<double> rates;
    o.overwrite = true;
    Trainer(o, {.on_step = [&](const StepReport& report) { rates.push_back(report.learning_rate); },
                .on_note =
                    [&](const std::string& note) {
                      if (note != fmt::format("saved {}/checkpoint-{}", out, step)) return;
                      fs::copy(out, killed.output_dir, fs::copy_options::recursive);
                      fs::copy(log, killed.log_file);
                    }})
        .train();
    ASSERT_TRUE(fs::exists(killed.output_dir));
    ASSERT_LT(rates.at(4), rates.at(3)) << "the evaluation after step 4 changes the learning rate";
    EXPECT_EQ(lines_of(killed.log_file).size(), static_cast<size_t>(step) - 1);
    killed.resume = true;
    std::vector<int64_t> evaluated;
    const Summary summary = Trainer(killed, {.on_eval = [&](const EvalReport& report) { evaluated.push_back(report.step); }}).train();
    EXPECT_EQ(evaluated.at(0), step);
    EXPECT_EQ(summary.weights_hash, wanted.summary.weights_hash);
    EXPECT_EQ(summary.eval_loss, wanted.summary.eval_loss);
    EXPECT_EQ(lines_of(killed.log_file), wanted.lines);
  }
}

// It is stopped as its evaluation begins, saved or not.
TEST_F(SavedProgress, AnEvaluationThatIsStoppedIsMadeWhenTheRunGoesOn) {
  for (const int64_t save_steps : {4, 500}) {
    SCOPED_TRACE(save_steps);
    Options o = job();
    o.eval_steps = 4;
    o.save_steps = save_steps;
    o.overwrite = true;
    const Whole wanted = whole(o);
    Trainer* self = nullptr;
    {
      Trainer trainer(o, {.on_step = [&](const StepReport& report) {
                        if (report.step == 8) self->request_stop();
                      }});
      self = &trainer;
      EXPECT_TRUE(trainer.train().stopped);
    }
    EXPECT_EQ(lines_of(log).size(), 8u);
    o.overwrite = false;
    expect_to_go_on_as(wanted, o);
    // Another log begins where that run begins.
    o.resume = true;
    o.log_file = folder / "other.jsonl";
    o.max_steps = 17;
    Trainer(o).train();
    EXPECT_EQ(lines_of(o.log_file).size(), 1u);
    fs::remove_all(out);
    fs::remove_all(folder / "whole");
  }
}

TEST_F(SavedProgress, HeldOutDataThatCantBeUsedCostNoStep) {
  for (const int64_t save_steps : {3, 500}) {
    SCOPED_TRACE(save_steps);
    Options o = job();
    o.eval_steps = 3;
    o.save_steps = save_steps;
    o.max_steps = 8;
    const Whole wanted = whole(o);
    Samples bad = held_out();
    bad.labels[5] = 9;
    write_data(trained(), bad);
    EXPECT_THAT(failure_of(o), AllOf(HasSubstr("label 9 is outside the 4 classes"), HasSubstr(saved_after(3, 8))));
    EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-3"));
    EXPECT_EQ(lines_of(log).size(), 3u);
    o.resume = true;
    EXPECT_THAT(failure_of(o), HasSubstr(saved_after(3, 8))) << "nothing is mended yet";
    mend();
    expect_to_go_on_as(wanted, o);
    fs::remove_all(out);
    fs::remove_all(folder / "whole");
  }
}

// --- where bad data end the run ---------------------------------------------------------------------------------------------------------

TEST_F(SavedProgress, ASampleThatCantBeUsedCostsNoStep) {
  const Options o = job();  // writes the data
  const Whole wanted = whole(o);
  for (const bool is_label : {true, false}) {
    is_label ? spoil_label(22) : spoil_id(22);  // of step 6
    EXPECT_THAT(failure_of(o), AllOf(HasSubstr(is_label ? "label 9 is outside the 4 classes" : "element 0 of 'ids' is 99"),
                                     HasSubstr(saved_after(5, 16))));
    EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-5"));
    mend();
    expect_to_go_on_as(wanted, o);
    fs::remove_all(out);
  }
}

TEST_F(SavedProgress, AStepThatIsSavedAlreadyIsNotSavedAgain) {
  Options o = job();
  o.save_steps = 5;
  spoil_label(22);
  int64_t saved = 0;
  const std::string sentence =
      failure_of(o, ErrorCode::data, {.on_note = [&](const std::string& note) { saved += note.starts_with("saved "); }});
  EXPECT_THAT(sentence, HasSubstr(saved_after(5, 16)));
  EXPECT_EQ(saved, 1);
}

TEST_F(SavedProgress, AnErrorInTheFirstStepLeavesNothing) {
  const Options o = job();  // writes the data
  spoil_label(2);
  const std::string sentence = failure_of(o);
  EXPECT_THAT(sentence, Not(HasSubstr("saved")));
  EXPECT_THAT(checkpoints_in(out), IsEmpty());
}

TEST_F(SavedProgress, NothingIsSavedWhereSavingIsOff) {
  Options o = job();
  o.save_steps = 0;
  spoil_label(22);
  EXPECT_THAT(failure_of(o), HasSubstr("nothing was saved before"));
  EXPECT_THAT(checkpoints_in(out), IsEmpty());
}

// What the first micro-batch of a step has added up is no part of a checkpoint.
TEST_F(SavedProgress, AStepThatFailsAfterItsFirstMicroBatchLeavesTheOneBefore) {
  Options o = job();
  o.gradient_accumulation_steps = 2;
  o.micro_batches = "horizontal";
  o.max_steps = 6;
  o.eval_steps = 1000;
  const Whole wanted = whole(o);
  spoil_id(21);  // of the second micro-batch of step 3
  {
    Trainer trainer(o);
    EXPECT_THAT(error_of(ErrorCode::data, [&] { trainer.train(); }),
                AllOf(HasSubstr("element 0 of 'ids' is 99"), HasSubstr(saved_after(2, 6))));
    EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.evaluate(); }), HasSubstr("a step ended half way"));
  }
  mend();
  expect_to_go_on_as(wanted, o);
}

// A live BatchNorm has taken in the first micro-batch, so the state is that of no step.
TEST_F(SavedProgress, AStepThatHasChangedSomethingIsNotSaved) {
  Options o = job();
  o.model = write_classifier("normalized.onnx", "n = BatchNormalization (e, s, b, m, v) y = MatMul (n, w)",
                             R"((int64[batch] ids) => (float[batch, 4] y) <float[6] s = {1, 2, 1, 2, 1, 2}, float[6] b = {0, 1, 0, 1, 0, 1},
                                float[6] m = {0, 1, 2, 0, 1, 2}, float[6] v = {1, 2, 3, 1, 2, 3}>)");
  o.batch_norm = "live";
  o.gradient_accumulation_steps = 2;
  o.micro_batches = "horizontal";
  o.save_steps = 2;
  o.max_steps = 6;
  const Whole wanted = whole(o);
  spoil_id(29);  // of the second micro-batch of step 4
  EXPECT_THAT(failure_of(o), AllOf(HasSubstr("element 0 of 'ids' is 99"), HasSubstr("the last good state is " + out + "/checkpoint-2"),
                                   Not(HasSubstr("checkpoint-3"))));
  EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-2"));
  mend();
  expect_to_go_on_as(wanted, o);
}

// Found by a node in the course of the step: before its updates.
TEST_F(SavedProgress, AMaskThatSelectsTooManyElementsCostsNoStep) {
  Options o = job();
  o.model = write_classifier("selecting.onnx", R"(a = Equal (targets, none)
                                                  c = Not (a)
                                                  [pick] at = NonZero (c)
                                                  t = Transpose (at)
                                                  s = GatherND (e, t)
                                                  l = GatherND (targets, t)
                                                  logits = MatMul (s, w)
                                                  loss = SoftmaxCrossEntropyLoss (logits, l))",
                             "(int64[batch] ids, int64[batch] targets) => (float loss) <int64 none = {-100}>");
  Samples samples = trained();
  for (size_t i = 3; i < samples.labels.size(); i += 4) samples.labels[i] = -100;
  samples.labels[19] = 1;  // the fourth of step 5
  o.data = Arrays().add("ids", {kTrained}, samples.ids).add("targets", {kTrained}, samples.labels).write(folder / "selecting.safetensors");
  o.loss = "output";
  o.selects = {{.node = "pick", .count = 3}};
  Options four = o;
  four.max_steps = 4;
  const Whole wanted = whole(four);
  EXPECT_THAT(failure_of(o), AllOf(HasSubstr("a mask selects 4 elements of this batch, but at most 3"), HasSubstr(saved_after(4, 16))));
  // As a run that ends there.
  four.resume = true;
  EXPECT_EQ(Trainer(four).train().weights_hash, wanted.summary.weights_hash);
}

TEST_F(SavedProgress, WhatEndedTheRunIsToldAlsoWhereItCantBeSaved) {
  Options o = job();
  o.log_file.clear();
  spoil_label(22);
  std::optional<IoFaults> full;
  const std::string sentence = failure_of(o, ErrorCode::data, {.on_step = [&](const StepReport& report) {
                                            if (report.step == 5) full.emplace(Fault::full, 1, /*lasts=*/true);
                                          }});
  full.reset();
  EXPECT_THAT(sentence, AllOf(HasSubstr("label 9 is outside the 4 classes"), HasSubstr("can't be saved after step 5, either"),
                              HasSubstr("No space left on device"), HasSubstr("nothing was saved before")));
  EXPECT_THAT(checkpoints_in(out), IsEmpty());
}

// --- where a checkpoint can't be written ------------------------------------------------------------------------------------------------

TEST_F(SavedProgress, ARunGoesOnWithoutACheckpointThatCantBeWritten) {
  Options o = job();
  o.save_steps = 2;
  o.max_steps = 6;
  const Whole wanted = whole(o);
  for (const Fault fault : {Fault::full, Fault::error, Fault::name_error}) {
    std::optional<IoFaults> faults;
    std::vector<std::string> failed;
    const Summary summary = Trainer(o, {.on_step =
                                            [&](const StepReport& report) {
                                              if (report.step == 4) faults.emplace(fault, 1, /*lasts=*/true);
                                              if (report.step == 5) faults.reset();
                                            },
                                        .on_note =
                                            [&](const std::string& note) {
                                              if (note.find("could not be saved") != std::string::npos) failed.push_back(note);
                                            }})
                                .train();
    EXPECT_EQ(summary.weights_hash, wanted.summary.weights_hash);
    EXPECT_EQ(lines_of(log), wanted.lines);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_THAT(failed[0], AllOf(HasSubstr("step 4 could not be saved"), HasSubstr("the last good state is " + out + "/checkpoint-2"),
                                 HasSubstr(fault == Fault::full ? "No space left on device" : "Input/output error")));
    EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-2", "checkpoint-6"));
    fs::remove_all(out);
  }
}

TEST_F(SavedProgress, TheLastCheckpointHasToBeWritten) {
  for (const int64_t eval_steps : {0, 3}) {
    Options o = job();
    o.log_file.clear();
    o.save_steps = 2;
    o.max_steps = 6;
    o.eval_steps = eval_steps;
    std::optional<IoFaults> full;
    const std::string sentence = failure_of(o, ErrorCode::io, {.on_step = [&](const StepReport& report) {
                                              if (report.step == 6) full.emplace(Fault::full, 1, /*lasts=*/true);
                                            }});
    full.reset();
    EXPECT_THAT(sentence, HasSubstr("No space left on device"));
    EXPECT_THAT(checkpoints_in(out), ElementsAre("checkpoint-2", "checkpoint-4"));
    fs::remove_all(out);
  }
}

// --- which run is the newest ------------------------------------------------------------------------------------------------------------

// A checkpoint of a time that hasn't come yet, as where the clock was set back since.
TEST_F(SavedProgress, AClockThatIsSetBackHidesNoRun) {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::vector<float> weight(3);
  CheckpointContent content;
  content.weights = {{.name = "w",
                      .type = {DType::float32, {3}},
                      .bytes = [&](bool) { return std::as_writable_bytes(std::span(weight)); },
                      .changed = [] {}}};
  content.model = "another";
  save_checkpoint(out, {.run = now + int64_t{1'000'000'000'000'000}, .step = 900}, content, {});
  Options o = job();
  o.overwrite = true;
  o.save_total_limit = 5;
  Trainer* self = nullptr;
  {
    Trainer trainer(o, {.on_step = [&](const StepReport& report) {
                      if (report.step == 2) self->request_stop();
                    }});
    self = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  }
  ASSERT_THAT(checkpoints_in(out), ElementsAre("checkpoint-2", "checkpoint-900"));
  o.overwrite = false;
  o.resume = true;
  int64_t first = 0;
  Trainer(o, {.on_step = [&](const StepReport& report) { first = first == 0 ? report.step : first; }}).train();
  EXPECT_EQ(first, 3);
}

// --- the log ----------------------------------------------------------------------------------------------------------------------------

TEST_F(SavedProgress, TheLogSaysHowFarTheRunIs) {
  Options o = job();
  o.max_steps = 12;
  Trainer(o).train();
  std::ifstream file(log);
  int64_t step = 0;
  for (std::string text; std::getline(file, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    if (line.contains("summary")) continue;
    ++step;
    EXPECT_EQ(line.at("step").get<int64_t>(), step);
    EXPECT_EQ(line.at("total_steps").get<int64_t>(), 12);
    EXPECT_EQ(line.at("epoch").get<double>(), static_cast<double>(step) * kBatch / kTrained);
    EXPECT_EQ(line.at("remaining_seconds").get<double>() > 0, step < 12);
  }
  EXPECT_EQ(step, 12);
}

}  // namespace
}  // namespace ort_train
