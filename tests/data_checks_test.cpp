// Data that don't fit a job, or seem not to: refused before the first step in one sentence, or computed with as PyTorch does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/arrays.h"
#include "tests/failures.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct DataChecks : TrainerRuns {
  Options job(const std::string& text, const std::map<std::string, Shape>& weights) const {
    auto proto = fixtures::model_of("<ir_version: 8, opset_import: [\"\" : 17]> " + text);
    for (const auto& [name, shape] : weights)
      *proto.mutable_graph()->add_initializer() = fixtures::tensor_of(name, shape, numbers(element_count(shape), 389));
    Options o{.model = fixtures::write_model(folder, proto)};
    o.loss = "mse";
    o.batch_size = 2;
    o.max_steps = 1;
    o.profile = profile;
    o.output_dir = folder / "out";
    return o;
  }
  // Of the first step.
  static double loss_of(const Options& o) {
    double loss = NAN;
    Trainer(o, {.on_step = [&](const StepReport& step) { loss = step.loss; }}).train();
    return loss;
  }
};

// --- a folder ---------------------------------------------------------------------------------------------------------------------------

// Which of two is meant isn't guessed. What is no data is left alone.
TEST_F(DataChecks, AFolderHasOneFileToTrainOn) {
  Options o = job("g (int64[batch, seq] input_ids) => (float[batch, seq, 16] y) { e = Gather (table, input_ids) y = MatMul (e, w) }",
                  {{"table", {16, 8}}, {"w", {8, 16}}});
  o.loss = "cross_entropy";
  o.task = "causal-lm";
  o.seq_length = 4;
  fs::create_directory(folder / "data");
  o.data = folder / "data";
  const std::string tokens = write_file(o.data + "/train.bin", bytes_of(std::vector<uint16_t>(64, 3)));
  write_file(o.data + "/train.json", "{}");
  write_file(o.data + "/meta.pkl", "x");
  EXPECT_TRUE(std::isfinite(loss_of(o)));
  const std::string other = write_file(o.data + "/train.npy", "an array of something else");
  EXPECT_EQ(error_of(ErrorCode::data, [&] { Trainer{o}; }), tokens + " and " + other + " are both there: keep one");
}

// --- held-out data ----------------------------------------------------------------------------------------------------------------------

// The graph wants inputs of one shape, axes of one element included; labels may lack these.
TEST_F(DataChecks, HeldOutInputsHaveTheShapeOfThoseTrainedOn) {
  Options o = job("g (float[batch, 3] x) => (float[batch, 1] y) { y = MatMul (x, w) }", {{"w", {3, 1}}});
  fs::create_directory(folder / "data");
  o.data = folder / "data";
  const auto write = [&](const char* name, const Shape& x, const Shape& labels) {
    Arrays().add("x", x, numbers(element_count(x), 7)).add("labels", labels, numbers(element_count(labels), 11)).write(o.data + name);
  };
  write("/train.safetensors", {8, 3}, {8, 1});
  write("/valid.safetensors", {4, 3, 1}, {4, 1});
  const std::string why =
      o.data + "/valid.safetensors: array 'x' has samples of float32 [3, 1], in " + o.data + "/train.safetensors they are float32 [3]";
  o.eval_steps = 1;
  EXPECT_EQ(error_of(ErrorCode::data, [&] { Trainer{o}; }), why);
  o.eval_steps = 0;  // nobody evaluates in the course of the run: it is a file that isn't there
  o.evaluates_on_request = true;
  {
    Trainer trainer(o);
    EXPECT_EQ(trainer.train().steps, 1);
    EXPECT_THAT(error_of(ErrorCode::data, [&] { trainer.evaluate(); }), HasSubstr("no held-out data to evaluate on: " + why));
  }
  write("/valid.safetensors", {4, 3}, {4});
  o.overwrite = true;
  EXPECT_TRUE(std::isfinite(Trainer(o).evaluate()));
}

// --- labels -----------------------------------------------------------------------------------------------------------------------------

// Two rows of tokens a sample: along which axis to shift isn't known, so that neither is guessed.
TEST_F(DataChecks, LabelsOfSeveralRowsAreNotShiftedAlongTheRows) {
  constexpr int64_t kSamples = 8, kRows = 2, kLength = 3;
  Options o = job(R"(g (int64[batch, seq] input_ids) => (float[batch, 2, seq, 16] y) <int64[1] one = {1}> {
                       e = Gather (table, input_ids)
                       x = MatMul (e, w)
                       row = Unsqueeze (x, one)
                       y = Concat <axis = 1> (row, row) })",
                  {{"table", {16, 8}}, {"w", {8, 16}}});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kSamples * kRows * kLength; ++i) ids.push_back(i * 5 % 16);
  const std::vector<int64_t> half(ids.begin(), ids.begin() + kSamples * kLength);
  o.data = Arrays()
               .add("input_ids", {kSamples, kLength}, half)
               .add("labels", {kSamples, kRows, kLength}, ids)
               .write(folder / "data.safetensors");
  o.loss = "cross_entropy";
  EXPECT_TRUE(std::isfinite(loss_of(o)));
  o.task = "causal-lm";
  o.overwrite = true;
  EXPECT_EQ(error_of(ErrorCode::usage, [&] { Trainer{o}; }),
            o.data +
                ": array 'labels': the loss wants labels of shape [2, 3] for a sample, and `task` causal-lm shifts labels along the first "
                "of its axes, but samples have 3 tokens: shift them in the data, and leave `task` out");
}

// As torch.nn.functional.binary_cross_entropy_with_logits has it: log(1 + exp(x)) - x y, whatever y is.
TEST_F(DataChecks, BinaryLabelsMayLieOutsideZeroToOne) {
  Options o = job("g (float[batch, 2] x) => (float[batch, 2] y) <float[2, 2] w = {1, 0, 0, 1}> { y = MatMul (x, w) }", {});
  const std::vector<float> x{1, -1, 0.5f, 2}, labels{2, -1, 0.25f, 1};
  o.data = Arrays().add("x", {2, 2}, x).add("labels", {2, 2}, labels).write(folder / "data.safetensors");
  o.loss = "binary_cross_entropy";
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::log1p(std::exp(double{x[i]})) - double{x[i]} * double{labels[i]};
  EXPECT_NEAR(loss_of(o), sum / 4, 1e-6);
  EXPECT_LT(sum, 0) << "outside, there is no lowest loss";
}

}  // namespace
}  // namespace ort_train
