// leave_training: evaluation and prediction are without what an op does in training alone.
//
//   before   y = Dropout(x, random) {ratio}
//            z, mean, variance = LiveBatchNormalization(y, scale, bias) ; m', v' = RunningStatistics(m, v, mean, variance)
//   after    y = Reshape(x), a view of x under its own shape; the graph has no input `random`, unless other nodes read it
//            z = BatchNormalization(y, scale, bias, m, v)
//
// Needs: nothing. Leaves: no node whose op has the trait outside_training: none that drops elements or changes running statistics. What the
// model itself draws, it draws here, too.

#include "exec/random.h"
#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {

bool leave_training(Graph& graph, const PassOptions&) {
  bool changed = false;
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const OpDef* const op = graph.node(id).op;
    if (!op || !op->traits.outside_training) continue;  // removed on the way, or the same
    op->traits.outside_training(graph, id);
    changed = true;
  }
  const auto readers = graph.readers();
  std::erase_if(graph.inputs, [&](ValueId input) { return graph.value(input).name == kRandomInput && readers[input].empty(); });
  return changed;
}

}  // namespace ort_train
