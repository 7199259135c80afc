// drop_dropout: outside training nothing is dropped.
//
//   before   y = Dropout(x, random) {ratio}
//   after    y = Reshape(x), a view of x under its own shape; the graph has no input `random`
//
// Needs: nothing. Leaves: no Dropout. Evaluation and prediction run it; training does not.

#include "exec/random.h"
#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {

bool drop_dropout(Graph& graph, const PassOptions&) {
  bool changed = false;
  for (NodeId id : graph.order()) {
    Node& node = graph.node(id);
    if (node.op->name != "Dropout") continue;
    node.op = &op_named("Reshape");
    node.inputs = {node.inputs[0]};
    node.attributes = {{"shape", graph.value(node.outputs[0]).shape}};
    changed = true;
  }
  std::erase_if(graph.inputs, [&](ValueId input) { return graph.value(input).name == kRandomInput; });
  return changed;
}

}  // namespace ort_train
