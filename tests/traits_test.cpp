// Passes and the front end ask an op for its traits, never for its name: ops that nobody knows, made for these tests, are treated like
// those whose traits they have, and those that have lost their traits like any other.

#include <gtest/gtest.h>

#include <deque>

#include "exec/random.h"
#include "frontend/feed.h"
#include "graph/op_def.h"
#include "passes/passes.h"
#include "passes/split_weights.h"
#include "tests/graph_ops.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

// Ops under new names; they live as long as the graphs that refer to them.
class UnknownOps {
 public:
  // Every node's op gets a name that is in no list; its meaning stays. `traits`: else none are left.
  void rename(Graph& graph, bool traits = true) {
    for (const NodeId id : graph.order()) {
      OpDef op = *graph.node(id).op;
      op.name = "Unknown";
      if (!traits) op.traits = {};
      graph.node(id).op = &ops_.emplace_back(std::move(op));
    }
  }

 private:
  std::deque<OpDef> ops_;
};

using Names = std::vector<std::string>;

ValueId parameter(Graph& graph, const char* name, Shape shape) {
  return graph.add_value({.name = name, .shape = std::move(shape), .kind = ValueKind::parameter, .trainable = true});
}
ValueId input(Graph& graph, const char* name, DType dtype, Shape shape) {
  graph.inputs.push_back(graph.add_value({.name = name, .dtype = dtype, .shape = std::move(shape), .kind = ValueKind::input}));
  return graph.inputs.back();
}

// One use each of four weights that can be divided: of ranks 2, 3 and 4.
struct Divisible {
  Graph graph;
  ValueId matrix, transposed, table, kernel;
  std::map<ValueId, std::vector<ValueId>> gradients;

  Divisible() {
    Builder b(graph);
    matrix = parameter(graph, "matrix", {800, 48});
    transposed = parameter(graph, "transposed", {800, 48});
    table = parameter(graph, "table", {800, 6, 8});
    kernel = parameter(graph, "kernel", {800, 6, 2, 4});
    const ValueId x = input(graph, "x", DType::float32, {3, 48}), wide = input(graph, "wide", DType::float32, {3, 800}),
                  ids = input(graph, "ids", DType::int64, {5}), image = input(graph, "image", DType::float32, {2, 6, 3, 4});
    const std::vector<int64_t> kernel_shape{2, 4};
    graph.outputs = {b.emit("MatMul", {wide, matrix}), b.emit("MatMul", {x, transposed}, {{"trans_b", int64_t{1}}}),
                     b.emit("Gather", {table, ids}, {{"axis", int64_t{0}}}),
                     b.emit("Conv", {image, kernel}, {{"kernel_shape", kernel_shape}})};
    const ValueId dx = input(graph, "dx", DType::float32, {3, 48}), drows = input(graph, "drows", DType::float32, {5, 6, 8}),
                  dimage = input(graph, "dimage", DType::float32, {2, 800, 2, 1});
    Builder back(graph, Stage::backward);
    const auto shape = [&](ValueId id) { return graph.value(id).shape; };
    gradients[matrix] = {back.emit("MatMul", {wide, dx}, {{"trans_a", int64_t{1}}})};
    gradients[table] = {back.emit("GatherGrad", {drows, ids}, {{"axis", int64_t{0}}, {"shape", shape(table)}})};
    gradients[kernel] = {back.emit("ConvWeightGrad", {dimage, image}, {{"kernel_shape", kernel_shape}, {"shape", shape(kernel)}})};
  }
};

TEST(Traits, AnOpSaysHowItDividesAParameterOfAnyRank) {
  Divisible model;
  UnknownOps unknown;
  unknown.rename(model.graph);
  const PassOptions options{.part_bytes = 70'000};
  ASSERT_TRUE(mark_parts(model.graph, options));
  for (const ValueId id : {model.matrix, model.transposed, model.kernel}) EXPECT_EQ(model.graph.value(id).part_rows % 320, 0) << id;
  EXPECT_EQ(model.graph.value(model.table).part_rows % 64, 0) << "lookups add nothing up";
  EntryGraph job{.graph = model.graph};
  ASSERT_TRUE(split_weights(job, model.gradients));
  job.graph.verify("split_weights");
  for (const char* name : {"matrix", "transposed", "table", "kernel"}) {
    const std::vector<Slice>& slices = job.slices.at(name);
    EXPECT_GE(slices.size(), 2u) << name;
    int64_t bytes = 0;
    for (const Slice& slice : slices) bytes += slice.bytes;
    EXPECT_EQ(bytes, 800 * 48 * 4) << name;
  }
  EXPECT_EQ(job.graph.value(job.graph.find_value("kernel[0:320]")).shape, (Shape{320, 6, 2, 4}));
  std::map<std::string, size_t> count;
  for (const std::string& name : op_names(job.graph)) ++count[name];
  const auto parts = [&](const char* name) { return job.slices.at(name).size(); };
  EXPECT_EQ(count["Unknown"], 0u) << "every node is divided";
  EXPECT_EQ(count["MatMulPart"], 2 * parts("matrix") + parts("transposed"));
  EXPECT_EQ(count["GatherPart"], parts("table"));
  EXPECT_EQ(count["GatherGrad"], parts("table"));
  EXPECT_EQ(count["ConvPart"], parts("kernel"));
  EXPECT_EQ(count["ConvWeightGrad"], parts("kernel"));
  EXPECT_EQ(model.gradients.size(), parts("matrix") + parts("table") + parts("kernel"));
}

TEST(Traits, AnOpThatSaysNothingGetsTheWhole) {
  Divisible model;
  UnknownOps unknown;
  Graph silent = model.graph;
  unknown.rename(silent, /*traits=*/false);
  EXPECT_FALSE(mark_parts(silent, {.part_bytes = 70'000}));
  // Marked while it still said so: weights are put together, gradients taken apart.
  ASSERT_TRUE(mark_parts(model.graph, {.part_bytes = 70'000}));
  unknown.rename(model.graph, /*traits=*/false);
  EntryGraph job{.graph = model.graph};
  ASSERT_TRUE(split_weights(job, model.gradients));
  job.graph.verify("split_weights");
  std::map<std::string, size_t> count;
  for (const std::string& name : op_names(job.graph)) ++count[name];
  EXPECT_EQ(count["Concat"], 4u);
  EXPECT_EQ(count["Unknown"], 7u);
  EXPECT_EQ(count["Slice"], model.gradients.size());
}

TEST(Traits, LeavingTrainingIsTheOpsAffair) {
  Graph graph;
  Builder b(graph);
  const ValueId x = input(graph, "x", DType::float32, {4, 3, 5}), random = input(graph, kRandomInput, DType::int64, {kRandomNumbers});
  const ValueId mean = parameter(graph, "mean", {3}), variance = parameter(graph, "variance", {3});
  const ValueId dropped = b.emit("Dropout", {x, random}, {{"ratio", 0.25f}});
  const std::vector<ValueId> live =
      b.emit_many("LiveBatchNormalization", {dropped, parameter(graph, "s", {3}), parameter(graph, "b", {3})}, {}, 3);
  for (const ValueId id : b.emit_many("RunningStatistics", {mean, variance, live[1], live[2]}, {}, 2))
    graph.value(id).kind = ValueKind::parameter;
  graph.outputs = {live[0]};
  UnknownOps unknown;
  Graph silent = graph;
  unknown.rename(silent, /*traits=*/false);
  EXPECT_FALSE(leave_training(silent, {}));
  EXPECT_EQ(op_names(silent).size(), 3u);
  unknown.rename(graph);
  EXPECT_TRUE(leave_training(graph, {}));
  graph.verify("leave_training");
  EXPECT_EQ(op_names(graph), (Names{"Reshape", "BatchNormalization"}));
  EXPECT_EQ(graph.node(graph.order()[1]).inputs[3], mean);
  EXPECT_EQ(graph.inputs, (std::vector<ValueId>{x})) << "nothing is random any more";
}

TEST(Traits, WhatKeepsNumbersAndTypeIsDropped) {
  for (const bool traits : {true, false}) {
    Graph graph;
    Builder b(graph);
    const ValueId x = input(graph, "x", DType::float32, {2, 3});
    const ValueId same = b.emit("Expand", {b.emit("Cast", {x}, {{"to", static_cast<int64_t>(DType::float32)}})}, {{"shape", Shape{2, 3}}});
    graph.outputs = {b.emit("Expand", {b.emit("Neg", {same})}, {{"shape", Shape{4, 2, 3}}})};
    UnknownOps unknown;
    unknown.rename(graph, traits);
    EXPECT_EQ(simplify(graph, {}), traits);
    EXPECT_EQ(graph.order().size(), traits ? 2u : 4u);
  }
}

// Whatever looks rows up, under whatever shape and type it gets the ids.
TEST(Traits, FedIndicesAreHeldAgainstTheSmallestTable) {
  Graph graph;
  Builder b(graph);
  const ValueId ids = input(graph, "ids", DType::int64, {6}), others = input(graph, "others", DType::int64, {6});
  const ValueId reshaped = b.reshape(b.emit("Cast", {ids}, {{"to", static_cast<int64_t>(DType::int32)}}), {2, 3});
  const ValueId spread = b.emit("Expand", {reshaped}, {{"shape", Shape{4, 2, 3}}});
  graph.outputs = {b.emit("Gather", {parameter(graph, "large", {50, 4}), ids}, {{"axis", int64_t{0}}}),
                   b.emit("Gather", {parameter(graph, "columns", {50, 7}), spread}, {{"axis", int64_t{1}}}),
                   b.emit("GatherPart", {parameter(graph, "part", {5, 4}), ids}, {{"first", int64_t{5}}, {"total", int64_t{20}}}),
                   b.emit("Gather", {b.emit("Neg", {parameter(graph, "computed", {3, 4})}), ids}, {{"axis", int64_t{0}}}),
                   b.emit("Add", {ids, others})};
  UnknownOps unknown;
  unknown.rename(graph);
  EXPECT_EQ(index_limit(graph, ids), 7);
  EXPECT_EQ(index_limit(graph, others), 0);
  unknown.rename(graph, /*traits=*/false);
  EXPECT_EQ(index_limit(graph, ids), 0);
}

}  // namespace
}  // namespace ort_train
