// The rewriting passes: what a graph becomes, and that it still computes the same.

#include "passes/passes.h"

#include <fmt/printf.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "exec/kernel.h"
#include "exec/random.h"
#include "graph/autodiff.h"
#include "graph/onnx/writer.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/pipeline.h"
#include "tests/after_pass.h"
#include "tests/graph_ops.h"

namespace ort_train {
namespace {

using fixtures::after_pass;
using fixtures::op_names;
using fixtures::run_graph;

const Node& only(const Graph& graph, std::string_view op) {
  const Node* found = nullptr;
  for (NodeId id : graph.order()) {
    if (graph.node(id).op->name == op) {
      EXPECT_EQ(found, nullptr) << "more than one " << op;
      found = &graph.node(id);
    }
  }
  if (!found) throw std::runtime_error("no " + std::string(op) + " in\n" + graph.to_text());
  return *found;
}

TEST(Simplify, ReshapesMergeAndVanish) {
  const Graph graph = after_pass(R"(g (float[2, 6] x) => (float[3, 4] y) {
    a = Reshape<shape = [12]>(x)
    b = Reshape<shape = [12]>(a)
    c = Reshape<shape = [3, 4]>(b)
    y = Neg(c)
  })",
                                 simplify);
  EXPECT_EQ(op_names(graph), (std::vector<std::string>{"Reshape", "Neg"}));
}

TEST(Simplify, ProductsTakeTransposesAndBiases) {
  const Graph graph = after_pass(R"(g (float[4, 3] x) => (float[4, 5] y) <float[5, 3] w, float[5] b> {
    t = Transpose<perm = [1, 0]>(w)
    m = MatMul(x, t)
    y = Add(m, b)
  })",
                                 simplify);
  const Node& product = only(graph, "MatMul");
  EXPECT_EQ(op_names(graph).size(), 1u);
  EXPECT_EQ(product.attributes.get("trans_b", 0), 1);
  EXPECT_EQ(product.inputs.size(), 3u);
}

TEST(Simplify, ABiasOfAnotherShapeStays) {
  const Graph graph = after_pass(R"(g (float[4, 3] x) => (float[4, 5] y) <float[3, 5] w, float[4, 1] b> {
    m = MatMul(x, w)
    y = Add(m, b)
  })",
                                 simplify);
  EXPECT_EQ(op_names(graph), (std::vector<std::string>{"MatMul", "Add"}));
}

TEST(Simplify, AFlattenedTransposeOfTheLastAxesIsOne) {
  const Graph graph = after_pass(R"(g (float[2, 3, 4, 5] x) => (float[2, 3, 5, 4] y) {
    a = Reshape<shape = [6, 4, 5]>(x)
    b = Transpose<perm = [0, 2, 1]>(a)
    c = Reshape<shape = [2, 3, 5, 4]>(b)
    y = Neg(c)
  })",
                                 simplify);
  EXPECT_EQ(only(graph, "Transpose").attributes.get("perm", std::vector<int64_t>{}), (std::vector<int64_t>{0, 1, 3, 2}));
  EXPECT_EQ(op_names(graph).size(), 2u);
}

TEST(FuseGelu, TheTanhForm) {
  const Graph graph = after_pass(
      R"(g (float[40] x) => (float[40] y) <float half = {0.5}, float one = {1}, float three = {3}, float c = {0.044715}, float r = {0.7978845608}> {
    h = Mul(x, half)
    p = Pow(x, three)
    q = Mul(p, c)
    s = Add(x, q)
    u = Mul(s, r)
    t = Tanh(u)
    o = Add(t, one)
    y = Mul(h, o)
  })",
      fuse_gelu);
  EXPECT_EQ(op_names(graph), std::vector<std::string>{"Gelu"});
  EXPECT_EQ(only(graph, "Gelu").attributes.get("approximate", "none"), "tanh");
}

TEST(FuseGelu, TheErfFormInAnotherOrder) {
  const Graph graph = after_pass(R"(g (float[40] x) => (float[40] y) <float half = {0.5}, float one = {1}, float r = {1.41421356}> {
    d = Div(x, r)
    e = Erf(d)
    o = Add(one, e)
    m = Mul(x, o)
    y = Mul(m, half)
  })",
                                 fuse_gelu);
  EXPECT_EQ(op_names(graph), std::vector<std::string>{"Gelu"});
}

TEST(FuseGelu, AnotherConstantIsNotAGelu) {
  const Graph graph = after_pass(R"(g (float[40] x) => (float[40] y) <float half = {0.5}, float one = {1}, float r = {1.3}> {
    d = Div(x, r)
    e = Erf(d)
    o = Add(one, e)
    m = Mul(x, o)
    y = Mul(m, half)
  })",
                                 fuse_gelu);
  EXPECT_EQ(op_names(graph).size(), 5u);
}

TEST(FuseNormalization, LayerNormInPrimitives) {
  const Graph graph = after_pass(R"(g (float[5, 8] x) => (float[5, 8] y) <float[8] w, float[8] b, float two = {2}, float eps = {1e-5}> {
    mean = ReduceMean<axes = [-1], keepdims = 1>(x)
    d = Sub(x, mean)
    q = Pow(d, two)
    v = ReduceMean<axes = [-1], keepdims = 1>(q)
    e = Add(v, eps)
    r = Sqrt(e)
    n = Div(d, r)
    s = Mul(n, w)
    y = Add(s, b)
  })",
                                 fuse_normalization);
  EXPECT_EQ(op_names(graph), std::vector<std::string>{"LayerNormalization"});
}

constexpr const char* kAttention =
    R"(g (float[2, 3, 6, 4] q, float[2, 3, 6, 4] k, float[2, 3, 6, 4] v%s) => (float[2, 3, 6, 4] y) <float scale = {0.5}%s> {
    s = MatMul<trans_b = 1>(q, k)
    m = Mul(s, scale)
    %s
    p = Softmax<axis = -1>(b)
    y = MatMul(p, v)
  })";

TEST(FuseAttention, AFutureMaskBecomesCausal) {
  std::string mask;
  for (int row = 0; row < 6; ++row) {
    for (int column = 0; column < 6; ++column) mask += (mask.empty() ? "" : ", ") + std::string(column <= row ? "0" : "-3.4e38");
  }
  const Graph graph =
      after_pass(fmt::sprintf(kAttention, "", ", float[1, 1, 6, 6] mask = {" + mask + "}", "b = Add(m, mask)"), fuse_attention);
  const Node& attention = only(graph, "Attention");
  EXPECT_EQ(op_names(graph).size(), 1u);
  EXPECT_EQ(attention.attributes.get("causal", 0), 1);
  EXPECT_EQ(attention.attributes.get("scale", 1.0f), 0.5f);
  EXPECT_EQ(attention.inputs.size(), 3u);
}

TEST(FuseAttention, AMaskThatIsComputedStaysAnInput) {
  const Graph graph = after_pass(fmt::sprintf(kAttention, ", float[2, 1, 6, 6] mask", "", "b = Add(m, mask)"), fuse_attention);
  EXPECT_EQ(only(graph, "Attention").inputs.size(), 4u);
  EXPECT_EQ(only(graph, "Attention").attributes.get("causal", 0), 0);
  EXPECT_EQ(only(graph, "Attention").attributes.get("replaces", 0), 0);
}

TEST(FuseAttention, WhereMasksToo) {
  const Graph graph = after_pass(
      fmt::sprintf(kAttention, ", bool[1, 1, 6, 6] allowed", ", float low = {-3.4e38}", "b = Where(allowed, m, low)"), fuse_attention);
  EXPECT_EQ(only(graph, "Attention").inputs.size(), 4u);
  EXPECT_EQ(only(graph, "Attention").attributes.get("replaces", 0), 1);
}

TEST(FuseAttention, RepeatedHeadsAreTakenOnce) {
  const char* const model = R"(g (float[2, 6, 5, 4] q, float[2, 2, 1, 7, 4] k, float[2, %s, 1, 7, 3] v) => (float[2, 6, 5, 3] y) {
    ke = Expand<shape = [2, 2, 3, 7, 4]>(k)
    kr = Reshape<shape = [2, 6, 7, 4]>(ke)
    ve = Expand<shape = [2, %s, %s, 7, 3]>(v)
    vr = Reshape<shape = [2, 6, 7, 3]>(ve)
    s = MatMul<trans_b = 1>(q, kr)
    p = Softmax<axis = -1>(s)
    y = MatMul(p, vr)
  })";
  const Graph graph = after_pass(fmt::sprintf(model, "2", "2", "3"), fuse_attention);
  const Node& attention = only(graph, "Attention");
  EXPECT_EQ(graph.value(attention.inputs[1]).shape, (Shape{2, 2, 7, 4}));
  EXPECT_EQ(graph.value(attention.inputs[2]).shape, (Shape{2, 2, 7, 3}));
  EXPECT_EQ(std::ranges::count(op_names(graph), std::string("Expand")), 0);
  // Not where keys and values are repeated for different groups.
  const Graph other = after_pass(fmt::sprintf(model, "3", "3", "2"), fuse_attention);
  EXPECT_EQ(other.value(only(other, "Attention").inputs[1]).shape, (Shape{2, 6, 7, 4}));
}

TEST(FuseAttention, WeightsThatAreAnOutputStay) {
  const Graph graph =
      after_pass(R"(g (float[1, 2, 6, 4] q, float[1, 2, 6, 4] k, float[1, 2, 6, 4] v) => (float[1, 2, 6, 4] y, float[1, 2, 6, 6] p) {
    s = MatMul<trans_b = 1>(q, k)
    p = Softmax<axis = -1>(s)
    y = MatMul(p, v)
  })",
                 fuse_attention);
  EXPECT_EQ(op_names(graph).size(), 3u);
}

// --- autodiff and the job graphs ------------------------------------------------------------------------------------------------------

TEST(Autodiff, AWeightUsedTwiceIsSummedInImportOrder) {
  Graph graph = parse_graph(R"(g (float[4, 3] x) => (float[4, 3] y) <float[3, 3] w> {
    a = MatMul(x, w)
    b = Tanh(a)
    y = MatMul(b, w)
  })");
  const ValueId loss = Builder(graph).emit("SquaredError", {graph.outputs[0], graph.inputs[0]});
  graph.outputs = {loss};
  const auto uses = differentiate_uses(graph, {{.value = loss}});
  graph.verify("autodiff");
  ASSERT_EQ(uses.size(), 1u);
  const std::vector<ValueId>& gradients = uses.begin()->second;
  ASSERT_EQ(gradients.size(), 2u);
  const auto position = [&](ValueId v) {
    return std::find(graph.order().begin(), graph.order().end(), graph.value(v).producer) - graph.order().begin();
  };
  EXPECT_GT(position(gradients[0]), position(gradients[1])) << "the first use's gradient is the last to be made";
}

TEST(Autodiff, ShallowProductsOfOneMatrixAreOneProduct) {
  Graph graph = parse_graph(R"(g (float[2, 16] x) => (float[2, 16] y) <float[16, 16] w> {
    a = MatMul(x, w)
    b = Tanh(a)
    c = MatMul(b, w)
    d = Tanh(c)
    y = MatMul(d, w)
  })");
  const ValueId loss = Builder(graph).emit("SquaredError", {graph.outputs[0], graph.inputs[0]});
  const auto uses = differentiate_uses(graph, {{.value = loss}});
  ASSERT_EQ(uses.begin()->second.size(), 1u);
  const ValueId gradient = uses.begin()->second[0];
  const auto producer = [&](ValueId value) { return graph.node(graph.value(value).producer); };
  const Node product = producer(gradient), rows = producer(product.inputs[0]), others = producer(product.inputs[1]);
  ASSERT_EQ(rows.inputs.size(), 3u);
  EXPECT_EQ(rows.inputs[0], graph.inputs[0]) << "in import order";
  EXPECT_EQ(graph.value(product.inputs[1]).shape, (Shape{6, 16}));
  ValueId sum = kNone;
  for (size_t i = 0; i < 3; ++i) {
    const ValueId one = Builder(graph).emit("MatMul", {rows.inputs[i], others.inputs[i]}, product.attributes);
    sum = i == 0 ? one : Builder(graph).emit("Add", {sum, one});
  }
  graph.outputs = {gradient, sum};
  graph.remove_dead_nodes();
  graph.verify("autodiff");
  const auto results = run_graph(graph);
  for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(results[0][i], results[1][i], 1e-5);
}

TEST(Pipeline, OutputsKeepTheirNames) {
  Graph graph = parse_graph(R"(g (float[4, 3] x) => (float[4, 5] y, float[4, 5] z, float[4, 3] w) <float[3, 5] p, float[5] b> {
    m = MatMul(x, p)
    y = Add(m, b)
    z = Reshape<shape = [4, 5]>(y)
    w = Reshape<shape = [4, 3]>(x)
  })");
  const auto before = run_graph(graph);
  optimize_forward(graph, {});
  graph.verify("optimize_forward");
  EXPECT_EQ(run_graph(graph), before);
  std::vector<std::string> names;
  for (ValueId output : graph.outputs) names.push_back(graph.value(output).name);
  EXPECT_EQ(names, (std::vector<std::string>{"y", "z", "w"}));
  EXPECT_EQ(only(graph, "MatMul").inputs.size(), 3u);
  // Again, with an input and a weight among them, which keep theirs.
  graph.outputs = {graph.find_value("x"), graph.find_value("y"), graph.find_value("p")};
  optimize_forward(graph, {});
  EXPECT_EQ(names_of_outputs(graph), (std::vector<std::string>{"x", "y", "p"}));
  EXPECT_EQ(graph.value(graph.inputs[0]).name, "x");
  EXPECT_EQ(graph.value(graph.outputs[1]).name, "y");
  EXPECT_EQ(graph.value(graph.find_value("p")).kind, ValueKind::parameter);
  EXPECT_EQ(graph.find_output("p"), graph.outputs[2]);
}

// Fused ops have the bits of those one by one.
Graph fused(std::string_view text) {
  EntryGraph job{.graph = parse_graph(text)};
  const auto before = run_graph(job.graph);
  fuse_elementwise(job, {});
  job.graph.verify("the pass");
  EXPECT_EQ(run_graph(job.graph), before) << job.graph.to_text();
  EXPECT_FALSE(fuse_elementwise(job, {})) << "not idempotent:\n" << job.graph.to_text();
  return job.graph;
}
using Ops = std::vector<std::string>;

TEST(FuseElementwise, WhatOneReadsOfAnotherIsMadeOnTheWay) {
  const Graph graph = fused(R"(g (float[3, 5000] a, float[5000] b) => (float[3, 5000] y) <float three = {3}> {
    s = Add(a, b)
    r = Relu(s)
    p = Mul(r, three)
    t = Tanh(a)
    y = Sub(p, t)
  })");
  EXPECT_EQ(op_names(graph), Ops{"FusedElementwise"});
  EXPECT_EQ(only(graph, "FusedElementwise").attributes.get("ops", ""), "Add Relu Mul Tanh Sub");
}

TEST(FuseElementwise, NumbersOfSixteenBitsAreRoundedBetweenOps) {
  const Graph graph =
      fused(fmt::sprintf(R"(g (float[4000] a, float[4000] b) => (float[4000] y) {
    h = Cast <to = %d> (a)
    i = Cast <to = %d> (b)
    s = Add(h, i)
    t = Tanh(s)
    y = Cast <to = %d> (t)
  })",
                         static_cast<int>(DType::bfloat16), static_cast<int>(DType::bfloat16), static_cast<int>(DType::float32)));
  EXPECT_EQ(op_names(graph), Ops{"FusedElementwise"});
}

TEST(FuseElementwise, WhatOthersReadStays) {
  const Graph graph = fused(R"(g (float[9] a, float[9] b) => (float[9] s, float[9] z, float[1] u) {
    s = Add(a, b)
    z = Relu(s)
    t = Mul(a, b)
    u = ReduceSum <axes = [0]> (t)
  })");
  EXPECT_EQ(op_names(graph), (Ops{"Add", "Relu", "Mul", "ReduceSum"}));
}

TEST(FuseElementwise, NoMoreLargeTensorsAtOnceThanOneOpTakes) {
  const Graph graph = fused(R"(g (float[200, 300] a, float[200, 300] b, float[200, 300] c, float[300] d) => (float[200, 300] y) {
    s = Add(a, b)
    t = Mul(s, d)
    u = Sub(t, c)
    y = Exp(u)
  })");
  EXPECT_EQ(op_names(graph), (Ops{"FusedElementwise", "FusedElementwise"}));
}

TEST(FuseElementwise, NothingLargeStandsBetween) {
  const Graph graph = fused(R"(g (float[200, 300] a, float[300, 300] w) => (float[200, 300] y) {
    s = Neg(a)
    m = MatMul(a, w)
    r = Relu(m)
    t = Tanh(s)
    y = Mul(r, t)
  })");
  EXPECT_EQ(op_names(graph), (Ops{"Neg", "MatMul", "FusedElementwise"}));
  EXPECT_EQ(only(graph, "FusedElementwise").attributes.get("ops", ""), "Relu Tanh Mul");
}

TEST(FuseElementwise, WhatIsChangedMeanwhileIsReadBefore) {
  EntryGraph job{.graph = parse_graph(R"(g (float[2, 3] x, float[3] mean, float[3] variance) => (float[3] y)
     <float[3] m, float[3] v, float half = {0.5}> {
    a = Mul(m, half)
    r, s = ort_train.RunningStatistics <momentum = 0.5> (m, v, mean, variance)
    y = Add(a, mean)
  })")};
  fuse_elementwise(job, {});
  EXPECT_EQ(op_names(job.graph), (Ops{"Mul", "RunningStatistics", "Add"}));
}

TEST(FuseElementwise, ANormalisationTakesWhatFollows) {
  const char* const model = R"(g (float[2, 40, 20, 20] x, float[2, 40, 20, 20] r) => (float[2, 40, 20, 20] y)
     <float[40] scale, float[40] bias, float[40] mean, float[40] variance, float[40, 1, 1] f> {
    m = Exp(variance)
    n = BatchNormalization(x, scale, bias, mean, m)
    k = Mul(n, f)
    %s
  })";
  const Graph graph = fused(fmt::sprintf(model, "y = Relu(k)"));
  EXPECT_EQ(op_names(graph), (Ops{"Exp", "FusedBatchNormalization"}));
  EXPECT_EQ(only(graph, "FusedBatchNormalization").inputs.size(), 6u);
  // With a residual it would need a third large tensor.
  EXPECT_EQ(op_names(fused(fmt::sprintf(model, "y = Add(k, r)"))), (Ops{"Exp", "BatchNormalization", "FusedElementwise"}));
}

TEST(LeaveTraining, NothingIsDropped) {
  Graph graph = parse_graph(R"(g (float[2, 6] x) => (float[2, 6] y) {
    y = Neg(x)
  })");
  const ValueId random =
      graph.add_value({.name = kRandomInput, .dtype = DType::int64, .shape = {kRandomNumbers}, .kind = ValueKind::input});
  graph.inputs.push_back(random);
  const ValueId dropped = Builder(graph).emit("Dropout", {graph.outputs[0], random}, {{"ratio", 0.5f}});
  graph.outputs = {dropped};
  EXPECT_TRUE(leave_training(graph, {}));
  graph.verify("the pass");
  EXPECT_EQ(op_names(graph), (std::vector<std::string>{"Neg", "Reshape"}));
  EXPECT_EQ(graph.inputs.size(), 1u);
  EXPECT_EQ(graph.outputs[0], dropped);  // under its own name
  std::vector<double> negated = run_graph(graph)[0], x = run_graph(parse_graph(R"(g (float[2, 6] x) => (float[2, 6] y) {
    y = Reshape<shape = [2, 6]>(x)
  })"))[0];
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(negated[i], -x[i]);
  EXPECT_FALSE(leave_training(graph, {}));
}

TEST(Autodiff, NamesEveryNodeWithoutGradient) {
  Graph graph = parse_graph(R"(g (float[4] x) => (float[4] y) <float[4] w> {
    a = Mul(x, w)
    b = CumSum<axis = 0>(a)
    y = Neg(b)
  })");
  const ValueId loss = Builder(graph).emit("SquaredError", {graph.outputs[0], graph.inputs[0]});
  EXPECT_EQ(find_blockers(graph, {loss}).size(), op_named("CumSum").gradient ? 0u : 1u);
}

TEST(Simplify, BiasesAreAbsorbedInOneRoundAndWhatReadsTheirSumsIsLeft) {
  Graph graph = parse_graph(R"(g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w, float[4] b, float[4] c, float[4] d> {
    p = MatMul(x, v)
    q = Add(p, b)
    r = Add(x, q)
    s = MatMul(r, w)
    t = Add(c, s)
    u = Add(t, d)
    y = Add(r, u)
  })");
  const std::vector<double> before = run_graph(graph)[0];
  EXPECT_TRUE(simplify(graph, {}));
  graph.verify("simplify");
  EXPECT_EQ(op_names(graph), (std::vector<std::string>{"MatMul", "Add", "MatMul", "Add", "Add"}));
  EXPECT_EQ(run_graph(graph)[0], before);
}

TEST(Autodiff, GradientsGoAroundStepFunctions) {
  const auto gradient_of = [](const char* magnitude) {
    Graph graph = parse_graph(fmt::format(R"(g (float[4] x) => (float[4] y) <float[4] w> {{
      a = Mul(x, w)
      {}
    }})",
                                          magnitude));
    const ValueId loss = Builder(graph).emit("SquaredError", {graph.outputs[0], graph.inputs[0]});
    EXPECT_TRUE(find_blockers(graph, {loss}).empty());
    graph.outputs = {differentiate(graph, loss).at(graph.find_value("w"))};
    return run_graph(graph)[0];
  };
  EXPECT_EQ(gradient_of("s = Sign(a)\n y = Mul(s, a)"), gradient_of("y = Abs(a)"));
}

TEST(Autodiff, StepFunctionsWithoutAWayAroundAndStraightThroughEstimatorsAreNamed) {
  const auto blockers = [](const char* nodes) {
    Graph graph = parse_graph(fmt::format("g (float[4] x) => (float[4] y) <float[4] w> {{ a = Mul(x, w)\n {} }}", nodes));
    const ValueId loss = Builder(graph).emit("SquaredError", {graph.outputs[0], graph.inputs[0]});
    EXPECT_EQ(find_steps(graph, {loss}).size(), 1u) << nodes;
    return find_blockers(graph, {loss}).size();
  };
  EXPECT_EQ(blockers("y = Floor(a)"), 1u);
  EXPECT_EQ(blockers("f = Floor(a)\n y = Sub(a, f)"), 0u) << "a remainder";
  EXPECT_EQ(blockers("r = Round(a)\n d = Sub(r, a)\n y = Add(a, d)"), 1u);
  EXPECT_EQ(blockers("r = Round(a)\n n = Neg(x)\n s = Mul(r, n)\n d = Sub(s, a)\n y = Add(d, a)"), 1u);
  EXPECT_EQ(blockers("r = Round(a)\n n = Neg(r)\n m = Reshape<shape = [4]>(n)\n d = Sub(m, a)\n y = Add(a, d)"), 1u);
  EXPECT_EQ(blockers("r = Round(a)\n d = Sub(a, r)\n y = Sub(a, d)"), 1u);
}

TEST(Pipeline, AnAccumulatedStepComputesTheGradientsOfThePlainOne) {
  const char* text = R"(g (float[4, 3] x) => (float[4, 2] y) <float[3, 3] w, float[3, 2] v> {
    a = MatMul(x, w)
    b = Tanh(a)
    c = MatMul(b, w)
    y = MatMul(c, v)
  })";
  const LossSpec loss{.terms = {{.kind = "mse"}}};
  const Graph forward = parse_graph(text);
  EntryGraph plain = build_train_graph(forward, loss, {.max_grad_norm = 0}, {});
  const OptimizerSpec accumulating{.max_grad_norm = 0, .accumulate = true};
  EntryGraph micro = build_train_graph(forward, loss, accumulating, {});
  const EntryGraph update = build_update_graph(micro, accumulating, {});
  plain.graph.verify("train");
  update.graph.verify("update");
  EXPECT_EQ(plain.gradients.size(), 2u);
  EXPECT_EQ(micro.accumulators.size(), 2u);
  size_t accumulators = 0;
  for (const auto& [parameter, sums] : micro.accumulators) accumulators += sums.size();
  EXPECT_EQ(accumulators, 3u) << "one for each use";
  EXPECT_EQ(std::count_if(update.graph.order().begin(), update.graph.order().end(),
                          [&](NodeId id) { return update.graph.node(id).op->name == "Clear"; }),
            3);
}

TEST(Pipeline, AGradientIsAddedToItsSumAsItIsMade) {
  const char* text = R"(g (int64[4] i, float[4, 3] z) => (float[4, 2] y) <float[5, 3] table, float[3, 2] v, float[3, 2] w, float[3, 3] u> {
    x = Gather(table, i)
    a = MatMul(x, u)
    both = Add(v, w)
    s = Add(a, z)
    y = MatMul(s, both)
  })";
  const EntryGraph micro = build_train_graph(parse_graph(text), {.terms = {{.kind = "mse"}}}, {.max_grad_norm = 0, .accumulate = true}, {});
  micro.graph.verify("train");
  std::map<std::string, std::vector<std::string>> adds;  // by the parameter
  for (const NodeId id : micro.graph.order()) {
    const Node& node = micro.graph.node(id);
    for (const Alias& write : node.op->writes) adds[micro.graph.value(node.inputs[write.input]).owner].emplace_back(node.op->name);
  }
  using Ops = std::vector<std::string>;
  EXPECT_EQ(adds["table"], Ops{"AccumulateGatherGrad"});
  EXPECT_EQ(adds["u"], Ops{"AccumulateMatMul"});
  EXPECT_EQ(adds["v"], Ops{"Accumulate"}) << "the gradient is that of w, too";
  EXPECT_EQ(adds["w"], Ops{"Accumulate"});
}

}  // namespace
}  // namespace ort_train
