// What a loss reads of a model's outputs.

#include <gmock/gmock.h>

#include "graph/error.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using fixtures::write_model;

struct Losses : TrainerRuns {
  static constexpr int64_t kSamples = 48, kWidth = 6, kClasses = 4;
  std::vector<std::string> notes;

  // A classifier that ends in these nodes, which make y of z.
  Options classifier(const std::string& name, const std::string& end, const char* type = "float", const Shape& of_labels = {kSamples}) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < kSamples; ++i) labels.push_back(i * 5 % 7 % kClasses);
    Options o;
    o.data = Arrays()
                 .add("x", {kSamples, kWidth}, numbers(kSamples * kWidth, 389))
                 .add("labels", of_labels, labels)
                 .write(folder / (name + ".safetensors"));
    auto model = fixtures::model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 6] x) => ({}[batch, 4] y) {{ z = MatMul (x, w) {} }})", type, end));
    *model.mutable_graph()->add_initializer() = fixtures::tensor_of("w", {kWidth, kClasses}, numbers(kWidth * kClasses, 97));
    o.model = write_model(folder, model, name + ".onnx");
    o.batch_size = 8;
    o.max_steps = 6;
    o.learning_rate = 0.05;
    o.profile = profile;
    return o;
  }
  std::vector<double> losses(Options o, const std::string& name) {
    std::vector<double> losses;
    o.output_dir = folder / name;
    notes.clear();
    Trainer trainer(o, {.on_step = [&](const StepReport& step) { losses.push_back(step.loss); },
                        .on_note = [&](const std::string& text) { notes.push_back(text); }});
    trainer.train();
    return losses;
  }
  bool is_noted(const std::string& text) const {
    return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }
};

TEST_F(Losses, OfASoftmaxIsThatOfItsLogits) {
  const std::vector<double> plain = losses(classifier("plain", "y = Identity (z)"), "plain");
  EXPECT_FALSE(is_noted("is a Softmax"));
  EXPECT_NE(plain.back(), plain.front());
  for (const char* end : {"y = Softmax (z)", "y = LogSoftmax (z)"}) {
    EXPECT_EQ(losses(classifier("softmax", end), "softmax"), plain) << end;
    EXPECT_TRUE(is_noted("the output 'y' is a Softmax: the loss is taken of what goes into it")) << end;
    std::filesystem::remove_all(folder / "softmax");
  }
  const char* const turned = "t = Transpose <perm = [1, 0]> (z)\ns = Softmax <axis = 0> (t)\ny = Transpose <perm = [1, 0]> (s)";
  EXPECT_EQ(losses(classifier("turned", turned), "turned"), plain);
  EXPECT_TRUE(is_noted("the output 'y' is a Softmax"));
  const char* const of_samples = "s = Softmax <axis = 0> (z)\nt = Transpose <perm = [1, 0]> (s)\ny = Transpose <perm = [1, 0]> (t)";
  EXPECT_NE(losses(classifier("of_samples", of_samples), "of_samples"), plain);
  EXPECT_FALSE(is_noted("is a Softmax"));
  // Other losses read the output itself.
  Options o = classifier("squares", "y = Softmax (z)");
  o.data = Arrays()
               .add("x", {kSamples, kWidth}, numbers(kSamples * kWidth, 389))
               .add("labels", {kSamples, kClasses}, numbers(kSamples * kClasses, 31))
               .write(folder / "squares.safetensors");
  o.loss = "mse";
  losses(o, "squares");
  EXPECT_FALSE(is_noted("is a Softmax"));
}

TEST_F(Losses, OfASigmoidAreThoseOfItsLogits) {
  const auto binary = [&](const std::string& name, const std::string& end) {
    Options o = classifier(name, end);
    std::vector<float> labels;
    for (int64_t i = 0; i < kSamples * kClasses; ++i) labels.push_back(static_cast<float>(i * 5 % 7 % 3) / 2);
    o.data = Arrays()
                 .add("x", {kSamples, kWidth}, numbers(kSamples * kWidth, 389))
                 .add("labels", {kSamples, kClasses}, labels)
                 .write(folder / "binary.safetensors");
    o.loss = "binary_cross_entropy";
    return losses(o, name);
  };
  const std::vector<double> plain = binary("logits", "y = Identity (z)");
  EXPECT_TRUE(notes.empty() || !is_noted("is a Sigmoid"));
  EXPECT_EQ(binary("sigmoid", "y = Sigmoid (z)"), plain);
  EXPECT_TRUE(is_noted("the output 'y' is a Sigmoid: the loss is taken of what goes into it"));
  const char* const moved =
      "last = Constant <value_ints = [2]> ()\ns = Sigmoid (z)\nu = Unsqueeze (s, last)\nt = Transpose <perm = [0, 2, 1]> (u)\n"
      "middle = Constant <value_ints = [1]> ()\ny = Squeeze (t, middle)";
  EXPECT_EQ(binary("moved", moved), plain);
  EXPECT_TRUE(is_noted("the output 'y' is a Sigmoid: the loss is taken of what goes into it"));
  losses(classifier("mistaken", "y = Sigmoid (z)"), "mistaken");
  EXPECT_TRUE(is_noted("is `loss` binary_cross_entropy meant?"));
}

TEST_F(Losses, OfFloat64AreThoseOfFloat32) {
  const std::vector<double> plain = losses(classifier("single", "y = Identity (z)"), "single");
  const std::vector<double> wide = losses(classifier("double", "y = Cast <to = 11> (z)", "double"), "double");
  ASSERT_EQ(plain.size(), 6u);
  ASSERT_EQ(wide.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(wide[i], plain[i], 1e-5) << i;
}

TEST_F(Losses, LabelsMayHaveAnAxisOfOne) {
  const std::vector<double> plain = losses(classifier("flat", "y = Identity (z)"), "flat");
  EXPECT_EQ(losses(classifier("column", "y = Identity (z)", "float", {kSamples, 1}), "column"), plain);
}

TEST_F(Losses, OfSamplesAndNoSequencesAreRefusedWhereTheyCantBe) {
  Options o = classifier("axes", "y = Identity (z)");
  o.loss = "cross_entropy(axis=0)";
  EXPECT_THAT(fixtures::error_of([&] { Trainer{o}; }).what(), ::testing::HasSubstr("its axis 0 has the samples"));
  o.loss = "cross_entropy";
  o.task = "causal-lm";
  EXPECT_THAT(fixtures::error_of([&] { Trainer{o}; }).what(), ::testing::HasSubstr("leave `task` out"));
}

TEST_F(Losses, TermsOfCrossEntropyNeedIt) {
  const auto refusal = [&](double smoothing, double z_loss, const char* loss) {
    Options o = classifier("terms", "y = Identity (z)");
    o.label_smoothing = smoothing;
    o.z_loss = z_loss;
    o.loss = loss;
    return std::string(fixtures::error_of([&] { Trainer{o}; }).what());
  };
  EXPECT_THAT(refusal(1, 0, "cross_entropy"), ::testing::HasSubstr("`label_smoothing` 1: has to lie in [0, 1)"));
  EXPECT_THAT(refusal(0, -1, "cross_entropy"), ::testing::HasSubstr("`z_loss` -1: has to be 0 or more"));
  EXPECT_THAT(refusal(0.1, 0, "mse"), ::testing::HasSubstr("`label_smoothing` 0.1: goes with `loss` cross_entropy, not mse"));
}

TEST_F(Losses, UnknownOnesAreRefusedWithTheNamesThereAre) {
  Options o = classifier("unknown", "y = Identity (z)");
  o.loss = "hinge";
  EXPECT_THAT(fixtures::error_of([&] { Trainer{o}; }).what(),
              ::testing::HasSubstr("cross_entropy, nll, mse, l1, smooth_l1, huber, binary_cross_entropy, focal, dice, "));
}

}  // namespace
}  // namespace ort_train
