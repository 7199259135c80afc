// What a run takes of its data: where labels come from, what is held out, which samples are left over; and what is asked of a model beside
// training, text and predictions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/arrays.h"
#include "tests/failures.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using fixtures::model_of;
using fixtures::tensor_of;
using fixtures::write_model;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct NotedRuns : TrainerRuns {
  std::vector<std::string> notes;
  int runs = 0;

  Callbacks noting() {
    notes.clear();
    return {.on_note = [this](const std::string& text) { notes.push_back(text); }};
  }
  bool is_noted(const std::string& text) const {
    return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }
  std::vector<double> losses(Options o) {
    std::vector<double> losses;
    o.output_dir = folder / ("run" + std::to_string(runs++));
    Callbacks callbacks = noting();
    callbacks.on_step = [&](const StepReport& step) { losses.push_back(step.loss); };
    Trainer(o, callbacks).train();
    return losses;
  }
  // A model with float weights of these sizes, of numbers that are always the same.
  std::string model(const std::string& text, const std::vector<std::pair<std::string, std::vector<int64_t>>>& weights,
                    const std::string& name = "model.onnx") const {
    auto proto = model_of("<ir_version: 8, opset_import: [\"\" : 17]> " + text);
    int64_t step = 389;
    for (const auto& [weight, dims] : weights) {
      *proto.mutable_graph()->add_initializer() = tensor_of(weight, dims, numbers(element_count(dims), step));
      step += 10;
    }
    return write_model(folder, proto, name);
  }
};

// --- labels of language models in arrays ------------------------------------------------------------------------------------------------

struct LabelsOfArrays : NotedRuns {
  static constexpr int64_t kSamples = 8, kLength = 6, kTokens = 16;
  std::vector<int64_t> ids, mask, labels;

  LabelsOfArrays() {
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      for (int64_t i = 0; i < kLength; ++i) {
        const bool counts = i < 3 + sample % 4;
        ids.push_back(counts ? (sample * 5 + i * 3) % kTokens : 0);
        mask.push_back(counts ? 1 : 0);
        labels.push_back(counts ? ids.back() : -100);
      }
    }
  }
  Arrays arrays(bool with_mask, bool with_labels) const {
    Arrays arrays;
    arrays.add("input_ids", {kSamples, kLength}, ids);
    if (with_mask) arrays.add("attention_mask", {kSamples, kLength}, mask);
    if (with_labels) arrays.add("labels", {kSamples, kLength}, labels);
    return arrays;
  }
  Options options(const std::string& data) const {
    Options o{.model = model(R"(g (int64[batch, seq] input_ids) => (float[batch, seq, 16] logits) {
                e = Gather (embedding, input_ids)
                logits = MatMul (e, w) })",
                             {{"embedding", {kTokens, 8}}, {"w", {8, kTokens}}}),
              .data = data,
              .task = "causal-lm"};
    o.batch_size = 2;
    o.max_steps = 4;
    o.learning_rate = 0.01;
    o.profile = profile;
    return o;
  }
};

TEST_F(LabelsOfArrays, AreTheTokensWhereThereAreNone) {
  const std::vector<double> given = losses(options(arrays(true, true).write(folder / "given.safetensors")));
  EXPECT_FALSE(is_noted("labels"));
  EXPECT_EQ(losses(options(arrays(true, false).write(folder / "masked.safetensors"))), given) << "padding doesn't count";
  EXPECT_TRUE(is_noted("labels are 'input_ids', shifted; labels of padded positions don't count ('attention_mask')"));
  EXPECT_NE(losses(options(arrays(false, false).write(folder / "all.safetensors"))), given);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "labels are 'input_ids', shifted"), 1);
}

TEST_F(LabelsOfArrays, ThatAreNamedHaveToBeThere) {
  Options o = options(arrays(true, false).write(folder / "data.safetensors"));
  const auto refusal = [&] { return error_of(ErrorCode::data, [&] { Trainer{o}; }); };
  o.labels = "targets";
  EXPECT_THAT(refusal(), HasSubstr("has no array 'targets' for the labels"));
  o.labels = "labels";
  o.loss = "cross_entropy@targets";
  EXPECT_THAT(refusal(), HasSubstr("has no array 'targets' for the labels"));
  o.loss = "cross_entropy@labels";
  EXPECT_THAT(refusal(), HasSubstr("has no array 'labels' for the labels"));
}

TEST_F(LabelsOfArrays, AreOfOneKindInBothFiles) {
  fs::create_directory(folder / "data");
  arrays(true, false).write(folder / "data/train.safetensors");
  arrays(true, true).write(folder / "data/valid.safetensors");
  Options o = options(folder / "data");
  o.eval_steps = 1;
  EXPECT_THAT(
      error_of(ErrorCode::data, [&] { Trainer{o}; }),
      testing::AllOf(HasSubstr("valid.safetensors: has an array 'labels' for the labels"), HasSubstr("train.safetensors has none")));
  arrays(false, false).write(folder / "data/valid.safetensors");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer{o}; }), HasSubstr("valid.safetensors: has no array 'attention_mask'"));
  arrays(true, false).write(folder / "data/valid.safetensors");
  EXPECT_TRUE(std::isfinite(Trainer(o).evaluate()));
}

// --- what is held out -------------------------------------------------------------------------------------------------------------------

struct FittingData : NotedRuns {
  std::string write(const std::string& path, int64_t samples) const {
    return Arrays().add("x", {samples, 3}, numbers(3 * samples, 7)).add("labels", {samples, 2}, numbers(2 * samples, 11)).write(path);
  }
  Options options(const std::string& data, const char* batch = "4") const {
    Options o{.model = model(fmt::format("g (float[{}, 3] x) => (float[{}, 2] y) {{ y = MatMul (x, w) }}", batch, batch), {{"w", {3, 2}}}),
              .data = data};
    o.loss = "mse";
    o.max_steps = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(FittingData, AFileThatDoesNotFitIsRefusedWhereItIsNeeded) {
  fs::create_directory(folder / "data");
  write(folder / "data/train.safetensors", 10);
  write(folder / "data/valid.safetensors", 3);
  Options o = options(folder / "data");
  o.eval_steps = 1;
  const std::string why = "valid.safetensors: has 3 samples, fewer than the batch of 4 that the model's file fixes";
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer{o}; }), HasSubstr(why));
  o.eval_steps = 0;
  EXPECT_EQ(losses(o).size(), 2u);
  Trainer trainer(o);
  EXPECT_EQ(trainer.plan().valid_samples, 0);
  EXPECT_THAT(error_of(ErrorCode::data, [&] { trainer.evaluate(); }),
              HasSubstr("no held-out data to evaluate on: " + (folder / "data/") + why));
  write_file(folder / "data/valid.safetensors", "damaged");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer(o).evaluate(); }), HasSubstr("not a valid safetensors file"));
  o.evaluates_on_request = false;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer(o).evaluate(); }), HasSubstr("there is no held-out data"));
  o.evaluates_on_request = true;
  write(folder / "data/valid.safetensors", 4);
  EXPECT_TRUE(std::isfinite(Trainer(o).evaluate()));
  Arrays().add("x", {4, 3}, numbers(12, 7)).write(folder / "data/valid.safetensors");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer(o).evaluate(); }), HasSubstr("valid.safetensors: has no array 'labels'"));
}

TEST_F(FittingData, TheShareAtTheEndMakesABatch) {
  Options o = options(write(folder / "data.safetensors", 15));
  o.eval_steps = 1;
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer{o}; }), HasSubstr("2 of its 15 samples are held out, fewer than the batch of 4"));
  o.validation_split = 0.4;
  losses(o);
  EXPECT_TRUE(is_noted("the last 6 of 15 samples are held out"));
  EXPECT_TRUE(is_noted("the model's file fixes the batch at 4: 1 of 9 samples are left out in each epoch"));
  EXPECT_TRUE(is_noted("the model's file fixes the batch at 4: 2 of 6 held-out samples are left out in each evaluation"));
  o.validation_split = 0.8;
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Trainer{o}; }),
              HasSubstr("has 3 samples beside the 12 that are held out, fewer than the batch"));
  Options open = options(o.data, "batch");
  open.eval_steps = 1;
  losses(open);
  EXPECT_FALSE(is_noted("are left out"));
}

// --- inputs -----------------------------------------------------------------------------------------------------------------------------

TEST_F(FittingData, AnInputWithoutAShapeIsNamed) {
  Options o = options(write(folder / "data.safetensors", 8), "batch");
  auto proto = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3] x) => (float[batch, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) })");
  proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  o.model = write_model(folder, proto, "shapeless.onnx");
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { Trainer{o}; }),
              testing::AllOf(HasSubstr("shapeless.onnx"), HasSubstr("declares no shape for its input 'x', not even a rank")));
}

// The last batch of an epoch is smaller: what is bound for its samples is, too.
TEST_F(FittingData, ABoundInputFollowsAShortBatch) {
  Options o = options(write(folder / "data.safetensors", 10));
  o.model = model("g (float[batch, 3] x, float[?, 3] gain) => (float[batch, 2] y) { scaled = Mul (x, gain) y = MatMul (scaled, w) }",
                  {{"w", {3, 2}}}, "gain.onnx");
  o.batch_size = 4;
  o.max_steps = 6;
  o.shuffle = false;
  o.bind = {{"gain", "0.5"}};
  const std::vector<double> filled = losses(o);
  EXPECT_EQ(filled.size(), 6u);
  const std::vector<float> halves(12, 0.5f);
  o.bind["gain"] = "@" + write_file(folder / "gain.npy", npy(npy_description("<f4", "(4, 3)"), bytes_of(halves)));
  EXPECT_EQ(losses(o), filled);
}

TEST_F(FittingData, AnOutputThatNoLossReadsIsRefused) {
  Options o = options(write(folder / "data.safetensors", 8), "batch");
  o.loss = "y:mse";
  o.output = "y";
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer{o}; }), HasSubstr("`output` y: no loss reads it"));
  o.loss = "mse";
  EXPECT_EQ(losses(o).size(), 2u);
}

TEST_F(FittingData, PredictionsNeedNothingOfTheLosses) {
  Options o = options("", "batch");
  o.data = Arrays().add("x", {8, 3}, numbers(24, 7)).add("wanted", {8, 2}, numbers(16, 11)).write(folder / "data.safetensors");
  o.loss = "";
  o.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 2] y, float[n, 2] wanted) => (float total) {
      d = Sub (y, wanted) s = Mul (d, d) total = ReduceMean <keepdims = 0> (s) })",
                             "loss.onnx");
  o.batch_size = 4;
  o.predict_batch_size = 2;
  o.output_dir = folder / "predicting";
  Trainer trainer(o);
  const std::vector<float> x = numbers(6, 7);
  const auto alone = trainer.predict({}, {{"x", x}});
  EXPECT_EQ(alone.at("y").size(), 4u);
  EXPECT_EQ(trainer.predict({}, {{"x", x}, {"wanted", numbers(4, 3)}}), alone);
  EXPECT_THAT(error_of(ErrorCode::usage,
                       [&] {
                         trainer.predict({}, {{"x", x}, {"z", x}});
                       }),
              HasSubstr("reads no input 'z'; it reads 'x'"));
}

// --- the length of a run ----------------------------------------------------------------------------------------------------------------

// As the documentation has it for a model of the newest checkpoint.
TEST_F(FittingData, ARunMayBeShortenedToTheStepsThatItHasMade) {
  Options o = options(write(folder / "data.safetensors", 8), "batch");
  o.lr_scheduler_type = "warmup_stable_decay";
  o.lr_scheduler_kwargs = {{"num_decay_steps", "6"}};
  o.max_steps = 10;
  o.output_dir = folder / "shortened";
  Options shorter = o;
  shorter.max_steps = 3;
  const Summary summary = train_in_two(o, shorter, 3);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_TRUE(fs::exists(summary.model_path));
  shorter.resume = true;
  shorter.max_steps = 4;  // a step is left to be made
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer{shorter}; }), HasSubstr("more than the 4 of the whole run"));
}

// --- text -------------------------------------------------------------------------------------------------------------------------------

struct TextsOfModels : NotedRuns {
  Options options(const std::string& outputs, const std::string& more) const {
    Options o{.model = model(fmt::format(R"(g (int64[batch, seq] input_ids) => ({}) {{
                hidden = Gather (embedding, input_ids)
                logits = MatMul (hidden, w) {} }})",
                                         outputs, more),
                             {{"embedding", {4, 8}}, {"w", {8, 4}}}),
              .task = "causal-lm"};
    write_file(folder / "model.vocab.json", R"({"tokens": ["\n", "a", "b", "c"]})");
    std::string text;
    for (int i = 0; i < 400; ++i) text += "abc"[i % 3];
    o.data = write_file(folder / "data.txt", text);
    o.seq_length = 8;
    o.batch_size = 4;
    o.max_steps = 60;
    o.learning_rate = 0.05;
    o.profile = profile;
    o.output_dir = folder / "out";
    return o;
  }
};

TEST_F(TextsOfModels, AreWrittenByTheOutputThatTheLossReads) {
  Options o = options("float[batch, seq, 8] hidden, float[batch, seq, 4] logits", "");
  o.loss = "logits:cross_entropy";
  Trainer trainer(o, noting());
  EXPECT_TRUE(trainer.can_sample());
  EXPECT_FALSE(is_noted("no text can be written"));
  trainer.train();
  EXPECT_EQ(trainer.sample("a", 6, /*temperature=*/0, 1), "bcabca");
}

TEST_F(TextsOfModels, NeedAnOutputWithANumberForEachToken) {
  Options o = options("float loss, float[batch, seq, 4] logits", "s = Mul (logits, logits) loss = ReduceMean <keepdims = 0> (s)");
  o.loss = "output";
  Trainer trainer(o, noting());
  EXPECT_FALSE(trainer.can_sample());
  EXPECT_TRUE(is_noted("no text can be written with this model: no output that the loss reads has a number for each of the 4 tokens of "));
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { trainer.sample("a", 6, 0, 1); }), HasSubstr("no text can be written with this model"));
  EXPECT_EQ(trainer.train().steps, 60);
}

}  // namespace
}  // namespace ort_train
