// Graphs under mixed precision.

#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/onnx/writer.h"
#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train::fixtures {

inline Graph mixed(Graph graph, DType low = DType::bfloat16, std::vector<AutocastRule> rules = {}) {
  EXPECT_TRUE(mixed_precision(graph, {.precision = low, .autocast = std::move(rules)}));
  graph.verify("mixed_precision");
  return graph;
}
inline Graph mixed(std::string_view text, DType low = DType::bfloat16, std::vector<AutocastRule> rules = {}) {
  return mixed(parse_graph(text), low, std::move(rules));
}

// "MatMul bfloat16", in order.
inline std::vector<std::string> typed_ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    ops.push_back(std::string(node.op->name) + " " + std::string(to_string(graph.value(node.outputs[0]).dtype)));
  }
  return ops;
}

}  // namespace ort_train::fixtures
