#include "graph/op_traits.h"

#include "graph/types.h"

namespace ort_train {
namespace {

size_t rank_of(const Graph& graph, ValueId value) { return graph.value(value).shape.size(); }

// The attribute `axis` of a node, counted from 0, in the shape of its first input.
size_t own_axis(const Graph& graph, const Node& node) {
  const auto rank = static_cast<int64_t>(rank_of(graph, node.inputs[0]));
  return static_cast<size_t>(normalize_axis(node.attributes.get("axis", 0), rank, "axis"));
}

}  // namespace

AxisPath along_elements(const Graph& graph, const Node& node, size_t input, size_t axis) {
  return {.use = AxisPath::kept, .axis = axis + rank_of(graph, node.outputs[0]) - rank_of(graph, node.inputs[input])};
}

AxisPath along_other_axes(const Graph& graph, const Node& node, size_t, size_t axis) {
  if (own_axis(graph, node) == axis) return {};
  return {.use = AxisPath::kept, .axis = axis};
}

AxisPath along_axes_before(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const auto rank = static_cast<int64_t>(rank_of(graph, node.inputs[0]));
  if (input != 0 || static_cast<int64_t>(axis) >= normalize_axis(node.attributes.get("axis", -1), rank, "axis")) return {};
  return {.use = AxisPath::kept, .axis = axis};
}

AxisPath along_batch(const Graph&, const Node&, size_t input, size_t axis) {
  if (input != 0 || axis != 0) return {};
  return {.use = AxisPath::kept, .axis = 0};
}

}  // namespace ort_train
