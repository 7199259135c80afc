// fuse_elementwise: elementwise nodes of one shape, of which one reads what another makes and nobody else does, become one node, which
// passes over memory once.
//
//   before   s = Add(a, b) ; y = Relu(s)
//   after    y = FusedElementwise(a, b) {ops = "Add Relu"}      graph/fused_elementwise.h
//
//   before   z, mean, variance = LiveBatchNormalization(x, scale, bias) ; y = Relu(z)
//   after    y, mean, variance = FusedLiveBatchNormalization(x, scale, bias) {ops = "Relu"}      OpTraits::fused
//
// Nodes are taken together where the device has kernels of them that can be fused, and no other node stands between them: what
// they read would have to be kept until that is done (small ones don't count). The node that they become needs no more large tensors at
// once than one of them did, so that the smallest budgets stay what they are: Add and ReluGrad, which read three together, remain two. The
// bits are those of the nodes.
//
// Needs: gradients made, weights divided: a FusedElementwise has no gradient, and nobody looks into it. Leaves: updates as they are.

#include <algorithm>
#include <map>
#include <set>

#include "exec/kernel.h"
#include "graph/fused_elementwise.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

class ElementwiseFusion {
 public:
  ElementwiseFusion(Graph& graph, const std::set<ValueId>& kept, const KernelTable& kernels)
      : graph_(graph), kept_(kept), kernels_(kernels), readers_(graph.readers()) {}

  bool make() {
    int64_t others = 0;  // large nodes so far that are no steps
    for (const NodeId id : graph_.order()) {
      places_[id] = static_cast<int64_t>(places_.size());
      for (const Alias& write : graph_.node(id).op->writes) {
        if (static_cast<size_t>(write.input) < graph_.node(id).inputs.size())
          changed_at_.emplace(graph_.node(id).inputs[static_cast<size_t>(write.input)], places_[id]);
      }
      if (can_be_step(id)) {
        groups_[id] = {.nodes = {id}, .large_before = others};
        for (const ValueId input : graph_.node(id).inputs) take_in(id, input);
      } else if (is_large(id)) {
        ++others;
      }
      large_before_[id] = others;
    }
    bool changed = false;
    for (const NodeId id : std::vector<NodeId>(graph_.order())) {
      const OpDef* const op = graph_.node(id).op;
      if (op && !op->traits.fused.empty() && kernels_.find(op_named(op->traits.fused))) changed |= join_after(id, op->traits.fused);
    }
    std::erase_if(groups_, [](const auto& group) { return group.second.nodes.size() < 2; });
    for (const auto& [last, group] : groups_) {
      const std::vector<ValueId> inputs = inputs_of(group.nodes);
      Node& node = graph_.node(last);
      Attributes attributes;
      set_fused_steps(attributes, steps_of(group.nodes, inputs));
      node.op = &op_named("FusedElementwise");
      node.inputs = inputs;
      node.attributes = std::move(attributes);
    }
    changed |= !groups_.empty();
    if (changed) graph_.remove_dead_nodes();
    return changed;
  }

 private:
  static constexpr int64_t kSmall = 64 << 10;  // bytes

  struct Group {
    std::vector<NodeId> nodes;  // in the order of the graph
    int64_t large_before = 0;   // how many large nodes that are no steps stand before it
  };

  bool can_be_step(NodeId id) const {
    const Node& node = graph_.node(id);
    const Kernel* const kernel = kernels_.find(*node.op);
    return kernel && kernel->elements && node.stage != Stage::update && node.outputs.size() == 1 &&
           node.inputs.size() <= kMostStepOperands && std::find(node.inputs.begin(), node.inputs.end(), kNone) == node.inputs.end();
  }

  // The group that makes `input` becomes a part of that which ends with the node, if nobody else reads what it makes.
  void take_in(NodeId last, ValueId input) {
    const Value& made = graph_.value(input);
    const auto before = groups_.find(made.producer);
    if (made.producer == kNone || before == groups_.end() || made.producer == last) return;
    const Node& node = graph_.node(last);
    const bool is_inside = is_read_by({last}, input) && made.shape == graph_.value(node.outputs[0]).shape;
    Group& group = groups_.at(last);
    if (!is_inside || before->second.large_before != group.large_before || graph_.node(made.producer).stage != node.stage) return;
    std::vector<NodeId> all = before->second.nodes;
    all.insert(all.end(), group.nodes.begin(), group.nodes.end());
    std::sort(all.begin(), all.end(), [&](NodeId a, NodeId b) { return place_of(a) < place_of(b); });
    if (all.size() > kMostFusedSteps || inputs_of(all).size() > kMostFusedInputs || !fits(all) || is_changed(all, all.front(), last))
      return;
    group.nodes = std::move(all);
    groups_.erase(before);
  }

  // Whether nodes need no more large tensors at once as one than one of them does.
  bool fits(const std::vector<NodeId>& nodes) const {
    int64_t most = 0;
    for (const NodeId id : nodes) most = std::max(most, large_inputs({id}, kNone));
    return large_inputs(nodes, kNone) <= most;
  }
  // How many of them nodes read, with `but` left out.
  int64_t large_inputs(const std::vector<NodeId>& nodes, ValueId but) const {
    const std::vector<ValueId> inputs = inputs_of(nodes);
    return std::count_if(inputs.begin(), inputs.end(),
                         [&](ValueId input) { return input != but && graph_.value(input).type().bytes() > kSmall; });
  }

  // What nodes read that none of them makes, each once.
  std::vector<ValueId> inputs_of(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> inputs;
    for (const NodeId id : nodes) {
      for (const ValueId input : graph_.node(id).inputs) {
        const bool is_made = std::find(nodes.begin(), nodes.end(), graph_.value(input).producer) != nodes.end();
        if (!is_made && std::find(inputs.begin(), inputs.end(), input) == inputs.end()) inputs.push_back(input);
      }
    }
    return inputs;
  }

  std::vector<FusedStep> steps_of(const std::vector<NodeId>& nodes, const std::vector<ValueId>& inputs) const {
    std::vector<FusedStep> steps;
    for (const NodeId id : nodes) {
      const Node& node = graph_.node(id);
      FusedStep step{.op = node.op, .attributes = node.attributes};
      for (const ValueId input : node.inputs) {
        const auto made = std::find(nodes.begin(), nodes.end(), graph_.value(input).producer);
        step.operands.push_back(made != nodes.end() ? nodes.begin() - made - 1
                                                    : std::find(inputs.begin(), inputs.end(), input) - inputs.begin());
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  bool is_large(NodeId id) const {
    const Node& node = graph_.node(id);
    if (viewed(node) != kNone) return false;
    int64_t bytes = 0;
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (const ValueId value : *values) bytes += value == kNone ? 0 : graph_.value(value).type().bytes();
    }
    return bytes > kSmall;
  }

  // Whether nodes read what the others make of `value`, and nobody else reads it.
  bool is_read_by(const std::vector<NodeId>& nodes, ValueId value) const {
    const std::vector<NodeId>& readers = readers_[value];
    return !kept_.contains(value) && !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return std::find(nodes.begin(), nodes.end(), reader) != nodes.end();
    });
  }

  // Gives a node the steps of others, whose input 0 is `first`.
  void give_steps(Node& node, std::string_view op, const std::vector<NodeId>& nodes, ValueId first) {
    std::vector<ValueId> inputs = inputs_of(nodes);
    std::rotate(inputs.begin(), std::find(inputs.begin(), inputs.end(), first), std::find(inputs.begin(), inputs.end(), first) + 1);
    set_fused_steps(node.attributes, steps_of(nodes, inputs));
    node.attributes.set(kOwnInputs, static_cast<int64_t>(node.inputs.size()));
    node.inputs.insert(node.inputs.end(), inputs.begin() + 1, inputs.end());
    node.op = &op_named(op);
  }

  // The group that goes on from output 0 becomes a part of the node.
  bool join_after(NodeId id, std::string_view op) {
    const ValueId made = graph_.node(id).outputs[0];
    const auto found =
        std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return is_read_by(group.second.nodes, made); });
    if (found == groups_.end()) return false;
    const auto& [last, group] = *found;
    const ValueId result = graph_.node(last).outputs[0];
    const std::vector<ValueId> inputs = inputs_of(group.nodes);
    const bool is_near = large_before_.at(id) == group.large_before && graph_.node(id).stage == graph_.node(last).stage;
    const bool are_there = std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {  // where the node stands
      const NodeId by = graph_.value(input).producer;
      return input == made || by == kNone || place_of(by) < place_of(id);
    });
    if (!is_near || !are_there || large_inputs(group.nodes, made) > 0 || is_changed(group.nodes, id, last) ||
        graph_.value(result).type() != graph_.value(made).type())
      return false;
    give_steps(graph_.node(id), op, group.nodes, made);
    graph_.remove_node(last);
    graph_.node(id).outputs[0] = result;
    graph_.value(result).producer = id;
    graph_.value(made).producer = kNone;
    groups_.erase(found);
    return true;
  }

  // Whether a node between two others changes what these nodes read (op_def.h, `writes`).
  bool is_changed(const std::vector<NodeId>& nodes, NodeId first, NodeId last) const {
    const std::vector<ValueId> inputs = inputs_of(nodes);
    return std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
      while (graph_.value(input).producer != kNone && viewed(graph_.node(graph_.value(input).producer)) != kNone)
        input = viewed(graph_.node(graph_.value(input).producer));
      const auto [begin, end] = changed_at_.equal_range(input);
      return std::any_of(begin, end, [&](const auto& change) { return change.second > place_of(first) && change.second < place_of(last); });
    });
  }

  int64_t place_of(NodeId id) const { return places_.at(id); }

  Graph& graph_;
  const std::set<ValueId>& kept_;
  const KernelTable& kernels_;
  std::vector<std::vector<NodeId>> readers_;
  std::map<NodeId, Group> groups_;          // by the last node
  std::map<NodeId, int64_t> large_before_;  // how many large nodes stand before a node, with itself
  std::map<NodeId, int64_t> places_;        // in the order
  std::multimap<ValueId, int64_t> changed_at_;
};

}  // namespace

bool fuse_elementwise(EntryGraph& job, const PassOptions& options) {
  std::set<ValueId> kept(job.graph.outputs.begin(), job.graph.outputs.end());
  kept.insert(job.outputs.begin(), job.outputs.end());
  kept.insert({job.grad_norm, job.stored_norm});
  for (const JobLoss& loss : job.losses) kept.insert({loss.sum, loss.count});
  for (const auto& [parameter, gradient] : job.gradients) kept.insert(gradient);
  for (const auto& [gradient, squares] : job.squares) kept.insert({gradient, squares});
  return ElementwiseFusion(job.graph, kept, options.kernels ? *options.kernels : cpu_kernels()).make();
}

}  // namespace ort_train
