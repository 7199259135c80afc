// join_adapters: what several adapters read in common meets one wide matrix instead of a narrow one for each.
//
//   before   uq = MatMul(x, aq, trans_b=1) ; uk = MatMul(x, ak, trans_b=1) ; uv = MatMul(x, av, trans_b=1)        a [rank, in]
//   after    uq, uk, uv = Split(MatMul(x, Concat(aq, ak, av), trans_b=1), axis=-1)
//
// The backward pass follows: one product for the gradients of all of these matrices, and one for x's. The matrices stay parameters of their
// own, which is what optimizers, parameter groups, checkpoints and files know. Convolutions are joined by their channels.
//
// With dropout each adapter reads an x of its own, and nothing is joined.
//
// Needs: the nodes of adapters (adapter_nodes.cpp). Leaves: at most one product by these matrices for each x.

#include <algorithm>
#include <set>

#include "graph/op_def.h"
#include "passes/adapters.h"

namespace ort_train {
namespace {

bool reads_alike(const Graph& graph, const Node& a, const Node& b) {
  const auto kernel = [&](const Node& node) { return graph.value(node.inputs[1]).shape.from(1); };
  return a.op == b.op && a.inputs[0] == b.inputs[0] && a.attributes == b.attributes && kernel(a) == kernel(b);
}

bool join(Graph& graph, const std::vector<NodeId>& narrow) {
  if (narrow.size() < 2) return false;
  const Node first = graph.node(narrow.front());
  std::vector<ValueId> matrices;
  std::vector<int64_t> widths;
  for (const NodeId id : narrow) {
    matrices.push_back(graph.node(id).inputs[1]);
    widths.push_back(graph.value(matrices.back()).shape[0]);
  }
  const Shape& result = graph.value(first.outputs[0]).shape;
  const bool by_channels = first.op->name == "Conv";
  const auto axis = static_cast<int64_t>(by_channels ? 1 : result.size() - 1);
  Builder builder(graph);
  builder.before(narrow.front()).named(first.name, first.ordinal);
  const ValueId wide = builder.emit("Concat", matrices, {{"axis", int64_t{0}}});
  const ValueId joined = builder.emit(first.op->name, {first.inputs[0], wide}, first.attributes);
  const std::vector<ValueId> parts = builder.emit_many("Split", {joined}, {{"axis", axis}, {"split", widths}}, narrow.size());
  for (size_t i = 0; i < narrow.size(); ++i) {
    graph.replace_uses(graph.node(narrow[i]).outputs[0], parts[i]);
    graph.remove_node(narrow[i]);
  }
  return true;
}

}  // namespace

bool join_adapters(Graph& graph, const std::vector<Adapter>& adapters) {
  std::set<ValueId> matrices;
  for (const Adapter& adapter : adapters) {
    if (!adapter.a.empty()) matrices.insert(graph.find_value(adapter.a));
  }
  std::vector<std::vector<NodeId>> groups;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if ((node.op->name != "MatMul" && node.op->name != "Conv") || !matrices.contains(node.inputs[1])) continue;
    const auto like = std::find_if(groups.begin(), groups.end(),
                                   [&](const std::vector<NodeId>& group) { return reads_alike(graph, graph.node(group[0]), node); });
    like == groups.end() ? groups.push_back({id}) : like->push_back(id);
  }
  bool changed = false;
  for (const std::vector<NodeId>& group : groups) changed |= join(graph, group);
  return changed;
}

}  // namespace ort_train
