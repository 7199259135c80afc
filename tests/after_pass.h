// What a pass makes of a graph in ONNX's text syntax, which has to compute what it computed before.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/kernel.h"
#include "graph/onnx/writer.h"
#include "passes/passes.h"

namespace ort_train::fixtures {

// The outputs. Every input and parameter gets numbers from its name; nodes run one by one.
inline std::vector<std::vector<double>> run_graph(const Graph& graph) {
  Workers workers(1);
  std::vector<Tensor> values(graph.value_count());
  std::vector<const Tensor*> at(graph.value_count());
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(id);
    if (value.constant) at[id] = value.constant.get();
    if (value.kind != ValueKind::input && value.kind != ValueKind::parameter) continue;
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(value.name)));
    values[id] = Tensor(value.dtype, value.shape);
    if (value.dtype == DType::float32) {
      for (float& x : values[id].data<float>()) x = std::uniform_real_distribution<float>(-1, 1)(random);
    } else if (value.dtype == DType::float64) {
      for (double& x : values[id].data<double>()) x = std::uniform_real_distribution<double>(-1, 1)(random);
    } else if (value.dtype == DType::boolean) {
      for (bool& x : values[id].data<bool>()) x = random() % 4 != 0;
    }
    at[id] = &values[id];
  }
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> inputs;
    for (ValueId input : node.inputs) inputs.push_back(input == kNone ? nullptr : at[input]);
    std::vector<Tensor> results = evaluate(*node.op, node.attributes, inputs, node.outputs.size(), workers);
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i] == kNone) continue;
      values[node.outputs[i]] = std::move(results[i]);
      at[node.outputs[i]] = &values[node.outputs[i]];
    }
  }
  std::vector<std::vector<double>> outputs;
  for (ValueId id : graph.outputs) outputs.push_back(at[id]->to_double());
  return outputs;
}

// Applies the pass: the outputs must keep their types and stay within 1e-5 of what they were, and applied again it must change nothing.
inline Graph after_pass(std::string_view text, Pass pass, const PassOptions& options = {}) {
  Graph graph = parse_graph(text);
  const auto types = [&] {
    std::vector<TensorType> types;
    for (const ValueId id : graph.outputs) types.push_back(graph.value(id).type());
    return types;
  };
  const std::vector<TensorType> wanted = types();
  const auto before = run_graph(graph);
  pass(graph, options);
  graph.verify("the pass");
  EXPECT_EQ(types(), wanted) << graph.to_text();
  const auto now = run_graph(graph);
  EXPECT_EQ(before.size(), now.size());
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    EXPECT_EQ(before[i].size(), now[i].size());
    for (size_t j = 0; j < std::min(before[i].size(), now[i].size()); ++j) EXPECT_NEAR(now[i][j], before[i][j], 1e-5) << graph.to_text();
  }
  EXPECT_FALSE(pass(graph, options)) << "not idempotent:\n" << graph.to_text();
  return graph;
}

}  // namespace ort_train::fixtures
