// An output folder through the library: what a run refuses to replace, what it goes on from, and that it is saved whatever ends it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "tests/chain_model.h"
#include "tests/failures.h"
#include "tests/foreign_files.h"
#include "tests/io_faults.h"

namespace ort_train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kWidth = 64, kChainSamples = 48, kSteps = 6;

struct OutputDir : TrainerRuns {
  Options options;
  std::string hash;  // of a run that nobody disturbs
  const std::string out = folder / "out";

  void SetUp() override {
    auto model = fixtures::model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x) => (float[batch, {0}] y) {{ a = MatMul (x, u) b = Tanh (a) c = MatMul (b, v) d = Tanh (c) y = MatMul (d, w) }})",
        kWidth));
    for (const char* name : {"u", "v", "w"}) {
      std::vector<float> values = numbers(kWidth * kWidth, 7919 + name[0]);
      for (float& value : values) value /= 8;
      *model.mutable_graph()->add_initializer() = fixtures::tensor_of(name, {kWidth, kWidth}, values);
    }
    options.model = write_file(folder / "model.onnx", model.SerializeAsString());
    options.data = write_chain_data(folder.path, kChainSamples, kWidth);
    options.loss = "mse";
    options.batch_size = 16;
    options.learning_rate = 1e-3;
    options.lr_scheduler_type = "constant";
    options.max_steps = kSteps;
    options.save_steps = 2;
    options.threads = 1;
    options.profile = profile;
    hash = train(options).summary.weights_hash;
    options.output_dir = out;
  }

  Summary go(const Options& o, Callbacks callbacks = {}) { return Trainer(o, std::move(callbacks)).train(); }
  Options with(const std::function<void(Options&)>& change) const {
    Options o = options;
    change(o);
    return o;
  }
  std::vector<std::string> checkpoints(const std::string& in = {}) const {
    std::vector<std::string> found;
    for (const std::string& name : names_in(in.empty() ? out : in)) {
      if (name.find("checkpoint-") != std::string::npos) found.push_back(name);
    }
    return found;
  }
};

TEST_F(OutputDir, AFreshRunOverOurOwnIsRefusedUnlessItMayReplaceIt) {
  go(options);
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-4", "checkpoint-6"));
  const auto before = contents_of(out, names_in(out));
  const std::string refusal = error_of(ErrorCode::usage, [&] { go(options); });
  EXPECT_THAT(refusal, HasSubstr(out + ": has checkpoint-6, checkpoint-4 and model.onnx of an earlier run"));
  EXPECT_THAT(refusal, HasSubstr("overwrite"));
  EXPECT_EQ(contents_of(out, names_in(out)), before);
  Trainer(options).plan();  // that only looks
  const Options shorter = with([](Options& o) { o.overwrite = true, o.max_steps = 3, o.save_steps = 500; });
  {
    Trainer* stopped = nullptr;
    Trainer trainer(shorter, {.on_step = [&](const StepReport& step) {
                      if (step.step == 2) stopped->request_stop();
                    }});
    stopped = &trainer;
    trainer.train();
  }
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-2", "checkpoint-4", "checkpoint-6"));  // one new one is no reason to remove two
  go(shorter);
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-3"));  // a run that is done is
  EXPECT_NE(contents_of(out, {"model.onnx"}), contents_of(folder.path, {"out0/model.onnx"}));
  EXPECT_EQ(go(with([](Options& o) { o.overwrite = true; })).weights_hash, hash);
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-4", "checkpoint-6"));
  for (const std::string& name : checkpoints()) fs::remove_all(out + "/" + name);
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(options); }), HasSubstr("has model.onnx of an earlier run"));  // all that is left of it
}

// At step 3; where another run has saved in a folder of its name by then, nothing goes there.
TEST_F(OutputDir, AFolderThatIsMovedInMidRunIsMadeAgain) {
  for (const bool is_taken : {false, true}) {
    SCOPED_TRACE(is_taken);
    const std::string moved = folder / (is_taken ? "moved twice" : "moved");
    std::string notes;
    const Callbacks callbacks{.on_step =
                                  [&](const StepReport& step) {
                                    if (step.step != 3) return;
                                    fs::rename(out, moved);
                                    if (is_taken) go(with([](Options& o) { o.seed = 5; }));
                                  },
                              .on_note = [&](const std::string& text) { notes += text + "\n"; }};
    if (is_taken) {
      EXPECT_THAT(error_of(ErrorCode::io, [&] { go(options, callbacks); }), HasSubstr("another run has saved " + out + "/checkpoint-"));
      EXPECT_THAT(checkpoints(moved), ElementsAre("checkpoint-2"));
    } else {
      EXPECT_EQ(go(options, callbacks).weights_hash, hash);
      EXPECT_THAT(notes, HasSubstr("it goes on in a new folder of that name"));
    }
    EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-4", "checkpoint-6"));
    EXPECT_TRUE(exists(out + "/model.onnx"));
    fs::remove_all(out);
  }
}

TEST_F(OutputDir, ANoteOfASaveThatThrowsComesWhenAllIsSaved) {
  struct Thrown {};
  const Callbacks callbacks{.on_step =
                                [&](const StepReport& step) {
                                  if (step.step == 3) fs::rename(out, folder / "moved");
                                },
                            .on_note =
                                [](const std::string& note) {
                                  if (note.find("was moved or removed") != std::string::npos) throw Thrown();
                                }};
  EXPECT_THROW(go(options, callbacks), Thrown);
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-4"));
  EXPECT_EQ(go(with([](Options& o) { o.resume = true; })).weights_hash, hash);
}

TEST_F(OutputDir, WhatOthersWroteIsRefusedBeforeTheFirstStepAndStays) {
  int64_t steps = 0;
  const Callbacks counted{.on_step = [&](const StepReport&) { ++steps; }};
  for (const char* name : {"checkpoint-3", ".tmp-checkpoint-6"}) {  // where a run that is stopped may have to save, too
    write_trainer_checkpoint(fs::path(out) / name);
    for (const bool overwrite : {false, true}) {
      const auto before = contents_of(out, {name});
      EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(with([&](Options& o) { o.overwrite = overwrite; }), counted); }),
                  HasSubstr(std::string(name) + ": was not written by ort-train"));
      EXPECT_EQ(contents_of(out, {name}), before);
    }
    fs::remove_all(fs::path(out) / name);
  }
  EXPECT_EQ(steps, 0);
  const std::string text = write_file(folder / "notes", "a line\nanother\n");
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(with([&](Options& o) { o.log_file = text; }), counted); }),
              HasSubstr("is no log of ort-train"));
  EXPECT_EQ(read_file(text), "a line\nanother\n");
  // Those that it won't need are nobody's business.
  for (const char* name : {"checkpoint-500", "checkpoint-1000"}) write_trainer_checkpoint(fs::path(out) / name);
  const auto before = contents_of(out, {"checkpoint-500", "checkpoint-1000"});
  go(options);
  go(with([](Options& o) { o.resume = true, o.max_steps = 8; }));
  go(with([](Options& o) { o.overwrite = true; }));
  EXPECT_EQ(contents_of(out, {"checkpoint-500", "checkpoint-1000"}), before);
  EXPECT_EQ(checkpoints().size(), 4u);
}

TEST_F(OutputDir, ResumeFromCheckpointIsAutoOrAFolder) {
  const Options automatic = with([](Options& o) { o.resume_from_checkpoint = "auto"; });
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(with([](Options& o) { o.resume = true; })); }),
              HasSubstr("no checkpoint to resume from"));
  write_trainer_checkpoint(fs::path(out) / "checkpoint-500");  // another tool's
  int64_t first = 0;
  EXPECT_EQ(go(automatic).weights_hash, hash);  // afresh
  for (const char* name : {"checkpoint-6", "model.onnx"}) fs::remove_all(fs::path(out) / name);
  const Summary resumed = go(automatic, {.on_step = [&](const StepReport& step) { first = first == 0 ? step.step : first; }});
  EXPECT_EQ(first, 5);
  EXPECT_EQ(resumed.weights_hash, hash);
  // From another output folder, which stays as it is.
  const std::string other = folder / "other";
  const auto before = contents_of(out, names_in(out));
  const Options from = with([&](Options& o) { o.resume_from_checkpoint = out + "/checkpoint-4/", o.output_dir = other; });
  EXPECT_EQ(go(from).weights_hash, hash);
  EXPECT_EQ(contents_of(out, names_in(out)), before);
  EXPECT_THAT(checkpoints(other), ElementsAre("checkpoint-6"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(from); }), HasSubstr("has checkpoint-6 and model.onnx of an earlier run"));
  // An older one of the same folder: what came after it is replaced only if the user says so, and is the older run's from then on.
  Options back = with([&](Options& o) { o.resume_from_checkpoint = out + "/checkpoint-4", o.learning_rate = 1e-2, o.max_steps = 5; });
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(back); }), HasSubstr("has checkpoint-6 and model.onnx of an earlier run"));
  back.overwrite = true;
  const std::string changed = go(back).weights_hash;
  EXPECT_NE(changed, hash);
  EXPECT_EQ(go(with([](Options& o) { o.resume = true, o.learning_rate = 1e-2, o.max_steps = 5; })).weights_hash, changed);
  for (const std::string& nothing : {out, out + "/none", options.model, std::string("automatic")})
    EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(with([&](Options& o) { o.resume_from_checkpoint = nothing; })); }),
                HasSubstr("is no checkpoint"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { go(with([](Options& o) { o.resume = true, o.resume_from_checkpoint = "auto"; })); }),
              HasSubstr("one of them"));
}

TEST_F(OutputDir, AsManyCheckpointsAreKeptAsAreAskedFor) {
  for (const int64_t limit : {1, 3, 100}) {
    const std::string where = folder / ("limit-" + std::to_string(limit));
    go(with([&](Options& o) { o.save_total_limit = limit, o.output_dir = where, o.save_steps = 1; }));
    EXPECT_EQ(static_cast<int64_t>(checkpoints(where).size()), std::min(limit, kSteps));
  }
  EXPECT_EQ(code_of([&] { go(with([](Options& o) { o.save_total_limit = -1; })); }), ErrorCode::usage);
  EXPECT_EQ(Options().save_steps, 500);
}

// Two checkpoints of a streamed run: three slots a tensor, which the plan shows and the limit on the disk counts.
TEST_F(OutputDir, AStreamedRunKeepsTwoIfItIsAsked) {
  fs::create_directory(folder.path / "nvme");
  options.nvme_path = folder / "nvme";
  options.budget = Trainer(options).plan().minimum_budget;
  const PlanReport one = Trainer(options).plan();
  ASSERT_EQ(one.state_slots, 2);
  go(options);
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-6"));
  options.save_total_limit = 2;
  const PlanReport two = Trainer(options).plan();
  EXPECT_EQ(two.state_slots, 3);
  constexpr int64_t kBlock = 4096;
  EXPECT_EQ(2 * (two.state_bytes - kBlock), 3 * (one.state_bytes - kBlock));
  EXPECT_EQ(two.disk_bytes - two.state_bytes, one.disk_bytes - one.state_bytes);
  EXPECT_THAT(two.text, HasSubstr("three slots"));
  EXPECT_THAT(error_of(ErrorCode::budget, [&] { Trainer trainer(with([&](Options& o) { o.nvme_budget = two.disk_bytes - 1; })); }),
              HasSubstr("save_total_limit"));
  const std::string both = options.output_dir = folder / "both";
  {
    Trainer* running = nullptr;
    Trainer trainer(with([&](Options& o) { o.nvme_budget = two.disk_bytes; }), {.on_step = [&](const StepReport& step) {
                      if (step.step == 5) running->request_stop();
                    }});
    running = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  }
  EXPECT_THAT(checkpoints(both), ElementsAre("checkpoint-4", "checkpoint-5"));
  const auto before = contents_of(both, {"checkpoint-4", "checkpoint-5"});
  for (const int64_t step : {4, 5}) {  // from each of them elsewhere, then from the last one here
    const Options from = with([&](Options& o) {
      o.resume_from_checkpoint = both + "/checkpoint-" + std::to_string(step);
      o.output_dir = folder / ("from-" + std::to_string(step));
    });
    EXPECT_EQ(go(from).weights_hash, hash) << step;
    EXPECT_EQ(contents_of(both, {"checkpoint-4", "checkpoint-5"}), before);
  }
  EXPECT_EQ(go(with([](Options& o) { o.resume = true; })).weights_hash, hash);
  EXPECT_THAT(checkpoints(both), ElementsAre("checkpoint-5", "checkpoint-6"));
  EXPECT_EQ(go(with([&](Options& o) { o.resume_from_checkpoint = both + "/checkpoint-5", o.overwrite = true; })).weights_hash, hash);
  EXPECT_EQ(go(with([&](Options& o) { o.resume = true, o.save_total_limit = 1, o.max_steps = 8; })).steps, 8);  // from three slots to two
  EXPECT_THAT(checkpoints(both), ElementsAre("checkpoint-8"));
}

// Whatever ends it after a step, the step is saved before anybody is told.
TEST_F(OutputDir, ARunIsSavedBeforeAnExceptionOfACallbackLeavesIt) {
  struct Own : std::exception {};
  const auto expect_saved = [&](const Options& o, Callbacks callbacks, int64_t step) {
    fs::remove_all(out);
    EXPECT_THROW(go(o, std::move(callbacks)), Own);
    EXPECT_THAT(checkpoints(), ::testing::Contains("checkpoint-" + std::to_string(step)));
    Options again = o;
    again.resume = true;
    return go(again).weights_hash;
  };
  EXPECT_EQ(expect_saved(options,
                         {.on_step =
                              [](const StepReport& step) {
                                if (step.step == 3) throw Own();
                              }},
                         3),
            hash);
  EXPECT_EQ(expect_saved(options,
                         {.on_note =
                              [](const std::string& note) {
                                if (note.find("saved") == 0) throw Own();
                              }},
                         2),
            hash);
  const Options evaluated = with([](Options& o) { o.eval_steps = 3, o.validation_split = 0.3; });
  const std::string whole = go(with([&](Options& o) { o = evaluated, o.output_dir = folder / "whole"; })).weights_hash;
  EXPECT_EQ(expect_saved(evaluated, {.on_eval = [](const EvalReport&) { throw Own(); }}, 3), whole);
}

TEST_F(OutputDir, ALogThatCantBeWrittenEndsInASavedRun) {
  const auto full = [](Options& o) { o.log_file = "/dev/full"; };
  const std::string sentence = error_of(ErrorCode::io, [&] { go(with(full)); });
  EXPECT_THAT(sentence, ::testing::AllOf(HasSubstr("/dev/full: the log can't be written: No space left on device"),
                                         HasSubstr("after step 1 of 6"), HasSubstr(out + "/checkpoint-1")));
  EXPECT_THAT(checkpoints(), ElementsAre("checkpoint-1"));
  EXPECT_EQ(go(with([](Options& o) { o.resume = true; })).weights_hash, hash);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { go(with([&](Options& o) { full(o), o.overwrite = true, o.max_steps = 1; })); }),
              HasSubstr("all steps are done, and the result is in " + out + "/model.onnx"));
  EXPECT_TRUE(fs::exists(out + "/model.onnx"));
}

TEST_F(OutputDir, AReportThatCantBeWrittenAtTheEndHidesNoResult) {
  const std::string log = folder / "log.jsonl", state = folder / "state.safetensors";
  EXPECT_THAT(error_of(ErrorCode::io,
                       [&] { go(with([&](Options& o) { o.op_times = "/dev/full", o.log_file = log, o.save_optimizer_state = state; })); }),
              HasSubstr("'/dev/full' can't be written; all steps are done, and the result is in " + out + "/model.onnx"));
  EXPECT_TRUE(fs::exists(out + "/model.onnx"));
  EXPECT_THAT(read_file(log), HasSubstr(hash)) << "the summary";
  EXPECT_TRUE(fs::exists(state)) << "the other report";
}

// Three at once, of which two are kept, and the model.
TEST_F(OutputDir, TheSpaceForCheckpointsIsCheckedAhead) {
  go(options);
  int64_t each = 0;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoint-6")) each += static_cast<int64_t>(entry.file_size());
  const Options o = with([&](Options& changed) { changed.output_dir = folder / "other"; });
  int64_t steps = 0;
  const Callbacks counted{.on_step = [&](const StepReport&) { ++steps; }};
  {
    const FreeSpace space(3 * each - 1);
    EXPECT_THAT(error_of(ErrorCode::io, [&] { go(o, counted); }),
                ::testing::AllOf(HasSubstr("save_total_limit"), HasSubstr(std::to_string(3 * each - 1))));
    EXPECT_EQ(steps, 0);
    EXPECT_TRUE(checkpoints(o.output_dir).empty());
  }
  const FreeSpace space(3 * each + (4 << 20));  // what the sizes of files are rounded up by
  EXPECT_EQ(go(o, counted).weights_hash, hash);
}

}  // namespace
}  // namespace ort_train
