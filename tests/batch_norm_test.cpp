// BatchNormalization from import to training: which nodes are live, that memory and recompute change no bit and update running statistics
// once a batch, that evaluation is frozen, and what is refused.

#include <fmt/printf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "passes/passes.h"
#include "passes/pipeline.h"
#include "passes/recompute.h"
#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/graph_ops.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace fs = std::filesystem;
namespace pb = ort_train_onnx;
using ::testing::Contains;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

// Two layers, of which the file says that the second is live.
const std::string kTwo = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6},
     float[2] s2 = {2, 1}, float[2] b2 = {1, 0}, float[2] m2 = {1, 2}, float[2] v2 = {3, 1}> {
    [one] a = BatchNormalization (x, s, b, m, v)
    [two] y, mean, var = BatchNormalization <training_mode = 1, momentum = 0.75> (a, s2, b2, m2, v2)
  })";

// A product with a weight that a layer normalises in every step.
pb::ModelProto standardized(const char* layer) {
  pb::ModelProto model = model_of(fmt::sprintf(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3] x) => (float[batch, 2] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}> {
      m = ReduceMean <axes = [0], keepdims = 0> (w)
      c = Sub (w, m)
      q = Mul (c, c)
      v = ReduceMean <axes = [0], keepdims = 0> (q)
      %s (w, s, b, m, v)
      y = MatMul (x, n)
    })",
                                               layer));
  *model.mutable_graph()->add_initializer() = tensor_of("w", {3, 2}, {1, 2, 4, 0, 3, 6});
  return model;
}

struct BatchNorm : ::testing::Test {
  const TestFolder folder;

  Imported import(const std::string& text, ImportOptions options = {}) const {
    options.shapes = {{"batch", 4}};
    return import_file(write_model(folder, text), options);
  }
  std::string obstacle(const std::string& text, ImportOptions options = {}) const {
    const Imported imported = import(text, std::move(options));
    return imported.obstacles.empty()
               ? ""
               : imported.obstacles[0].node + ": " + imported.obstacles[0].reason + "; " + imported.obstacles[0].hint;
  }
};

TEST_F(BatchNorm, TheFileOrTheUserSaysWhatIsLive) {
  const Names frozen{"BatchNormalization"}, live{"LiveBatchNormalization", "RunningStatistics"};
  const auto both = [](Names first, const Names& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  using Nodes = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(op_names(import(kTwo).graph), both(frozen, live));
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm = "live"}).graph), both(live, live));
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm = "frozen"}).graph), both(frozen, frozen));
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm_nodes = Nodes{{"one", "live"}}}).graph), both(live, live));
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm = "live", .batch_norm_nodes = Nodes{{"t*o", "frozen"}}}).graph), both(live, frozen));
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm_nodes = Nodes{{"*", "frozen"}, {"*n*", "live"}}}).graph),
            both(live, frozen));  // the last that fits
  EXPECT_EQ(op_names(import(kTwo, {.batch_norm = "live", .batch_norm_nodes = Nodes{{"two", "model"}}}).graph), both(live, live));
  EXPECT_HAS(error_of([&] {
               import(kTwo, {.batch_norm_nodes = Nodes { { "three", "live" } }});
             }).what(),
             "`batch_norm` three=live: the model has no BatchNormalization node of that name; it has one, two");
  EXPECT_EQ(error_of([&] { import(kTwo, {.batch_norm = "on"}); }).code(), ErrorCode::usage);
  EXPECT_EQ(error_of([&] { import(kTwo, {.batch_norm_nodes = Nodes { { "one", "on" } }}); }).code(), ErrorCode::usage);
  EXPECT_EQ(import(kTwo).info.notes,
            (Names{"1 BatchNormalization node is live: it normalises by each batch's statistics, which the running ones take in",
                   "1 BatchNormalization node is frozen: its running statistics stay as they are (`batch_norm` live)"}));
}

// Before opset 14 a node in training mode has five outputs.
TEST_F(BatchNorm, AnOldFileSaysItByItsOutputs) {
  const auto text = [](const char* outputs) {
    return fmt::format(R"(<ir_version: 8, opset_import: ["" : 9]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
      <float[2] s = {{1, 2}}, float[2] b = {{0, 1}}, float[2] m = {{3, 4}}, float[2] v = {{5, 6}}> {{
        {} = BatchNormalization (x, s, b, m, v)
      }})",
                       outputs);
  };
  EXPECT_EQ(op_names(import(text("y")).graph), Names{"BatchNormalization"});
  EXPECT_EQ(op_names(import(text("y, m2, v2, sm, sv")).graph), (Names{"LiveBatchNormalization", "RunningStatistics"}));
}

TEST_F(BatchNorm, StatisticsAreNoTrainedWeights) {
  const Graph graph = import(kTwo).graph;
  for (const char* name : {"m", "v", "m2", "v2"}) EXPECT_FALSE(graph.value(graph.find_value(name)).trainable) << name;
  for (const char* name : {"s", "b", "s2", "b2"}) EXPECT_TRUE(graph.value(graph.find_value(name)).trainable) << name;
  EXPECT_EQ(graph.parameters().size(), 8u);
}

// An exporter has merged what was equal: that must not be trained, nor changed twice.
TEST_F(BatchNorm, MergedTensorsAreRefusedOrUntied) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] one = {1, 1}, float[2] zero = {0, 0}> {
      [first] a = BatchNormalization (x, one, zero, zero, one)
      [second] y = BatchNormalization (a, one, zero, zero, one)
    })";
  EXPECT_HAS(obstacle(text),
             "BatchNormalization 'first': its running statistic 'zero' is a trained weight as well: the exporter has merged");
  EXPECT_HAS(obstacle(text), "`untie`");
  for (const char* mode : {"frozen", "live"}) {
    const Imported imported = import(text, {.untie = true, .batch_norm = mode});
    EXPECT_TRUE(imported.obstacles.empty()) << mode;
    int64_t trained = 0;
    for (ValueId id : imported.graph.parameters()) trained += imported.graph.value(id).trainable;
    EXPECT_EQ(trained, 4) << mode;
    EXPECT_EQ(imported.graph.parameters().size(), 8u) << mode;
  }
  const std::string shared = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}> {
      [first] a = BatchNormalization (x, s, b, m, v)
      [second] y = BatchNormalization (a, s, b, m, v)
    })";
  EXPECT_EQ(obstacle(shared), "");
  EXPECT_HAS(obstacle(shared, {.batch_norm_nodes = {{"first", "live"}}}), "'second': shares");
  EXPECT_HAS(obstacle(shared, {.batch_norm_nodes = {{"second", "live"}}}), "'second': shares");
  std::string others = shared;  // the same statistics under another scale
  others.replace(others.find("(a, s, b"), 8, "(a, b, s");
  EXPECT_HAS(obstacle(others, {.batch_norm = "live"}), "shares the running statistic 'm' with 'first', and one of the two is live");
  const std::string same = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {1, 1}> { y = BatchNormalization (x, s, b, m, m) })";
  EXPECT_EQ(obstacle(same), "");
  EXPECT_HAS(obstacle(same, {.batch_norm = "live"}), "'m' is its running mean and its running variance");
  for (const char* nodes :
       {"[norm] y = BatchNormalization (x, s, both, both, v)", "h = Add (x, both)\n [norm] y = BatchNormalization (h, s, b, both, v)",
        "[norm] h = BatchNormalization (x, s, b, both, v)\n y = Add (h, both)"}) {
    const std::string frozen = fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2] x) => (float[batch, 2] y)
      <float[2] s = {{1, 2}}, float[2] b = {{0, 1}}, float[2] both = {{0, 0.5}}, float[2] v = {{5, 6}}> {{ {} }})",
                                           nodes);
    EXPECT_EQ(obstacle(frozen, {.batch_norm = "frozen", .freeze = {"both"}}), "") << nodes;
    EXPECT_HAS(obstacle(frozen, {.batch_norm = "live", .freeze = {"both"}}), "its running statistic 'both' is read by ");
  }
}

// Each application normalises by its own batch; one node takes all of them in, in the file's order.
TEST_F(BatchNorm, ALayerMayBeAppliedSeveralTimes) {
  const std::string text =
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x, float[batch, 2, 3] z) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}> {
      [first] a = BatchNormalization <momentum = 0.75> (x, s, b, m, v)
      t = Tanh (a)
      [second] c = BatchNormalization <momentum = 0.75> (z, s, b, m, v)
      [third] d = BatchNormalization <momentum = 0.75> (t, s, b, m, v)
      y = Add (c, d)
    })";
  const Graph graph = import(text, {.batch_norm = "live"}).graph;
  const Names live{"LiveBatchNormalization", "Tanh", "LiveBatchNormalization", "LiveBatchNormalization", "RunningStatistics", "Add"};
  ASSERT_EQ(op_names(graph), live);
  const Node& update = graph.node(graph.order()[4]);
  ASSERT_EQ(update.inputs.size(), 8u);
  for (const size_t i : {0, 1, 2}) {
    const NodeId layer = graph.order()[i == 0 ? 0 : i + 1];
    EXPECT_EQ(graph.value(update.inputs[2 + 2 * i]).producer, layer) << i;
    EXPECT_EQ(graph.value(update.inputs[3 + 2 * i]).producer, layer) << i;
  }
  const EntryGraph predict = build_predict_graph(graph, graph.outputs.size(), {.skip = {"fuse_elementwise"}});
  EXPECT_EQ(op_names(predict.graph), (Names{"BatchNormalization", "Tanh", "BatchNormalization", "BatchNormalization", "Add"}));
  std::string other = text;
  other.replace(other.rfind("0.75"), 4, "0.5");
  EXPECT_HAS(obstacle(other, {.batch_norm = "live"}), "'third': applies the layer of 'first' with another momentum");
}

// What an application makes of the running statistics is computed from what they were, before they change.
TEST_F(BatchNorm, OutputsOfALaterApplicationMayBeRead) {
  const auto text = [](const char* after) {
    return fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y, float[2] after)
    <float[2] s = {{1, 2}}, float[2] b = {{0, 1}}, float[2] m = {{3, 4}}, float[2] v = {{5, 6}}> {{
      [first] a = BatchNormalization <training_mode = 1> (x, s, b, m, v)
      [second] y, taken, var = BatchNormalization <training_mode = 1> (a, s, b, m, v)
      after = {}
    }})",
                       after);
  };
  const std::string read = text("Neg (taken)");
  EXPECT_EQ(obstacle(read), "");
  EXPECT_EQ(op_names(import(read).graph),
            (Names{"LiveBatchNormalization", "LiveBatchNormalization", "Mul", "Mul", "Add", "RunningStatistics", "Neg"}));
  EXPECT_HAS(obstacle(text("Mul (taken, m)"), {.freeze = {"m"}}), "BatchNormalization 'first': its running statistic 'm' is read by ");
}

TEST_F(BatchNorm, ALayerBehindAnObstacleIsKnown) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}> {
      [odd] a = Det (x)
      [layer] y = BatchNormalization (a, s, b, m, v)
    })";
  EXPECT_HAS(obstacle(text, {.batch_norm_nodes = {{"layer", "live"}}}), "Det 'odd'");
}

TEST_F(BatchNorm, StatisticsThatAreComputedCantBeLive) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x, float[2] m) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] v = {5, 6}> {
      y = BatchNormalization (x, s, b, m, v)
    })";
  EXPECT_EQ(obstacle(text), "");
  EXPECT_HAS(obstacle(text, {.batch_norm = "live"}), "are no initializers");
}

// As the weights of convolutions that are standardised in each step: by the exporter's statistics of them, or their own.
TEST_F(BatchNorm, AWeightMayBeNormalized) {
  const auto normalized = [&](const char* layer) {
    return import_file(write_model(folder, standardized(layer)), {.shapes = {{"batch", 4}}});
  };
  const auto y_of = [](const Imported& imported) {
    const Tensor x = make_tensor<float>({4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0, 1});
    return run_imported(imported, {{"x", x}}).at("y");
  };
  const Tensor computed = y_of(normalized("n = BatchNormalization"));
  const Imported live = normalized("n, a, d = BatchNormalization <training_mode = 1>");
  EXPECT_THAT(op_names(live.graph), Contains("LiveBatchNormalization"));
  EXPECT_THAT(op_names(live.graph), ::testing::Not(Contains("RunningStatistics")));
  const Tensor of_live = y_of(live);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(computed.data<float>()[i], of_live.data<float>()[i], 1e-4) << i;
  EXPECT_NEAR(of_live.data<float>()[0], -1.336306 + 2 * 1.069045 + 3 * 0.267261, 1e-4);
}

// An activation's have to be kept.
TEST_F(BatchNorm, ActivationsAreNotNormalizedByComputedStatistics) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}> {
      m = ReduceMean <axes = [0, 2], keepdims = 0> (x)
      v = ReduceSumSquare <axes = [0, 2], keepdims = 0> (x)
      y = BatchNormalization (x, s, b, m, v)
    })";
  EXPECT_HAS(obstacle(text, {.batch_norm = "live"}), "are no initializers");
}

TEST_F(BatchNorm, EvaluationAndPredictionAreFrozen) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2, 3] x) => (float[batch, 2, 3] y, float[2] after)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}> {
      y, after, var = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    })";
  const Graph graph = import(text).graph;
  EXPECT_THAT(op_names(graph), Contains("RunningStatistics"));
  const EntryGraph predict = build_predict_graph(graph, graph.outputs.size(), {}),
                   evaluate = build_evaluate_graph(graph, {.terms = {{.kind = "mse"}}}, {});
  EXPECT_EQ(op_names(predict.graph), (Names{"BatchNormalization", "FusedElementwise"}));  // `after` of what stays is the same
  EXPECT_EQ(op_names(evaluate.graph), (Names{"BatchNormalization", "SquaredError"}));
  EXPECT_EQ(predict.graph.parameters().size(), 4u);
  Graph again = predict.graph;
  EXPECT_FALSE(leave_training(again, {}));
}

// Recompute runs the layer again, never the node that changes its statistics.
TEST_F(BatchNorm, StatisticsAreUpdatedOnceWhateverIsRecomputed) {
  Graph graph = build_train_graph(import(kTwo, {.batch_norm = "live"}).graph, {.terms = {{.kind = "mse"}}}, {}, {}).graph;
  Names before = op_names(graph);
  Recomputed result;
  ASSERT_TRUE(recompute(graph, recompute_mode("all"), &result) || recompute(graph, {.groups = 1}, &result));
  graph.verify("recompute");
  Names again;
  for (NodeId id : result.nodes) again.emplace_back(graph.node(id).op->name);
  EXPECT_THAT(again, Contains("LiveBatchNormalization"));
  const Names after = op_names(graph);
  EXPECT_EQ(std::count(before.begin(), before.end(), "RunningStatistics"), 2);
  EXPECT_EQ(std::count(after.begin(), after.end(), "RunningStatistics"), 2);
}

// --- training -------------------------------------------------------------------------------------------------------------------------

struct BatchNormTraining : TrainerRuns {
  const std::string model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/cnn-torchscript-17-live.onnx";
  const std::string data = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/cnn-torchscript-17-live.data.safetensors";

  Options options() {
    Options o{.model = model, .data = data};
    o.batch_size = 6;
    o.learning_rate = 1e-3;
    o.max_steps = 8;  // the seventh is the remainder of 40
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  // All running statistics of the model that the last run wrote.
  std::vector<float> statistics() const {
    std::vector<float> all;
    const Imported imported = import_file(folder / "out/model.onnx", {.shapes = {{"batch", 1}}});
    for (const Weight& weight : imported.weights) {
      if (imported.graph.value(imported.graph.find_value(weight.parameter)).trainable) continue;
      const Tensor tensor = weight_tensor(imported, weight);
      all.insert(all.end(), tensor.data<float>().begin(), tensor.data<float>().end());
    }
    return all;
  }
};

TEST_F(BatchNormTraining, GradientsGoThroughTheStatisticsOfAWeight) {
  const auto trained = [&](const char* layer) {
    Options o{.model = write_model(folder, standardized(layer))};
    o.data = Arrays().add("x", {8, 3}, numbers(24, 389)).add("labels", {8, 2}, numbers(16, 31)).write(folder / "weight.safetensors");
    o.loss = "mse";
    o.batch_size = 4;
    o.learning_rate = 0.05;
    o.max_steps = 12;
    o.profile = profile;
    return train(o).losses;
  };
  const auto computed = trained("n = BatchNormalization"), live = trained("n, a, d = BatchNormalization <training_mode = 1>");
  ASSERT_GE(live.size(), 12u);
  ASSERT_EQ(live.size(), computed.size());
  EXPECT_NE(live.front(), live.back());
  for (size_t i = 0; i < live.size(); ++i) EXPECT_NEAR(computed[i], live[i], 1e-4) << i;
}

// Two applications of a layer in a step, to x and to 2 x + 1.
TEST_F(BatchNormTraining, ALayerThatIsAppliedTwiceTakesInBoth) {
  Options o{.model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2] x) => (float[batch, 2] y)
    <float[2] s = {1, 2}, float[2] b = {0.5, -0.5}, float[2] m = {3, 1}, float[2] v = {5, 2}> {
      a = BatchNormalization <momentum = 0.75> (x, s, b, m, v)
      two = Constant <value_float = 2.0> ()
      one = Constant <value_float = 1.0> ()
      t = Mul (x, two)
      u = Add (t, one)
      c = BatchNormalization <momentum = 0.75> (u, s, b, m, v)
      y = Add (a, c)
    })")};
  o.data = Arrays()
               .add("x", {4, 2}, std::vector<float>{1, 0, 2, 2, 4, 2, 9, 4})
               .add("labels", {4, 2}, numbers(8, 31))
               .write(folder / "twice.safetensors");
  o.loss = "mse";
  o.batch_size = 4;
  o.max_steps = 1;
  o.batch_norm = "live";
  o.profile = profile;
  o.output_dir = folder / "out";
  Trainer(o).train();
  const auto taken = [](double running, double first, double second) { return 0.75 * (0.75 * running + 0.25 * first) + 0.25 * second; };
  const double wanted[] = {taken(3, 4, 9), taken(1, 2, 5), taken(5, 9.5, 38), taken(2, 2, 8)};
  const std::vector<float> kept = statistics();
  ASSERT_EQ(kept.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(kept[i], wanted[i], 1e-5) << i;
}

TEST_F(BatchNormTraining, MicroBatchesOfALayerThatIsAppliedTwice) {
  const TestFolder files;
  Options o{.model = write_model(files, R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3, 4] x) => (float[batch, 3, 4] y)
    <float[3] s = {1, 2, 0.5}, float[3] b = {0, 1, -1}, float[3] m = {3, 4, 1}, float[3] v = {5, 6, 2}, float[4, 4] w = {1, 2, 3, 4, 5, 6, 7,
     8, 1, 3, 5, 7, 2, 4, 6, 9}> {
      a = BatchNormalization (x, s, b, m, v)
      h = MatMul (a, w)
      y = BatchNormalization (h, s, b, m, v)
    })")};
  o.data = Arrays().add("x", {12, 3, 4}, numbers(144, 389)).add("labels", {12, 3, 4}, numbers(144, 31)).write(files / "data.safetensors");
  o.loss = "mse";
  o.batch_size = 2;
  o.gradient_accumulation_steps = 3;
  o.max_steps = 4;
  o.batch_norm = "live";
  o.profile = profile;
  const Run plain = train(o);
  for (const char* order : {"horizontal", "vertical"}) {
    Options other = o;
    other.micro_batches = order;
    other.recompute = "all";
    EXPECT_EQ(train(other).summary.weights_hash, plain.summary.weights_hash) << order;
  }
}

TEST_F(BatchNormTraining, FrozenStatisticsStay) {
  Options o = options();
  o.output_dir = folder / "out";
  Trainer(o).train();
  const std::vector<float> live = statistics();
  o.batch_norm = "frozen";
  o.overwrite = true;
  Trainer(o).train();
  const std::vector<float> frozen = statistics();
  fs::copy_file(model, folder / "out/model.onnx", fs::copy_options::overwrite_existing);
  EXPECT_EQ(frozen, statistics());
  EXPECT_EQ(live.size(), 2u * (16 + 16 + 16 + 28 + 28 + 28));
  for (size_t i = 0; i < live.size(); ++i) EXPECT_NE(live[i], frozen[i]) << i;
}

TEST_F(BatchNormTraining, NeitherRecomputeNorBatchOrderNorThreadsChangeABit) {
  for (const int64_t batches : {1, 3}) {
    Options o = options();
    o.gradient_accumulation_steps = batches;
    const Run plain = train(o);
    for (const char* mode : {"sqrt", "all"}) {
      for (const char* order : {"horizontal", "vertical"}) {
        Options other = o;
        other.recompute = mode;
        other.micro_batches = order;
        other.threads = 3;
        const Run run = train(other);
        EXPECT_GT(run.plan.saved_recomputed, 0) << mode;
        EXPECT_EQ(run.losses, plain.losses) << mode << order << batches;
        EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << mode << order << batches;
      }
    }
  }
}

// Forward runs of training change statistics, those of evaluation and prediction don't; a step of rate 0 shows which.
TEST_F(BatchNormTraining, EvaluationReadsTheStatisticsAndLeavesThem) {
  Options o = options();
  o.output_dir = folder / "out";
  o.learning_rate = 0;
  o.max_steps = 3;
  o.eval_steps = 1;
  o.validation_split = 0.5;
  std::vector<double> evaluated;
  Trainer trainer(o, {.on_eval = [&](const EvalReport& report) { evaluated.push_back(report.loss); }});
  const Summary summary = trainer.train();
  ASSERT_GE(evaluated.size(), 3u);
  EXPECT_NE(evaluated[0], evaluated[1]);
  EXPECT_EQ(trainer.evaluate(), trainer.evaluate());
  EXPECT_EQ(trainer.evaluate(), summary.eval_loss);
}

TEST_F(BatchNormTraining, AResumedRunHasTheStatisticsOfTheUninterruptedOne) {
  Options o = options();
  const Run plain = train(o);
  o.output_dir = folder / "stopped";
  EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash);
}

// Statistics of 80 kB each leave the memory between their uses, and are part of the state file.
TEST_F(BatchNormTraining, StatisticsOnTheDiskAreResumed) {
  constexpr int64_t kWidth = 20'000, kSamples = 24;
  auto wide = model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 20000] x) => (float[batch, 5] y) {
      n1 = BatchNormalization <training_mode = 1> (x, s1, b1, m1, v1)
      n2 = BatchNormalization <training_mode = 1> (n1, s2, b2, m2, v2)
      n3 = BatchNormalization <training_mode = 1> (n2, s3, b3, m3, v3)
      y = MatMul (n3, w)
    })");
  const auto numbers = [](int64_t n, float low) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(low + static_cast<float>(i * 37 % 101) / 101);
    return values;
  };
  for (const char* name : {"s1", "b1", "m1", "v1", "s2", "b2", "m2", "v2", "s3", "b3", "m3", "v3"})
    *wide.mutable_graph()->add_initializer() = tensor_of(name, {kWidth}, numbers(kWidth, *name == 'm' ? -0.5f : 0.25f));
  *wide.mutable_graph()->add_initializer() = tensor_of("w", {kWidth, 5}, numbers(5 * kWidth, -0.5f));
  const TestFolder files;
  Options o = options();
  o.model = write_model(files, wide);
  o.data = write_file(
      files / "data.npz",
      zip({{.name = "x.npy", .content = npy(npy_description("<f4", "(24, 20000)"), bytes_of(numbers(kSamples * kWidth, -1)))},
           {.name = "labels.npy", .content = npy(npy_description("<i8", "(24,)"), bytes_of(std::vector<int64_t>(kSamples, 3)))}}));
  const Run plain = train(o);
  o.nvme_path = files / "disk";
  fs::create_directory(o.nvme_path);
  o.budget = Trainer(o).plan().minimum_budget;
  o.output_dir = files / "out";
  const std::vector<PlanMoves> moves = Trainer(o).plan().moves;
  const auto weights = std::find_if(moves.begin(), moves.end(), [](const PlanMoves& m) { return m.kind == "weights"; });
  ASSERT_NE(weights, moves.end());
  EXPECT_GE(weights->moved, 3 * 2 + 1 + 1);  // scales, biases and the weight are fewer: so statistics, too
  EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash);
}

TEST_F(BatchNormTraining, SaysWhatAccumulationMeans) {
  Options o = options();
  const auto notes = [&] {
    Names all;
    Trainer trainer(o, {.on_note = [&](const std::string& text) { all.push_back(text); }});
    return all;
  };
  EXPECT_THAT(notes(), Not(Contains(HasSubstr("each micro-batch by itself"))));
  o.gradient_accumulation_steps = 2;
  EXPECT_THAT(notes(), Contains(HasSubstr("each micro-batch by itself: a step is not that of one large batch")));
  o.batch_norm = "frozen";
  EXPECT_THAT(notes(), Not(Contains(HasSubstr("each micro-batch by itself"))));
}

TEST_F(BatchNormTraining, ABatchOfOneValueAChannelIsRefused) {
  const std::string text = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2] x) => (float[batch, 2] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}> {
      [layer] y = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    })";
  const TestFolder models;
  Options o{.model = write_model(models, text), .loss = "mse", .batch_size = 3};
  const std::vector<float> numbers(14, 1.0f);
  o.data =
      write_file(models / "data.npz", zip({{.name = "x.npy", .content = npy(npy_description("<f4", "(7, 2)"), bytes_of(numbers))},
                                           {.name = "labels.npy", .content = npy(npy_description("<f4", "(7, 2)"), bytes_of(numbers))}}));
  EXPECT_HAS(error_of([&] { Trainer trainer(o); }).what(),
             "[BatchNormalization 'layer'] a batch of 1 gives it one value a channel, as the last of an epoch here");
  o.batch_size = 2;
  EXPECT_EQ(error_of([&] { Trainer trainer(o); }).code(), ErrorCode::usage);
  o.batch_norm = "frozen";
  Trainer trainer(o);
}

}  // namespace
}  // namespace ort_train
