// freeze_batch_norm: outside training a batch is normalised by the running statistics, which stay as they are.
//
//   before   y, mean, variance = LiveBatchNormalization(x, scale, bias)
//            m', v' = RunningStatistics(m, v, mean, variance)
//   after    y = BatchNormalization(x, scale, bias, m, v)
//
// Needs: nothing. Leaves: no node that changes running statistics. Evaluation and prediction run it; training does not.

#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {

bool freeze_batch_norm(Graph& graph, const PassOptions&) {
  bool changed = false;
  for (NodeId id : std::vector<NodeId>(graph.order())) {
    const Node update = graph.node(id);
    if (update.op->name != "RunningStatistics") continue;
    const ValueId mean = update.inputs[2], variance = update.inputs[3];
    Node& node = graph.node(graph.value(mean).producer);
    require(node.op->name == "LiveBatchNormalization", "running statistics of no layer");
    graph.remove_node(id);
    node.op = &op_named("BatchNormalization");
    node.inputs.insert(node.inputs.end(), {update.inputs[0], update.inputs[1]});
    node.outputs.resize(1);
    graph.value(mean).producer = graph.value(variance).producer = kNone;
    graph.replace_uses(mean, update.inputs[0]);
    graph.replace_uses(variance, update.inputs[1]);
    changed = true;
  }
  return changed;
}

}  // namespace ort_train
