#include "graph/dependence.h"

#include <algorithm>

namespace ort_train {

std::vector<ValueId> values_behind(const Graph& graph, ValueId value) {
  std::vector<ValueId> behind, open{value};
  std::vector<bool> seen(graph.value_count());
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (at == kNone || seen[at]) continue;
    seen[at] = true;
    behind.push_back(at);
    if (graph.value(at).producer == kNone) continue;
    const std::vector<ValueId>& read = graph.node(graph.value(at).producer).inputs;
    open.insert(open.end(), read.begin(), read.end());
  }
  return behind;
}

std::vector<ValueId> inputs_behind(const Graph& graph, ValueId value) {
  std::vector<ValueId> inputs = values_behind(graph, value);
  std::erase_if(inputs, [&](ValueId id) { return graph.value(id).kind != ValueKind::input; });
  return inputs;
}

}  // namespace ort_train
