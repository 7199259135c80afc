// Graphs as ONNX files: written, checked by ONNX's own checker, read back the same; and graphs from ONNX text.

#include <gtest/gtest.h>
#include <onnx/checker.h>

#include <set>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/onnx/writer.h"
#include "passes/pipeline.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

const char* const kClassifier = R"(classifier (float[4, 3] x) => (float[4, 5] logits)
  <float[3, 8] w1, float[8] b1, float[8, 5] w2, float half = {0.5}> {
    [first] h = MatMul (x, w1, b1)
    [act] a = Gelu <approximate = "tanh"> (h)
    [scale] s = Mul (a, half)
    [second] logits = MatMul (s, w2)
  })";

pb::ModelProto written(const Graph& graph, const TestFolder& folder) {
  const std::string path = folder / "graph.onnx";
  write_graph(graph, path);
  pb::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(read_file(path)));
  pb::checker::check_model(model);
  EXPECT_EQ(read_graph(path).to_text(), graph.to_text());
  return model;
}

TEST(OnnxText, GivesGraphs) {
  const Graph graph = parse_graph(kClassifier);
  EXPECT_EQ(graph.name, "classifier");
  EXPECT_EQ(graph.inputs, (std::vector<ValueId>{graph.find_value("x")}));
  std::vector<std::string> parameters;
  for (ValueId id : graph.parameters()) {
    parameters.push_back(graph.value(id).name);
    EXPECT_TRUE(graph.value(id).trainable);
  }
  EXPECT_EQ(parameters, (std::vector<std::string>{"w1", "b1", "w2"}));
  EXPECT_EQ(graph.constant(graph.find_value("half"))->data<float>()[0], 0.5f);
  EXPECT_EQ(to_string(graph.value(graph.find_value("a")).type()), "float32 [4, 8]");
  EXPECT_EQ(graph.node(graph.order()[1]).name, "act");
  EXPECT_EQ(graph.node(graph.order()[1]).attributes.get("approximate", "none"), "tanh");
  graph.verify("reading");
}

TEST(OnnxText, ErrorsSayWhere) {
  EXPECT_HAS(error_of([] { parse_graph("g (float[2] x) => (float[2] y) { y = Relu (x }"); }).what(), "line: 1");
  EXPECT_HAS(error_of([] { parse_graph("g (float[2] x) => (float[2] y) { y = Nope (x) }"); }).what(), "no op 'Nope'");
  EXPECT_HAS(error_of([] { parse_graph("g (float[2] x) => (float[2] y) { y = Relu (z) }"); }).what(), "reads 'z'");
  EXPECT_HAS(error_of([] { parse_graph("g (float[2] x) => (float[3] y) { y = Relu (x) }"); }).what(), "declared float32 [3]");
  EXPECT_HAS(error_of([] { parse_graph("g (float[n] x) => (float[n] y) { y = Relu (x) }"); }).what(), "isn't fixed");
}

TEST(OnnxFiles, ForwardGraphsComeBackTheSame) {
  const TestFolder folder;
  const pb::ModelProto model = written(parse_graph(kClassifier), folder);
  std::map<std::string, std::string> domains;
  for (const auto& node : model.graph().node()) domains[node.op_type()] = node.domain();
  EXPECT_EQ(domains.at("Gelu"), "");
  EXPECT_EQ(domains.at("Mul"), "");
  EXPECT_EQ(domains.at("MatMul"), "ort_train");  // it has a bias
  EXPECT_EQ(model.graph().input_size(), 4);      // x and the parameters, which have no data
  EXPECT_EQ(model.graph().initializer_size(), 1);
  EXPECT_EQ(model.graph().value_info_size(), 3);
}

TEST(OnnxFiles, TrainingGraphsComeBackTheSame) {
  const TestFolder folder;
  for (const bool accumulate : {false, true}) {
    const EntryGraph train = build_train_graph(parse_graph(kClassifier), {}, {.accumulate = accumulate}, {});
    const pb::ModelProto model = written(train.graph, folder);
    std::set<std::string> kinds, stages;
    for (const auto& input : model.graph().input()) {
      for (const auto& entry : input.metadata_props()) {
        if (entry.key() == "ort_train.kind") kinds.insert(entry.value());
      }
    }
    for (const auto& node : model.graph().node()) {
      for (const auto& entry : node.metadata_props()) {
        if (entry.key() == "ort_train.stage") stages.insert(entry.value());
      }
    }
    EXPECT_TRUE(kinds.contains("input") && kinds.contains("parameter"));
    EXPECT_TRUE(kinds.contains(accumulate ? "accumulator" : "optimizer_state"));
    EXPECT_TRUE(stages.contains("forward") && stages.contains("backward"));
    read_graph(folder / "graph.onnx").verify("reading");
    if (accumulate) written(build_update_graph(train, {.accumulate = true}, {}).graph, folder);
  }
}

TEST(OnnxFiles, KeepsEveryKindOfAttributeConstantAndName) {
  const TestFolder folder;
  Graph graph;
  graph.name = "odd";
  const ValueId x = graph.add_value({.name = "x", .dtype = DType::float32, .shape = {2, 3}, .kind = ValueKind::input});
  graph.inputs = {x};
  Builder builder(graph);
  builder.named("node 'one'", 7);
  ValueId y = builder.emit("Mul", {x, builder.constant(make_tensor<float>({}, {2}))});
  y = builder.emit("Clip", {y}, {{"min", -1.0f}, {"max", 1.0f}});
  y = builder.emit("Transpose", {y}, {{"perm", std::vector<int64_t>{1, 0}}});
  const ValueId mask = builder.constant(make_tensor<bool>({3, 2}, {true, false, true, true, false, false}));
  y = builder.emit("Where", {mask, y, builder.constant(Tensor(DType::float32, {1, 1}))});
  const ValueId unused = builder.constant(make_tensor<int64_t>({2}, {1, 2}));
  graph.add_value({.name = "frozen", .dtype = DType::float64, .shape = {}, .kind = ValueKind::parameter, .trainable = false});
  graph.add_value({.name = "learned", .dtype = DType::float32, .shape = {4, 0}, .kind = ValueKind::parameter, .trainable = true});
  graph.outputs = {y, x};
  const pb::ModelProto model = written(graph, folder);
  const Graph back = read_graph(folder / "graph.onnx");
  EXPECT_EQ(back.node(back.order()[0]).ordinal, 7u);
  EXPECT_EQ(back.node(back.order()[0]).name, "node 'one'");
  EXPECT_FALSE(back.value(back.find_value("frozen")).trainable);
  EXPECT_TRUE(back.value(back.find_value("learned")).trainable);
  EXPECT_EQ(back.find_value(graph.value(unused).name), kNone);  // nobody reads it
  EXPECT_EQ(*back.constant(back.find_value(graph.value(mask).name)), *graph.constant(mask));
  EXPECT_EQ(back.node(back.order()[1]).attributes, graph.node(graph.order()[1]).attributes);
}

TEST(OnnxFiles, ErrorsNameTheFile) {
  const Graph graph = parse_graph(kClassifier);
  const Error unwritable = error_of([&] { write_graph(graph, "/nonexistent/graph.onnx"); });
  EXPECT_EQ(unwritable.code(), ErrorCode::io);
  EXPECT_HAS(unwritable.what(), "/nonexistent/graph.onnx");
  EXPECT_EQ(error_of([] { read_graph("/nonexistent/graph.onnx"); }).code(), ErrorCode::io);
}

}  // namespace
}  // namespace ort_train
