// Logits in parts: what the pass makes of a head and its loss, that they compute the same bits, and which heads stay whole.

#include "passes/split_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "exec/workers.h"
#include "graph/op_def.h"
#include "passes/recompute.h"
#include "passes/split_weights.h"
#include "tests/graph_ops.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr int64_t kTokens = 6, kWidth = 64, kVocabulary = 2000, kPart = 768;

// A head with a bias, of hidden values of which each has a trained factor.
Graph head_forward() {
  Graph graph;
  const auto weight = [&](const char* name, Shape shape) {
    return graph.add_value({.name = name, .shape = std::move(shape), .kind = ValueKind::parameter, .trainable = true});
  };
  const ValueId x = graph.add_value({.name = "x", .shape = {2, 3, kWidth}, .kind = ValueKind::input});
  graph.inputs = {x};
  Builder b(graph);
  const ValueId hidden = b.emit("Mul", {x, weight("factor", {kWidth})});
  const ValueId w = weight("head", {kVocabulary, kWidth});
  graph.outputs = {b.named("head").emit("MatMul", {hidden, w, weight("bias", {kVocabulary})}, {{"trans_b", int64_t{1}}})};
  return graph;
}

LossSpec smoothed_loss() {
  LossSpec loss;
  loss.terms[0].parameters = {{"label_smoothing", {0.1}}, {"z_loss", {0.01}}};
  return loss;
}

EntryGraph head_training(int64_t part_bytes, const LossSpec& loss = smoothed_loss(), Graph forward = head_forward()) {
  mark_parts(forward, {.part_bytes = part_bytes});
  return build_train_graph(forward, loss, {.max_grad_norm = 0.1}, {});
}

constexpr int64_t kInParts = kPart * kWidth * 4, kWhole = int64_t{1} << 30;

// The most numbers that any value has which a node makes, but for parameters and their updates.
int64_t largest_value(const Graph& graph) {
  int64_t most = 0;
  for (const NodeId id : graph.order()) {
    for (const ValueId value : graph.node(id).outputs) {
      if (value != kNone && graph.node(id).stage != Stage::update) most = std::max(most, element_count(graph.value(value).shape));
    }
  }
  return most;
}

TEST(SplitLogits, NothingIsAsLargeAsTheLogits) {
  const EntryGraph train = head_training(kInParts);
  EXPECT_EQ(count_ops(train.graph, "SoftmaxCrossEntropyPart"), 3u);
  EXPECT_EQ(count_ops(train.graph, "SoftmaxCrossEntropyOfParts"), 1u);
  EXPECT_EQ(count_ops(train.graph, "SoftmaxCrossEntropyGrad"), 3u);
  EXPECT_EQ(count_ops(train.graph, "SoftmaxCrossEntropy"), 0u);
  EXPECT_EQ(count_ops(train.graph, "MatMulPart"), 9u) << "logits, and the gradients of the hidden values and of the weight";
  EXPECT_LE(largest_value(train.graph), kPart * kWidth) << "a part of the weight's gradient";
  Graph forward = head_forward();
  mark_parts(forward, {.part_bytes = kInParts});
  const EntryGraph evaluate = build_evaluate_graph(forward, smoothed_loss(), {});
  EXPECT_EQ(count_ops(evaluate.graph, "SoftmaxCrossEntropyPart"), 3u);
  EXPECT_EQ(largest_value(evaluate.graph), kTokens * kPart) << "a part of the logits";
  EXPECT_EQ(count_ops(build_predict_graph(forward, 1, {}).graph, "SoftmaxCrossEntropyPart"), 0u);
}

// The loss, the gradient norm, the weights and the optimizer state after a step.
std::vector<std::byte> left_by_step(const EntryGraph& job) {
  Workers workers(2);
  Reference reference(workers);
  const Graph forward = head_forward();
  for (const ValueId id : forward.parameters()) {
    const Value& value = forward.value(id);
    const Tensor all = random_tensor(value.type(), id);
    const auto divided = job.slices.find(value.name);
    if (divided == job.slices.end()) {
      reference.state[value.name] = all;
      continue;
    }
    size_t from = 0;
    for (const Slice& slice : divided->second) {
      Tensor& part = reference.state[slice.name] = Tensor(value.dtype, job.graph.value(job.graph.find_value(slice.name)).shape);
      std::memcpy(part.bytes.data(), all.bytes.data() + from, part.bytes.size());
      from += part.bytes.size();
    }
  }
  const auto values = reference.run(job.graph, step_inputs(job.graph, {}, kVocabulary));
  std::vector<std::byte> left;
  const auto add = [&](const Tensor& tensor) { left.insert(left.end(), tensor.bytes.begin(), tensor.bytes.end()); };
  for (const ValueId id : job.graph.outputs) add(values.at(id));
  for (const char* of : {"", ".exp_avg", ".exp_avg_sq"}) {
    for (const char* name : {"factor", "bias", "head", "head[0:768]", "head[768:1536]", "head[1536:2000]"}) {
      if (const auto found = reference.state.find(std::string(name) + of); found != reference.state.end()) add(found->second);
    }
  }
  return left;
}

TEST(SplitLogits, TheBitsAreThoseOfTheWhole) {
  const EntryGraph whole = head_training(kWhole);
  EXPECT_EQ(count_ops(whole.graph, "SoftmaxCrossEntropy"), 1u);
  EXPECT_EQ(left_by_step(head_training(kInParts)), left_by_step(whole));
}

// As in a model that computes its own loss, of labels that it is fed in another type or shape.
TEST(SplitLogits, LabelsMayBeMadeAfterTheProduct) {
  Graph forward = head_forward();
  const ValueId labels = forward.add_value({.name = "fed", .dtype = DType::int32, .shape = {kTokens}, .kind = ValueKind::input});
  forward.inputs.push_back(labels);
  Builder b(forward);
  const ValueId wide = b.reshape(b.cast(labels, DType::int64), {2, 3});
  const ValueId logits = forward.outputs[0];
  forward.outputs = {b.emit_many("SoftmaxCrossEntropy", {logits, wide}, {}, 2)[0], logits};
  mark_parts(forward, {.part_bytes = kInParts});
  forward.outputs.pop_back();
  LossSpec own;
  own.terms[0].kind = "output";
  const EntryGraph train = build_train_graph(forward, own, {}, {});
  train.graph.verify("split_logits");
  EXPECT_EQ(count_ops(train.graph, "SoftmaxCrossEntropyPart"), 3u);
}

// In the backward pass, beside the products that read the same part of the weight.
TEST(SplitLogits, PartsCanBeComputedAgain) {
  EntryGraph train = head_training(kInParts);
  const auto wanted = left_by_step(train);
  Recomputed recomputed;
  ASSERT_TRUE(recompute(train.graph, recompute_mode("all"), &recomputed));
  EXPECT_EQ(count_ops(train.graph, "MatMulPart"), 12u) << "each part of the logits twice";
  EXPECT_EQ(left_by_step(train), wanted);
}

TEST(SplitLogits, WhatAnythingElseReadsStaysWhole) {
  const auto parts = [](const EntryGraph& job) { return count_ops(job.graph, "SoftmaxCrossEntropyPart"); };
  LossSpec two = smoothed_loss();
  two.terms.push_back({.kind = "mse", .labels = {"numbers"}});
  EXPECT_EQ(parts(head_training(kInParts, two)), 0u) << "another loss";
  LossSpec weighted;
  weighted.terms[0].parameters = {{"weight", std::vector<double>(kVocabulary, 0.5)}};
  EXPECT_EQ(parts(head_training(kInParts, weighted)), 0u) << "the classes have weights";
  Graph squashed = head_forward();
  squashed.outputs = {Builder(squashed).emit("Tanh", {squashed.outputs[0]})};
  EXPECT_EQ(parts(head_training(kInParts, smoothed_loss(), squashed)), 0u) << "the loss reads what is made of them";
  Graph by_rows = head_forward();
  by_rows.outputs = {Builder(by_rows).reshape(by_rows.outputs[0], {kTokens, kVocabulary})};
  EXPECT_EQ(parts(head_training(kInParts, smoothed_loss(), by_rows)), 3u) << "a Reshape changes nothing";
}

}  // namespace
}  // namespace ort_train
