// early_updates: each update right after its gradient.
//
//   before   dw1 = MatMul(…) ; … ; dw0 = MatMul(…) ; w0' = AdamW(w0, dw0, 1, …) ; w1' = AdamW(w1, dw1, 1, …)
//   after    dw1 = MatMul(…) ; w1' = AdamW(w1, dw1, 1, …) ; … ; dw0 = MatMul(…) ; w0' = AdamW(w0, dw0, 1, …)
//
// No gradient is kept longer than that. Clipping by the norm of all gradients, and the check of a scaled loss's, come before every update:
// then nothing can move.
//
// Needs: recompute, because nodes that read a weight are not run again once it has changed. Leaves: each node of the update stage after
// what it reads and after the readers of what it changes; these nodes in the order in which they were.

#include <algorithm>

#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {

bool early_updates(Graph& graph, const PassOptions&) {
  const std::vector<NodeId> order = graph.order();
  const std::vector<ValueId> owner = memory_owners(graph);
  // The position in `order` after which a value is there; after which nobody reads what it is now.
  std::vector<int64_t> made(graph.value_count(), -1), read(graph.value_count(), -1);
  std::vector<std::pair<int64_t, NodeId>> placed;
  for (size_t i = 0; i < order.size(); ++i) {
    const Node& node = graph.node(order[i]);
    auto at = static_cast<int64_t>(i);
    if (node.stage == Stage::update) {
      at = -1;
      for (const ValueId input : node.inputs) at = input == kNone ? at : std::max(at, made[input]);
      for (const Alias& write : node.op->writes) {
        const auto input = static_cast<size_t>(write.input);
        const ValueId state = input < node.inputs.size() ? node.inputs[input] : kNone;
        if (state != kNone) at = std::max(at, read[owner[state]]);
      }
    }
    for (const ValueId input : node.inputs) {
      if (input != kNone) read[owner[input]] = std::max(read[owner[input]], at);
    }
    for (const ValueId output : node.outputs) {
      if (output != kNone) made[output] = at;
    }
    placed.emplace_back(at, order[i]);
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NodeId> result;
  for (const auto& [at, id] : placed) result.push_back(id);
  if (result == order) return false;
  graph.set_order(std::move(result));
  return true;
}

}  // namespace ort_train
