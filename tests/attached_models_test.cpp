// Jobs with several losses, a teacher, or a loss as an ONNX model: what they learn, and the promises.

#include <gmock/gmock.h>

#include <cmath>

#include "frontend/file.h"
#include "graph/error.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/promised_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::HasSubstr;

struct AttachedModels : PromisedRuns {
  static constexpr int64_t kSamples = 26, kIn = 12, kHidden = 96, kClasses = 5, kBoxes = 4;

  // A trunk with two heads: logits and boxes. `more`: outputs beside them.
  std::string model(const std::string& name, int64_t step, const std::string& more = "") {
    auto proto = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x) => (float[batch, {1}] logits, float[batch, {2}] boxes{3})
           {{ a = MatMul (x, w) h = Tanh (a) logits = MatMul (h, u) boxes = MatMul (h, v) }})",
        kIn, kClasses, kBoxes, more));
    *proto.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kHidden}, numbers(kIn * kHidden, step));
    *proto.mutable_graph()->add_initializer() = tensor_of("u", {kHidden, kClasses}, numbers(kHidden * kClasses, step + 2));
    *proto.mutable_graph()->add_initializer() = tensor_of("v", {kHidden, kBoxes}, numbers(kHidden * kBoxes, step + 4));
    return write_model(folder, proto, name);
  }
  Options job(const std::string& loss) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < kSamples; ++i) labels.push_back(i % 7 == 3 ? -100 : i * 3 % kClasses);
    Options o{.model = model("model.onnx", 7919)};
    o.data = Arrays()
                 .add("x", {kSamples, kIn}, numbers(kSamples * kIn, 104'729))
                 .add("logits_labels", {kSamples}, labels)
                 .add("boxes_labels", {kSamples, kBoxes}, numbers(kSamples * kBoxes, 104'743))
                 .write(folder / "data.safetensors");
    o.loss = loss;
    return short_job(std::move(o));
  }
  std::string refusal(const Options& o) {
    return error_of([&] { Trainer{o}; }).what();
  }
  static void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << i;
  }
};

TEST_F(AttachedModels, SeveralLossesAddUp) {
  const auto first_loss = [&](const std::string& loss) {
    Options o = job(loss);
    o.max_steps = 1;
    o.shuffle = false;
    return train(o).losses[0];
  };
  const double classes = first_loss("logits:cross_entropy@logits_labels"), boxes = first_loss("boxes:smooth_l1@boxes_labels");
  EXPECT_NEAR(first_loss("logits:cross_entropy*1.0,boxes:smooth_l1*0.5"), classes + 0.5 * boxes, 1e-6);
  // Micro-batches weigh as what counts in them does: 4 x 1 is 1 x 4.
  Options whole = job("logits:cross_entropy,boxes:huber*2"), parts = whole;
  parts.batch_size = 1;
  parts.gradient_accumulation_steps = 4;
  expect_near(train(parts).losses, train(whole).losses, 1e-5);
  parts.micro_batches = "vertical";
  expect_near(train(parts).losses, train(whole).losses, 1e-5);
  expect_promises(whole, 4);
  expect_promises(parts, 4);
}

// The same as the model with the loss written out behind it.
TEST_F(AttachedModels, ALossModelIsPartOfTheGraph) {
  const std::string loss = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] boxes, float[n, 4] boxes_labels, float[n, 5] logits) => (float total, float other) <float[4] weights = {1, 2, 3, 0.5}> {
      d = Sub (boxes, boxes_labels)
      s = Mul (d, d)
      weighted = Mul (s, weights)
      total = ReduceMean <keepdims = 0> (weighted)
      square = Mul (logits, logits)
      other = ReduceMean <keepdims = 0> (square)
    })",
                                       "loss.onnx");
  Options o = job("");
  o.loss_model = loss;
  const Run attached = train(o);

  auto whole = model_of(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x, float[batch, 4] boxes_labels) => (float total)
         <float[4] weights = {{1, 2, 3, 0.5}}> {{
           a = MatMul (x, w) h = Tanh (a) boxes = MatMul (h, v)
           d = Sub (boxes, boxes_labels) s = Mul (d, d) weighted = Mul (s, weights) total = ReduceMean <keepdims = 0> (weighted) }})",
      kIn));
  *whole.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kHidden}, numbers(kIn * kHidden, 7919));
  *whole.mutable_graph()->add_initializer() = tensor_of("v", {kHidden, kBoxes}, numbers(kHidden * kBoxes, 7923));
  Options written = job("output");
  written.model = write_model(folder, whole, "whole.onnx");
  written.freeze = {"weights"};
  EXPECT_EQ(train(written).losses, attached.losses);
  expect_promises(o, 4);
  // Its other outputs are losses, too, beside ours.
  o.loss = "output, loss/other:output*0.1, logits:cross_entropy@logits_labels";
  EXPECT_GT(train(o).losses[0], attached.losses[0]);

  Options wrong = o;
  wrong.loss = "boxes:mse@boxes_labels";
  EXPECT_THAT(refusal(wrong), HasSubstr("no loss reads it: leave `loss` out, or add it as a term, as in 'mse*0.5,output*0.5'"));
  wrong.loss = o.loss;
  wrong.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] boxes, float[n, 4] nowhere) => (float total) { d = Sub (boxes, nowhere) total = ReduceMean <keepdims = 0> (d) })",
                                 "w.onnx");
  EXPECT_THAT(refusal(wrong),
              HasSubstr("its input 'nowhere' comes from nowhere: it has to have the name of one of these: x, logits, boxes"));
  wrong.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3] boxes) => (float total) { total = ReduceMean <keepdims = 0> (boxes) })",
                                 "w.onnx");
  EXPECT_THAT(refusal(wrong), HasSubstr("boxes"));
  wrong.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] boxes) => (float[n, 4] total) { total = Neg (boxes) })",
                                 "w.onnx");
  wrong.loss = "";
  EXPECT_THAT(refusal(wrong), HasSubstr("the output 'loss/total' is float32 [4, 4]; `loss` output needs one number"));
}

// A model may give back what it is given, and weights: all else is as without them.
TEST_F(AttachedModels, OutputsMayBeInputsAndWeights) {
  const std::string more = fmt::format(", float[batch, {0}] x, float[{0}, {1}] w", kIn, kHidden);
  Options o = job("logits:cross_entropy,boxes:huber");
  o.predict_batch_size = 4;
  const Run plain = train(o);
  o.model = model("more.onnx", 7919, more);
  EXPECT_EQ(train(o).losses, plain.losses);
  expect_promises(o, 4);

  const std::vector<float> all = numbers(kSamples * kIn, 104'729), x(all.begin(), all.begin() + 4 * kIn);
  o.output_dir = folder / "predicting";
  Trainer trainer(o);
  trainer.train();
  const auto outputs = trainer.predict({}, {{"x", x}});
  EXPECT_EQ(outputs.at("x"), x);
  EXPECT_EQ(outputs.at("w").size(), static_cast<size_t>(kIn * kHidden));
  EXPECT_NE(outputs.at("w"), numbers(kIn * kHidden, 7919));  // trained
  const Error unknown = error_of([&] { trainer.predict({}, {{"x", x}, {"z", x}}); });
  EXPECT_THAT(unknown.what(), HasSubstr("the model reads no input 'z'; it reads 'x'"));

  // Adapters leave the names as they are.
  Options adapted = job("logits:cross_entropy,boxes:huber");
  adapted.lora_rank = 2;
  const std::vector<double> without = train(adapted).losses;
  adapted.model = model("more.onnx", 7919, fmt::format(", float[batch, {}] x", kIn));
  EXPECT_EQ(train(adapted).losses, without);

  // So may a teacher's, and a loss model's.
  Options taught = job("");
  taught.teacher = model("teacher.onnx", 6007);
  const std::vector<double> losses = train(taught).losses;
  taught.teacher = model("teacher.onnx", 6007, more);
  EXPECT_EQ(train(taught).losses, losses);
  Options measured = job("");
  const auto measure = [&](const char* outputs) {
    measured.loss_model = write_model(folder,
                                      fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[n, 4] boxes, float[n, 4] boxes_labels) => (float total{}) {{
        d = Sub (boxes, boxes_labels) s = Mul (d, d) total = ReduceMean <keepdims = 0> (s) }})",
                                                  outputs),
                                      "loss.onnx");
    return train(measured).losses;
  };
  EXPECT_EQ(measure(", float[n, 4] boxes_labels, float[n, 4] boxes"), measure(""));
}

TEST_F(AttachedModels, ATeacherIsFollowed) {
  Options o = job("");
  o.teacher = model("teacher.onnx", 6007);
  o.temperature = 2;
  const std::string before = read_file(o.teacher);
  const Run alone = train(o);
  EXPECT_LT(alone.losses[alone.losses.size() - 2], alone.losses[0]);
  EXPECT_EQ(read_file(o.teacher), before);
  expect_promises(o, 4);
  o.loss = "logits:cross_entropy*0.5@logits_labels,distillation(temperature=2)*0.5";
  const Run both = train(o);
  EXPECT_NE(both.losses, alone.losses);
  expect_promises(o, 4);

  // A model is as far from itself as can be told: not at all.
  o.loss = "";
  o.teacher = o.model;
  o.max_steps = 1;
  const Run same = train(o);
  EXPECT_NEAR(same.losses[0], 0, 1e-6);
  EXPECT_NEAR(same.losses[1], 0, 1e-6);

  // The value: the mean over samples of KL(teacher / T, student / T) T^2.
  o.teacher = folder / "teacher.onnx";
  o.shuffle = false;
  const double found = train(o).losses[0];
  Options predicting = job("");
  predicting.predict_batch_size = 4;
  const std::vector<float> all = numbers(kSamples * kIn, 104'729), x(all.begin(), all.begin() + 4 * kIn);
  const auto logits_of = [&](const std::string& path) {
    predicting.model = path;
    predicting.loss = "boxes:mse@boxes_labels";
    predicting.output_dir = folder / "predicting";
    Trainer trainer(predicting);
    return trainer.predict({}, {{"x", x}}).at("logits");
  };
  const std::vector<float> student = logits_of(folder / "model.onnx"), teacher = logits_of(folder / "teacher.onnx");
  double wanted = 0;
  for (int64_t row = 0; row < 4; ++row) {
    const auto log_softmax = [&](const std::vector<float>& z) {
      std::vector<double> p;
      double sum = 0;
      for (int64_t i = 0; i < kClasses; ++i) sum += std::exp(static_cast<double>(z[static_cast<size_t>(row * kClasses + i)]) / 2);
      for (int64_t i = 0; i < kClasses; ++i)
        p.push_back(static_cast<double>(z[static_cast<size_t>(row * kClasses + i)]) / 2 - std::log(sum));
      return p;
    };
    const std::vector<double> s = log_softmax(student), t = log_softmax(teacher);
    for (size_t i = 0; i < s.size(); ++i) wanted += std::exp(t[i]) * (t[i] - s[i]) * 4 / 4;
  }
  EXPECT_NEAR(found, wanted, 1e-5);

  o.loss = "mse";
  EXPECT_THAT(refusal(o), HasSubstr("no loss follows it"));
  o.teacher = "";
  o.loss = "distillation";
  EXPECT_THAT(refusal(o), HasSubstr("name it with `teacher`"));
}

// A mean that the graph makes itself: 8, 8, 8 and 2 samples are as 26.
TEST_F(AttachedModels, ShortMicroBatchesWeighAsWhatTheyAre) {
  Options o = job("loss/total:output");
  o.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] logits) => (float total)
    { squares = Mul (logits, logits) total = ReduceMean <keepdims = 0> (squares) })",
                             "loss.onnx");
  o.shuffle = false;
  o.max_steps = 2;
  o.batch_size = kSamples;
  const Run whole = train(o);
  o.batch_size = 8;
  o.gradient_accumulation_steps = 4;
  expect_near(train(o).losses, whole.losses, 1e-5);
  o.micro_batches = "vertical";
  expect_near(train(o).losses, whole.losses, 1e-5);
}

// Rows of logits are what a mean is over, however the output has them.
TEST_F(AttachedModels, OutputsMayHaveSeveralRowsASample) {
  const auto named = [&](const std::string& name, int64_t step, const std::string& shape) {
    auto proto = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[{}] z)
           {{ a = MatMul (x, w) s = Constant <value_ints = [{}]> () z = Reshape (a, s) }})",
        kIn, shape == "-1, 2" ? "rows, 2" : "batch, 3, 2", shape));
    *proto.mutable_graph()->add_initializer() = tensor_of("w", {kIn, 6}, numbers(kIn * 6, step));
    return write_model(folder, proto, name);
  };
  Options o = job("");
  o.shuffle = false;
  const auto losses = [&](const std::string& shape) {
    o.model = named("rows.onnx", 7919, shape);
    o.teacher = named("rows-teacher.onnx", 6007, shape);
    return train(o).losses;
  };
  const std::vector<double> by_sample = losses("-1, 3, 2");
  expect_near(losses("-1, 2"), by_sample, 1e-6);
}

// Of the trained model a loss reads inputs and outputs; a tensor inside it that has the same name is another one.
TEST_F(AttachedModels, NamesInsideTheModelAreTaken) {
  Options o = job("loss/total:output");
  o.loss_model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] logits, float[n, 96] h) => (float total)
    { a = ReduceMean <keepdims = 0> (logits) b = ReduceMean <keepdims = 0> (h) total = Add (a, b) })",
                             "loss.onnx");
  o.data = Arrays()
               .add("x", {kSamples, kIn}, numbers(kSamples * kIn, 104'729))
               .add("h", {kSamples, kHidden}, numbers(kSamples * kHidden, 104'743))
               .write(folder / "h.safetensors");
  EXPECT_THAT(refusal(o), HasSubstr("its input 'h' has the name of a tensor inside the trained model"));
}

TEST_F(AttachedModels, WhatTheDataLackIsSaid) {
  EXPECT_THAT(refusal(job("logits:cross_entropy,boxes:mse@nothing")), HasSubstr("no array 'nothing'"));
  EXPECT_THAT(refusal(job("logits+boxes:info_nce")), HasSubstr("needs 2 outputs of one shape"));
  EXPECT_THAT(refusal(job("info_nce")), HasSubstr("reads 2 of the model's outputs: say which, as first+second:info_nce"));
  EXPECT_THAT(refusal(job("nowhere:mse")), HasSubstr("the model has no output 'nowhere'; it has: logits, boxes"));
  EXPECT_THAT(refusal(job("logits:cross_entropy(weight=[1,2])@logits_labels")), HasSubstr("`weight` has 2 numbers for the 5 classes"));
}

}  // namespace
}  // namespace ort_train
