#include "graph/dependence.h"

namespace ort_train {

std::vector<ValueId> inputs_behind(const Graph& graph, ValueId value) {
  std::vector<ValueId> inputs;
  std::vector<bool> seen(graph.value_count());
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (at == kNone || seen[at]) continue;
    seen[at] = true;
    const Value& found = graph.value(at);
    if (found.kind == ValueKind::input) inputs.push_back(at);
    if (found.producer == kNone) continue;
    const std::vector<ValueId>& read = graph.node(found.producer).inputs;
    open.insert(open.end(), read.begin(), read.end());
  }
  return inputs;
}

}  // namespace ort_train
