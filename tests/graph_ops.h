// What nodes a graph has, by their ops.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op_def.h"

namespace ort_train::fixtures {

// In order.
inline std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const NodeId id : graph.order()) names.emplace_back(graph.node(id).op->name);
  return names;
}

inline std::vector<Node> nodes_named(const Graph& graph, std::string_view op) {
  std::vector<Node> nodes;
  for (const NodeId id : graph.order()) {
    if (graph.node(id).op->name == op) nodes.push_back(graph.node(id));
  }
  return nodes;
}

inline size_t count_ops(const Graph& graph, std::string_view op) { return nodes_named(graph, op).size(); }

}  // namespace ort_train::fixtures
