#include "passes/match.h"

#include <cmath>

#include "graph/op_def.h"

namespace ort_train {

View::View(const Graph& graph) : graph_(graph), readers_(graph.readers()), output_(graph.value_count()), trainable_(graph.value_count()) {
  for (ValueId id : graph.outputs) output_[id] = true;
  for (ValueId id : graph.parameters()) trainable_[id] = graph.value(id).trainable;
  for (NodeId id : graph.order()) {
    bool any = false;
    for (ValueId input : graph.node(id).inputs) any = any || (input != kNone && trainable_[input]);
    for (ValueId output : graph.node(id).outputs) {
      if (output != kNone) trainable_[output] = any && is_floating(graph.value(output).dtype);
    }
  }
}

const Node* View::made_by(ValueId value, std::string_view op) const {
  if (value == kNone) return nullptr;
  const NodeId producer = graph_.value(value).producer;
  if (producer == kNone) return nullptr;
  const Node& node = graph_.node(producer);
  return node.op && (op.empty() || node.op->name == op) ? &node : nullptr;
}

NodeId View::only_reader(ValueId value) const { return readers_[value].size() == 1 && !output_[value] ? readers_[value][0] : kNone; }

std::optional<double> View::number(ValueId value) const {
  const Tensor* tensor = graph_.constant(value);
  if (!tensor || tensor->size() != 1) return std::nullopt;
  return tensor->to_double()[0];
}

bool View::is_number(ValueId value, double wanted, double tolerance) const {
  const std::optional<double> found = number(value);
  return found && std::abs(*found - wanted) <= tolerance * std::abs(wanted);
}

ValueId other_input(const Node& node, ValueId one) {
  if (node.inputs.size() != 2) return kNone;
  if (node.inputs[0] == one) return node.inputs[1];
  return node.inputs[1] == one ? node.inputs[0] : kNone;
}

}  // namespace ort_train
