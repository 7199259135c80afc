#include "graph/autodiff.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "graph/builder.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

// wanted[v]: v depends on a trainable parameter; useful[v]: the loss depends on v, through floating-point values alone (through an index or
// a condition goes no gradient). A gradient is needed where both hold.
void spread(const Graph& graph, std::vector<bool>& wanted) {
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNone && wanted[v]; });
    if (!any) continue;
    for (ValueId output : node.outputs) {
      if (output != kNone) wanted[output] = is_floating(graph.value(output).dtype);
    }
  }
}

std::vector<bool> depends_on_parameters(const Graph& graph) {
  std::vector<bool> wanted(graph.value_count());
  for (ValueId id : graph.parameters()) wanted[id] = graph.value(id).trainable;
  spread(graph, wanted);
  return wanted;
}

bool is_step(const Node& node) { return node.op->traits.is_step; }

// `around_steps`: not through step functions.
std::vector<bool> reaches(const Graph& graph, const std::vector<ValueId>& values, bool around_steps = false) {
  std::vector<bool> useful(graph.value_count());
  for (const ValueId id : values) useful[id] = true;
  for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
    const Node& node = graph.node(*at);
    if (around_steps && is_step(node)) continue;
    if (!std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && useful[v]; })) continue;
    for (ValueId input : node.inputs) {
      if (input != kNone) useful[input] = is_floating(graph.value(input).dtype);
    }
  }
  return useful;
}

bool on_the_way(const Node& node, const std::vector<bool>& wanted, const std::vector<bool>& useful) {
  return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && useful[v] && wanted[v]; }) &&
         std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNone && wanted[v]; });
}

// Whether x + (step(x) - x) is made of a step function, or x - (x - step(x)): a straight-through estimator, whose difference was detached
// in PyTorch. Files don't have that, and the gradient of what they say is zero.
bool is_straight_through(const Graph& graph, NodeId step) {
  constexpr size_t kFar = 64;
  std::vector<ValueId> of_step{graph.node(step).outputs[0]};  // and what is made of it, element by element
  const auto readers = [&](ValueId value, const auto& visit) {
    for (const NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      if (std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end()) visit(node);
    }
  };
  const auto is = [](const Node& node, std::string_view op) { return node.op->name == op; };
  bool found = false;
  for (size_t i = 0; i < of_step.size() && i < kFar && !found; ++i) {
    const ValueId value = of_step[i];
    readers(value, [&](const Node& node) {
      if (is(node, "Sub")) {
        const bool is_first = node.inputs[0] == value;
        const ValueId other = node.inputs[is_first ? 1 : 0];
        readers(node.outputs[0], [&](const Node& sum) {
          if (is_first && is(sum, "Add")) found |= sum.inputs[0] == other || sum.inputs[1] == other;
          if (!is_first && is(sum, "Sub")) found |= sum.inputs[0] == other;
        });
      }
      for (const std::string_view op :
           {"Mul", "Div", "Add", "Sub", "Neg", "Clip", "Min", "Max", "Where", "Cast", "Reshape", "Transpose", "Expand"}) {
        if (is(node, op) && std::find(of_step.begin(), of_step.end(), node.outputs[0]) == of_step.end()) of_step.push_back(node.outputs[0]);
      }
    });
  }
  return found;
}

// Addends that can be made as one become one, in the place of the first.
void join_addends(Builder& builder, std::vector<ValueId>& addends) {
  const Graph& graph = builder.graph();
  const auto is_like = [&](const Node& a, const Node& b) {
    return a.op == b.op && a.attributes == b.attributes &&
           std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(),
                      [&](ValueId x, ValueId y) { return x != kNone && y != kNone && graph.value(x).type() == graph.value(y).type(); });
  };
  for (size_t i = 0; i < addends.size(); ++i) {
    const NodeId first = graph.value(addends[i]).producer;
    if (first == kNone || !graph.node(first).op->traits.sum || graph.node(first).outputs.size() != 1) continue;
    std::vector<NodeId> nodes;
    std::vector<ValueId> others;
    for (size_t j = i; j < addends.size(); ++j) {
      const NodeId node = graph.value(addends[j]).producer;
      if (node != kNone && is_like(graph.node(first), graph.node(node)))
        nodes.push_back(node);
      else
        others.push_back(addends[j]);
    }
    if (nodes.size() == 1) continue;
    std::sort(nodes.begin(), nodes.end(), std::greater<>{});  // gradients come into being last use first
    const ValueId sum = graph.node(first).op->traits.sum(builder, nodes);
    if (sum == kNone) continue;
    addends.resize(i);
    addends.push_back(sum);
    addends.insert(addends.end(), others.begin(), others.end());
  }
}

// The addends of each value's gradient, last use first.
std::vector<std::vector<ValueId>> go_backward(Graph& graph, const std::vector<Seed>& seeds, const std::vector<bool>& wanted,
                                              const std::vector<bool>& useful, Stage stage) {
  const std::vector<NodeId> forward = graph.order();
  // Values that the backward pass adds need none.
  std::vector<std::vector<ValueId>> sums(graph.value_count());

  for (const auto& [value, given] : seeds) {
    ValueId gradient = given;
    if (gradient == kNone) {
      Builder builder(graph, stage);
      gradient = builder.named("loss").scalar_like(value, 1);
      if (element_count(graph.value(value).shape) != 1)
        gradient = builder.emit("Expand", {gradient}, {{"shape", graph.value(value).shape}});
    }
    sums[value].push_back(Builder(graph, stage).named("loss").reshape(gradient, graph.value(value).shape));
  }

  for (size_t position = forward.size(); position-- > 0;) {
    const NodeId id = forward[position];
    const Node node = graph.node(id);  // a copy: emitting moves the nodes
    if (!node.op->gradient || !on_the_way(node, wanted, useful)) continue;
    std::vector<ValueId> output_gradients;
    for (ValueId output : node.outputs) {
      Builder builder(graph, stage);
      builder.named(node.name, node.ordinal);
      if (output != kNone && wanted[output]) join_addends(builder, sums[output]);
      output_gradients.push_back(output == kNone || !wanted[output] ? kNone : add_up(builder, sums[output]));
    }
    if (std::all_of(output_gradients.begin(), output_gradients.end(), [](ValueId v) { return v == kNone; })) continue;
    std::vector<bool> wants;
    for (ValueId input : node.inputs) wants.push_back(input != kNone && wanted[input]);
    GradientBuilder builder(graph, id, std::move(output_gradients), wants, stage);
    node.op->gradient(node, builder);
    for (size_t i = node.inputs.size(); i-- > 0;) {
      const ValueId gradient = builder.input_gradients()[i];
      if (gradient != kNone && wants[i]) sums[node.inputs[i]].push_back(gradient);
    }
  }
  return sums;
}

}  // namespace

ValueId add_up(Builder& builder, const std::vector<ValueId>& addends) {
  if (addends.empty()) return kNone;
  ValueId total = addends[0];
  for (size_t i = 1; i < addends.size(); ++i) total = builder.emit("Add", {total, addends[i]});
  return total;
}

std::vector<Blocker> find_blockers(const Graph& graph, const std::vector<ValueId>& values) {
  const std::vector<bool> wanted = depends_on_parameters(graph), useful = reaches(graph, values);
  const std::vector<bool> around = reaches(graph, values, /*around_steps=*/true);
  std::vector<bool> stuck(graph.value_count());  // what depends on parameters whose ways all lead through step functions
  for (const ValueId id : graph.parameters()) stuck[id] = graph.value(id).trainable && useful[id] && !around[id];
  spread(graph, stuck);
  std::vector<Blocker> blockers;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->gradient || !on_the_way(node, wanted, useful)) continue;
    if (is_step(node) && !on_the_way(node, stuck, useful) && !is_straight_through(graph, id)) continue;
    blockers.push_back(
        {id, node.op->no_gradient.empty() ? "has no gradient" : std::string(node.op->no_gradient), std::string(node.op->hint)});
  }
  return blockers;
}

std::vector<NodeId> find_steps(const Graph& graph, const std::vector<ValueId>& values) {
  const std::vector<bool> wanted = depends_on_parameters(graph), useful = reaches(graph, values);
  std::vector<NodeId> steps;
  for (NodeId id : graph.order()) {
    if (is_step(graph.node(id)) && on_the_way(graph.node(id), wanted, useful)) steps.push_back(id);
  }
  return steps;
}

std::vector<ValueId> find_unreached(const Graph& graph, const std::vector<ValueId>& values) {
  Graph copy = graph;
  std::vector<Seed> seeds;
  for (const ValueId id : values) {
    if (is_floating(graph.value(id).dtype)) seeds.push_back({.value = id});
  }
  const auto sums = go_backward(copy, seeds, depends_on_parameters(graph), reaches(graph, values), Stage::backward);
  std::vector<ValueId> unreached = graph.parameters();
  std::erase_if(unreached, [&](ValueId id) { return !graph.value(id).trainable || !sums[id].empty(); });
  return unreached;
}

std::map<ValueId, std::vector<ValueId>> differentiate_uses(Graph& graph, const std::vector<Seed>& seeds) {
  std::vector<ValueId> losses;
  for (const Seed& seed : seeds) {
    const Value& loss = graph.value(seed.value);
    if (element_count(loss.shape) != 1 || !is_floating(loss.dtype))
      throw error(ErrorCode::unsupported, "the loss '{}' is {}, but must be one floating-point number", loss.name, to_string(loss.type()));
    losses.push_back(seed.value);
  }
  const std::vector<Blocker> blockers = find_blockers(graph, losses);
  if (!blockers.empty()) {
    std::string list;
    for (const Blocker& blocker : blockers) list += fmt::format("\n  {}: {}", describe(graph, blocker.node), blocker.reason);
    throw error(ErrorCode::unsupported, "{} node{} between the parameters and the loss can't be differentiated:{}", blockers.size(),
                blockers.size() == 1 ? "" : "s", list);
  }
  const std::vector<std::vector<ValueId>> sums =
      go_backward(graph, seeds, depends_on_parameters(graph), reaches(graph, losses), Stage::backward);
  std::map<ValueId, std::vector<ValueId>> gradients;
  for (ValueId id : graph.parameters()) {
    if (!graph.value(id).trainable || sums[id].empty()) continue;
    std::vector<ValueId>& uses = gradients[id];
    uses.assign(sums[id].rbegin(), sums[id].rend());
    Builder builder(graph, Stage::backward);
    join_addends(builder.named(graph.value(id).name), uses);
  }
  return gradients;
}

std::vector<ValueId> gradients_of(Graph& graph, ValueId y, const std::vector<ValueId>& xs, Stage stage) {
  std::vector<bool> wanted(graph.value_count());
  for (const ValueId x : xs) wanted[x] = true;
  spread(graph, wanted);
  const std::vector<bool> useful = reaches(graph, {y});
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.op->gradient && !is_step(node) && on_the_way(node, wanted, useful))
      throw error(ErrorCode::unsupported, "{} has no gradient: {}", describe(graph, id), node.op->no_gradient);
  }
  const std::vector<std::vector<ValueId>> sums = go_backward(graph, {{.value = y}}, wanted, useful, stage);
  std::vector<ValueId> gradients;
  for (const ValueId x : xs) {
    Builder builder(graph, stage);
    builder.named(graph.value(x).name);
    gradients.push_back(add_up(builder, {sums[x].rbegin(), sums[x].rend()}));
  }
  return gradients;
}

std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, ValueId seed) {
  std::map<ValueId, ValueId> gradients;
  for (const auto& [parameter, uses] : differentiate_uses(graph, {{.value = loss, .gradient = seed}})) {
    Builder builder(graph, Stage::backward);
    builder.named(graph.value(parameter).name);
    gradients[parameter] = add_up(builder, uses);
  }
  return gradients;
}

}  // namespace ort_train
