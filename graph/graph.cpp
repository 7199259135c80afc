#include "graph/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "graph/op_def.h"

namespace ort_train {

std::string_view to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::input:
      return "input";
    case ValueKind::parameter:
      return "parameter";
    case ValueKind::activation:
      return "activation";
    case ValueKind::gradient:
      return "gradient";
    case ValueKind::optimizer_state:
      return "optimizer_state";
    case ValueKind::accumulator:
      return "accumulator";
    case ValueKind::constant:
      return "constant";
  }
  return "?";
}

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::forward:
      return "forward";
    case Stage::backward:
      return "backward";
    case Stage::update:
      return "update";
  }
  return "?";
}

ValueId Graph::add_value(Value value) {
  check_type(value.type());
  const auto id = static_cast<ValueId>(values_.size());
  if (value.name.empty()) value.name = "value";
  std::string name = value.name;
  for (uint32_t suffix = id; !names_.emplace(name, id).second; ++suffix) name = fmt::format("{}.{}", value.name, suffix);
  value.name = std::move(name);
  values_.push_back(std::move(value));
  return id;
}

ValueId Graph::add_constant(Tensor tensor, std::string name) {
  Value value{.name = std::move(name), .dtype = tensor.dtype, .shape = tensor.shape, .kind = ValueKind::constant};
  value.constant = std::make_shared<const Tensor>(std::move(tensor));
  return add_value(std::move(value));
}

ValueId Graph::find_value(std::string_view name) const {
  const auto at = names_.find(std::string(name));
  return at == names_.end() ? kNone : at->second;
}

void Graph::rename(ValueId id, std::string name) {
  names_.erase(values_[id].name);
  std::string unique = name;
  for (uint32_t suffix = id; !names_.emplace(unique, id).second; ++suffix) unique = fmt::format("{}.{}", name, suffix);
  values_[id].name = std::move(unique);
}

ValueId Graph::find_output(std::string_view name) const {
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](ValueId id) { return output_name(id) == name; });
  return found == outputs.end() ? kNone : *found;
}

void Graph::name_output(ValueId id, const std::string& name) {
  if (output_name(id) == name) return;
  const ValueId other = find_value(name);
  const ValueKind kind = other == kNone ? ValueKind::activation : values_[other].kind;
  if (kind != ValueKind::activation && kind != ValueKind::gradient && kind != ValueKind::constant) {
    values_[id].output_name = name;
    return;
  }
  if (other != kNone) rename(other, name + ".inner");
  rename(id, name);
  values_[id].output_name.clear();
}

NodeId Graph::add_node(Node node, NodeId before) {
  const auto id = static_cast<NodeId>(nodes_.size());
  for (ValueId output : node.outputs) {
    if (output != kNone) values_[output].producer = id;
  }
  nodes_.push_back(std::move(node));
  if (before == kNone) {
    order_.push_back(id);
  } else {
    order_.insert(std::find(order_.begin(), order_.end(), before), id);
  }
  return id;
}

void Graph::set_order(std::vector<NodeId> order) {
  require(order.size() == order_.size(), "a new order has as many nodes as the old one");
  order_ = std::move(order);
}

void Graph::remove_node(NodeId id) {
  for (ValueId output : nodes_[id].outputs) {
    if (output == kNone || values_[output].producer != id) continue;
    values_[output].producer = kNone;
    if (!nodes_[id].op->writes.empty()) values_[output].kind = ValueKind::activation;  // of nobody: no state of its own
  }
  nodes_[id].op = nullptr;
  std::erase(order_, id);
}

bool Graph::remove_dead_nodes() {
  std::vector<bool> live(values_.size());
  for (ValueId output : outputs) live[output] = true;
  std::vector<NodeId> kept;
  for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
    Node& node = nodes_[*at];
    const bool wanted =
        !node.op->writes.empty() || std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && live[v]; });
    if (wanted) {
      for (ValueId input : node.inputs) {
        if (input != kNone) live[input] = true;
      }
      kept.push_back(*at);
    } else {
      for (ValueId output : node.outputs) {
        if (output != kNone) values_[output].producer = kNone;
      }
      node.op = nullptr;
    }
  }
  const bool changed = kept.size() != order_.size();
  std::reverse(kept.begin(), kept.end());
  order_ = std::move(kept);
  return changed;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (NodeId id : order_) std::replace(nodes_[id].inputs.begin(), nodes_[id].inputs.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
}

std::vector<std::vector<NodeId>> Graph::readers() const {
  std::vector<std::vector<NodeId>> readers(values_.size());
  for (NodeId id : order_) {
    for (ValueId input : nodes_[id].inputs) {
      if (input != kNone) readers[input].push_back(id);
    }
  }
  return readers;
}

std::vector<ValueId> Graph::values_of(ValueKind kind) const {
  std::vector<ValueId> result;
  for (ValueId id = 0; id < values_.size(); ++id) {
    const bool made = values_[id].producer != kNone;  // the state that an update leaves is not another piece of state
    if (values_[id].kind == kind && (!made || kind == ValueKind::activation || kind == ValueKind::gradient)) result.push_back(id);
  }
  return result;
}

std::vector<ValueId> Graph::parameters() const { return values_of(ValueKind::parameter); }

void Graph::verify(std::string_view after) const {
  const auto fail = [&](const std::string& what) { throw internal_error("after {}: {}", after, what); };
  std::vector<bool> known(values_.size());
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Value& value = values_[id];
    const bool stored = value.kind != ValueKind::activation && value.kind != ValueKind::gradient;
    if ((value.kind == ValueKind::constant) != (value.constant != nullptr))
      fail(fmt::format("'{}' is a constant without a value", value.name));
    if (value.constant && value.constant->type() != value.type())
      fail(fmt::format("the constant '{}' has another type than its value", value.name));
    known[id] = stored && value.producer == kNone;
  }
  for (ValueId input : inputs) {
    if (values_[input].kind != ValueKind::input)
      fail(fmt::format("'{}' is fed but is of kind {}", values_[input].name, to_string(values_[input].kind)));
  }
  for (NodeId id : order_) {
    const Node& node = nodes_[id];
    if (!node.op) fail("a removed node is still in the order");
    for (ValueId input : node.inputs) {
      if (input != kNone && !known[input])
        fail(fmt::format("{} reads '{}' before it is written", describe(*this, id), values_[input].name));
    }
    std::vector<TensorType> types = infer_types(*this, *node.op, node.inputs, node.attributes, node.outputs.size(), node.name);
    if (types.size() != node.outputs.size())
      fail(fmt::format("{} has {} outputs, its op gives {}", describe(*this, id), node.outputs.size(), types.size()));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      if (output == kNone) continue;
      if (known[output]) fail(fmt::format("'{}' is written twice", values_[output].name));
      if (values_[output].producer != id) fail(fmt::format("'{}' has another producer than {}", values_[output].name, describe(*this, id)));
      if (values_[output].type() != types[i]) {
        fail(fmt::format("'{}' is {}, but {} gives {}", values_[output].name, to_string(values_[output].type()), describe(*this, id),
                         to_string(types[i])));
      }
      known[output] = true;
    }
    for (const Alias& write : node.op->writes) {
      if (static_cast<size_t>(write.output) >= node.outputs.size()) continue;  // an optional piece of state
      const ValueId state = node.inputs[write.input];
      if (state == kNone) continue;
      const ValueKind kind = values_[state].kind;
      if (kind != ValueKind::parameter && kind != ValueKind::optimizer_state && kind != ValueKind::accumulator) {
        fail(fmt::format("{} writes '{}', which is neither a parameter nor state", describe(*this, id), values_[state].name));
      }
    }
  }
  for (ValueId output : outputs) {
    if (!known[output]) fail(fmt::format("the output '{}' is never written", values_[output].name));
  }
}

std::string Graph::to_text() const {
  const auto show = [&](const std::vector<ValueId>& ids) {
    std::vector<std::string> names;
    for (ValueId id : ids) names.push_back(id == kNone ? "-" : values_[id].name);
    return fmt::format("{}", fmt::join(names, ", "));
  };
  std::string text = fmt::format("graph {}\n", name);
  std::vector<bool> used(values_.size());
  for (NodeId id : order_) {
    for (ValueId v : nodes_[id].inputs) {
      if (v != kNone) used[v] = true;
    }
  }
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Value& value = values_[id];
    if (value.producer != kNone || !(used[id] || value.kind == ValueKind::input || value.kind == ValueKind::parameter)) continue;
    text += fmt::format("  {} {} {}{}\n", to_string(value.kind), value.name, to_string(value.type()), value.trainable ? " trainable" : "");
  }
  for (NodeId id : order_) {
    const Node& node = nodes_[id];
    std::string attributes;
    for (const auto& [key, value] : node.attributes.entries()) {
      const auto shown = std::visit(
          [](const auto& v) -> std::string {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, Tensor>)
              return to_string(v.type());
            else if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<float>>)
              return fmt::format("[{}]", fmt::join(v, ", "));
            else
              return fmt::format("{}", v);
          },
          value);
      attributes += fmt::format(" {}={}", key, shown);
    }
    text += fmt::format("  {} {} = {}({}){}", to_string(node.stage), show(node.outputs), node.op->name, show(node.inputs), attributes);
    for (ValueId output : node.outputs) {
      if (output != kNone) text += " : " + to_string(values_[output].type());
    }
    text += node.name.empty() ? "\n" : fmt::format("  '{}'\n", node.name);
  }
  return text + fmt::format("  outputs {}\n", show(outputs));
}

std::string describe(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string text = fmt::format("{} '{}'", node.op ? node.op->name : "removed", node.name);
  if (node.stage != Stage::forward) text += fmt::format(" {}", to_string(node.stage));
  return text;
}

}  // namespace ort_train
