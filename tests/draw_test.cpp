// Nodes that draw random numbers: distributions, addresses, what ONNX's generators become, and runs of a model with noise.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "exec/kernel.h"
#include "exec/random.h"
#include "frontend/ort_train.h"
#include "graph/op_def.h"
#include "tests/draws.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using Bits = std::vector<int64_t>;  // of kRandomInput: seed, step, samples before, samples

std::vector<float> drawn_by(Attributes attributes, const Shape& shape, const Bits& random) {
  Workers workers(2);
  const Tensor numbers = make_tensor<int64_t>({kRandomNumbers}, random);
  attributes.set("shape", shape);
  return floats(evaluate(op_named("DrawNumbers"), attributes, {&numbers}, 1, workers)[0]);
}

Attributes drawing(bool normal, int64_t ordinal = 5, bool shared = false, float offset = 0, float factor = 1) {
  return {{"normal", int64_t{normal}}, {"ordinal", ordinal}, {"shared", int64_t{shared}}, {"offset", offset}, {"factor", factor}};
}

double mean_of(const std::vector<float>& values, int power, double around = 0) {
  double sum = 0;
  for (const float value : values) sum += std::pow(static_cast<double>(value) - around, power);
  return sum / static_cast<double>(values.size());
}

TEST(DrawNumbers, AreDistributedAsTheyShould) {
  constexpr int64_t kMany = 1'000'000;
  const std::vector<float> uniform = drawn_by(drawing(false), {kMany}, {1, 1, 0, 1});
  EXPECT_GE(*std::min_element(uniform.begin(), uniform.end()), 0);
  EXPECT_LT(*std::max_element(uniform.begin(), uniform.end()), 1);
  EXPECT_NEAR(mean_of(uniform, 1), 0.5, 4 * std::sqrt(1.0 / 12 / kMany));
  EXPECT_NEAR(mean_of(uniform, 2, 0.5), 1.0 / 12, 4 * std::sqrt(1.0 / 180 / kMany));
  std::vector<int> tenths(10);
  for (const float value : uniform) ++tenths[static_cast<size_t>(value * 10)];
  for (const int count : tenths) EXPECT_NEAR(count, kMany / 10, 4 * std::sqrt(0.09 * kMany));

  const std::vector<float> normal = drawn_by(drawing(true), {kMany}, {1, 1, 0, 1});
  EXPECT_NEAR(mean_of(normal, 1), 0, 4 / std::sqrt(kMany));
  EXPECT_NEAR(mean_of(normal, 2), 1, 4 * std::sqrt(2.0 / kMany));
  EXPECT_NEAR(mean_of(normal, 3), 0, 4 * std::sqrt(15.0 / kMany));
  EXPECT_NEAR(mean_of(normal, 4), 3, 4 * std::sqrt(96.0 / kMany));
  double pairs = 0;  // the two that are made together have nothing to do with each other
  for (size_t i = 0; i < normal.size(); i += 2) pairs += static_cast<double>(normal[i]) * static_cast<double>(normal[i + 1]);
  EXPECT_NEAR(pairs / (kMany / 2), 0, 4 / std::sqrt(kMany / 2));
  for (const double bound : {0.5, 1.0, 2.0, 3.0}) {
    const double share = std::erfc(bound / std::sqrt(2.0)) / 2;
    const auto above = std::count_if(normal.begin(), normal.end(), [&](float value) { return value > bound; });
    EXPECT_NEAR(static_cast<double>(above), share * kMany, 4 * std::sqrt(share * kMany)) << bound;
  }
  const std::vector<float> moved = drawn_by(drawing(true, 5, false, -3, 0.25f), {kMany}, {1, 1, 0, 1});
  for (size_t i = 0; i < moved.size(); i += 997) EXPECT_NEAR(moved[i], normal[i] / 4 - 3, 1e-6);
}

TEST(DrawNumbers, DependOnTheirAddressesAlone) {
  for (const bool normal : {false, true}) {
    const auto draw = [&](const Shape& shape, const Bits& random, int64_t ordinal, bool shared) {
      return drawn_by(drawing(normal, ordinal, shared), shape, random);
    };
    const std::vector<float> whole = draw({8, 5, 1001}, {42, 3, 0, 8}, 5, false);
    const auto expect_other = [&](const std::vector<float>& other, const char* what) {
      int same = 0;
      for (size_t i = 0; i < whole.size(); ++i) same += whole[i] == other[i];
      EXPECT_LT(same, 20) << what;
    };
    expect_addresses_decide(whole, draw, expect_other);
    Attributes own = drawing(normal);
    own.set("seed", int64_t{0x3f800000});
    expect_other(drawn_by(own, {8, 5, 1001}, {42, 3, 0, 8}), "the node's own seed");
  }
}

// The outputs of a graph's text, by name.
std::map<std::string, Tensor> draws_of(const std::string& text, const std::map<std::string, Tensor>& inputs,
                                       const Bits& random = {42, 1, 0, 2}) {
  const TestFolder folder;
  const Imported imported = import_whole(write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g {})", text)));
  std::map<std::string, Tensor> with = inputs;
  with[kRandomInput] = make_tensor<int64_t>({kRandomNumbers}, random);
  return run_imported(imported, with);
}

TEST(DrawNumbers, AreWhatOnnxsGeneratorsDraw) {
  constexpr int64_t kEach = 40'000;
  Tensor probabilities(DType::float32, {2, kEach});
  const auto p = probabilities.data<float>();
  std::fill(p.begin(), p.begin() + kEach, 0.1f);
  std::fill(p.begin() + kEach, p.end(), 0.75f);
  p[0] = 0, p[kEach] = 1;
  const auto results = draws_of(
      R"((float[2, 40000] x, float[2, 4] s) => (float[2, 40000] n, double[2, 40000] u, float[200, 200] fixed_n, float[200, 200] fixed_u,
          float[2, 40000] b, bool[2, 40000] c, int32[2, 20000] m) {
        n = RandomNormalLike <mean = 2.0, scale = 0.5> (x)
        u = RandomUniformLike <low = -1.0, high = 3.0, dtype = 11> (x)
        fixed_n = RandomNormal <shape = [200, 200]> ()
        fixed_u = RandomUniform <shape = [200, 200], seed = 3.0> ()
        b = Bernoulli (x)
        c = Bernoulli <dtype = 9> (x)
        m = Multinomial <sample_size = 20000> (s)
      })",
      {{"x", probabilities}, {"s", make_tensor<float>({2, 4}, {0, std::log(2.0f), -INFINITY, std::log(5.0f), 1, 1, 1, -1000})}});
  const std::vector<float> n = floats(results.at("n"));
  EXPECT_NEAR(mean_of(n, 1), 2, 0.01);
  EXPECT_NEAR(mean_of(n, 2, 2), 0.25, 0.01);
  const std::vector<double> wide = results.at("u").to_double();
  const std::vector<float> u(wide.begin(), wide.end());
  EXPECT_NEAR(mean_of(u, 1), 1, 0.02);
  EXPECT_NEAR(mean_of(u, 2, 1), 16.0 / 12, 0.02);
  EXPECT_NEAR(mean_of(floats(results.at("fixed_n")), 2), 1, 0.05);
  EXPECT_NEAR(mean_of(floats(results.at("fixed_u")), 1), 0.5, 0.02);
  for (const char* const name : {"b", "c"}) {
    const std::vector<double> drawn = results.at(name).to_double();
    double low = 0, high = 0;
    for (int64_t i = 0; i < kEach; ++i) low += drawn[static_cast<size_t>(i)], high += drawn[static_cast<size_t>(kEach + i)];
    EXPECT_NEAR(low / kEach, 0.1, 0.01) << name;
    EXPECT_NEAR(high / kEach, 0.75, 0.01) << name;
    EXPECT_EQ(drawn[0], 0);
    EXPECT_EQ(drawn[kEach], 1);
  }
  EXPECT_NE(results.at("b").to_double(), results.at("c").to_double());
  const std::vector<int64_t> classes = results.at("m").to_int64();
  std::vector<double> counts(8);
  for (size_t i = 0; i < classes.size(); ++i) ++counts[4 * (i / 20'000) + static_cast<size_t>(classes[i])];
  for (double& count : counts) count /= 20'000;
  EXPECT_THAT(counts, ::testing::Pointwise(::testing::DoubleNear(0.02),
                                           std::vector<double>{0.125, 0.25, 0.0, 0.625, 1.0 / 3, 1.0 / 3, 1.0 / 3, 0.0}));
  EXPECT_EQ(counts[2], 0);
  EXPECT_EQ(counts[7], 0);
}

// Numbers of samples are other ones in each micro-batch; those of weights, or of a shape that isn't the batch's, are the step's.
TEST(DrawNumbers, BelongToSamplesOrToTheStep) {
  const TestFolder folder;
  const std::string path = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 3] x) => (float[N, 3] y)
    <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 3, 5}, float[3] v = {1, 2, 4}, int64[1] first = {0}> {
      [of_input] a = RandomNormalLike (x)
      shape = Shape (x)
      zeros = ConstantOfShape (shape)
      [of_shape] b = RandomUniformLike (zeros)
      [of_weight] c = RandomNormalLike (w)
      d = Mul (c, w)
      rows = ReduceSum <keepdims = 0> (d, first)
      [of_four] e = RandomNormal <shape = [4, 3]> ()
      fours = ReduceSum <keepdims = 0> (e, first)
      [of_three] f = RandomUniform <shape = [3], seed = 2.0> ()
      h = Add (x, a)
      i = Add (h, b)
      j = Add (i, rows)
      k = Add (j, fours)
      l = Mul (f, v)
      y = Add (k, l)
    })");
  for (const int64_t samples : {4, 2}) {
    const Imported imported = import_file(path, {.shapes = {{"N", samples}}});
    ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
    EXPECT_THAT(imported.info.notes,
                ::testing::Contains("5 nodes ('of_four', …) draw random numbers, which follow from `seed`; outside training, too"));
    std::map<std::string, int64_t> shared;
    std::set<int64_t> ordinals;
    for (const NodeId id : imported.graph.order()) {
      const Node& node = imported.graph.node(id);
      if (node.op->name != "DrawNumbers") continue;
      shared[node.name] = node.attributes.get("shared", 0);
      ordinals.insert(node.attributes.get("ordinal", 0));
      EXPECT_EQ(node.attributes.get("seed", 0), node.name == "of_three" ? 0x40000000 : 0);
    }
    EXPECT_EQ(shared, (std::map<std::string, int64_t>{
                          {"of_input", 0}, {"of_shape", 0}, {"of_weight", 1}, {"of_four", samples == 4 ? 0 : 1}, {"of_three", 1}}));
    EXPECT_EQ(ordinals.size(), 5u);
  }
}

TEST(DrawNumbers, RefuseWhatCantBeDrawn) {
  const TestFolder folder;
  const auto reason = [&](const std::string& node) {
    const Imported imported = import_file(write_model(
        folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x, int64[2] i) => (float[n] y) {{ {} }})", node)));
    EXPECT_EQ(imported.obstacles.size(), 1u) << node;
    return imported.obstacles.empty() ? "" : imported.obstacles[0].reason;
  };
  EXPECT_HAS(reason("y = RandomNormalLike (i)"), "draws int64");
  EXPECT_HAS(reason("y = RandomNormal ()"), "is not a valid node");
  EXPECT_HAS(reason("y = RandomUniform <shape = [3], low = -3e38, high = 3e38> ()"), "aren't finite");
  EXPECT_HAS(reason("y = RandomUniform <shape = [-3]> ()"), "-3");
  EXPECT_HAS(reason("y = Multinomial <sample_size = 0> (x)"), "draws 0 of [2, 3]");
}

struct DrawRuns : TrainerRuns {
  Options options() {
    const std::string model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[N, 6] x) => (float[N, 2] y)
      <float[6, 4] w = {1, 2, 3, 4, -1, 2, 1, 0, 3, 1, 2, 1, 0, 1, 1, -2, 1, 1, 2, 1, 0, 3, 1, 1}, float[4, 2] v = {1, -1, 2, 1, 1, 1, -2, 1}> {
        h = MatMul (x, w)
        [noise] e = RandomNormalLike <scale = 0.5> (h)
        a = Add (h, e)
        [gate] u = RandomUniformLike <low = 0.5, high = 1.5> (a)
        m = Mul (a, u)
        t = Tanh (m)
        y = MatMul (t, v)
      })");
    const std::string data = write_file(
        folder / "data.npz", zip({{.name = "x.npy", .content = npy(npy_description("<f4", "(30, 6)"), bytes_of(numbers(180, 37)))},
                                  {.name = "labels.npy", .content = npy(npy_description("<f4", "(30, 2)"), bytes_of(numbers(60, 53)))}}));
    Options o{.model = model, .data = data, .loss = "mse", .batch_size = 8};
    o.learning_rate = 0.05;
    o.optim = "sgd";
    o.max_steps = 6;  // the fourth is the remainder of 30
    o.threads = 2;
    o.profile = profile;
    o.shuffle = false;
    return o;
  }
};

TEST_F(DrawRuns, TheSeedDecidesAndNothingElseDoes) {
  const Options o = options();
  const Run plain = expect_only_the_seed_decides(*this, o, [&](const Options& other) { return train(other); });
  EXPECT_GT(plain.losses[1], 0);  // the norm of the gradients
  Options other = o;
  other.budget = least_budget(o);
  EXPECT_EQ(train(other).summary.weights_hash, plain.summary.weights_hash);
  other = o;
  other.output_dir = folder / "stopped";
  other.save_steps = 3;
  EXPECT_EQ(train_in_two(other, 3).weights_hash, plain.summary.weights_hash);
}

TEST_F(DrawRuns, MicroBatchesDrawWhatTheLargeBatchDraws) {
  Options o = options();
  o.max_steps = 3;
  const Run large = train(o);
  o.batch_size = 2;
  o.gradient_accumulation_steps = 4;
  const Run small = train(o);
  ASSERT_EQ(small.losses.size(), large.losses.size());
  for (size_t i = 0; i < large.losses.size(); ++i) EXPECT_NEAR(small.losses[i], large.losses[i], 1e-5 * large.losses[i]) << i;
}

// By the place of a sample in the evaluation, however it is cut into batches; and the same numbers each time.
TEST_F(DrawRuns, EvaluationsDrawTheSameEachTime) {
  Options o = options();
  o.output_dir = folder / "out";
  const LossesAtRest plain = losses_at_rest(o);
  ASSERT_GE(plain.evaluated.size(), 6u);
  const double first = plain.evaluated[0];
  for (const double loss : plain.evaluated) EXPECT_EQ(loss, first);
  EXPECT_NE(plain.trained[0], plain.trained[2]);  // an epoch of 15 samples is two steps: the same samples, other numbers
  o.batch_size = 5;
  EXPECT_NEAR(losses_at_rest(o).evaluated.at(0), first, 1e-6 * first);
  o.seed = 43;
  EXPECT_NE(losses_at_rest(o).evaluated.at(0), first);
}

TEST_F(DrawRuns, PredictionsDrawToo) {
  Options o = options();
  o.predict_batch_size = 2;
  o.output_dir = folder / "out";
  const std::vector<float> x = numbers(12, 37);
  std::vector<std::vector<float>> predicted;
  for (const uint64_t seed : {42, 42, 43}) {
    o.seed = seed;
    Trainer trainer(o);
    predicted.push_back(trainer.predict({}, {{"x", x}}).at("y"));
    EXPECT_EQ(trainer.predict({}, {{"x", x}}).at("y"), predicted.back());
  }
  EXPECT_EQ(predicted[0], predicted[1]);
  EXPECT_NE(predicted[0], predicted[2]);
  const Error unknown = error_of([&] { Trainer(o).predict({}, {{"x", x}, {"z", x}}); });
  EXPECT_HAS(unknown.what(), "reads no input 'z'; it reads 'x'");
}

}  // namespace
}  // namespace ort_train
