// recompute:
//
//   before   y = Gelu(x) ; z = MatMul(y, w)                                          forward
//            dw = MatMul(y, dz, trans_a) …                                           backward
//   after    y = Gelu(x) ; z = MatMul(y, w)                                          y's memory is free from here on
//            y.again = Gelu(x) ; dw = MatMul(y.again, dz, trans_a) …                 backward
//
// Needs: the updates in place, because nothing may merge the copies with their originals later. Leaves: each node again at most once, right
// before the first backward node that needs it. Nodes that change state, and readers of state that has changed since, are not run again.
// Random numbers have addresses (the node's ordinal), so that a copy draws what its original drew.

#include "passes/recompute.h"

#include <algorithm>
#include <cmath>

#include "graph/op_def.h"
#include "passes/saved_tensors.h"

namespace ort_train {
namespace {

// About the square root of `boundaries` of them.
size_t root_step(size_t boundaries) {
  return std::max<size_t>(1, static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(boundaries)))));
}

SavedTensors::Split split_of(const SavedTensors& saved, const RecomputeChoice& choice) {
  if (choice.groups != kAllGroups) return saved.of_groups(choice.groups);
  return saved.of_boundaries(choice.every == 0 ? root_step(saved.boundaries()) : choice.every);
}

class Cloner {
 public:
  Cloner(Graph& graph, const SavedTensors& saved, const SavedTensors::Split& split)
      : graph_(graph), saved_(saved), split_(split), again_(graph.value_count(), kNone), cloned_(graph.node_count(), false) {}

  void run() {
    const std::vector<NodeId> order = graph_.order();
    std::vector<int32_t> position(graph_.node_count(), -1);
    for (size_t at = 0; at < order.size(); ++at) position[order[at]] = static_cast<int32_t>(at);
    for (NodeId id : order) {
      if (graph_.node(id).stage != Stage::forward) {
        std::vector<NodeId> nodes = needed(id);
        std::sort(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) { return position[a] < position[b]; });
        for (NodeId node : nodes) clone(node);
        for (ValueId& input : graph_.node(id).inputs) input = read(input);
      }
      order_.push_back(id);
    }
    graph_.set_order(std::move(order_));
    drop_unread(order);
  }

  const std::vector<NodeId>& clones() const { return clones_; }

 private:
  // Made by the forward pass (a view made by the backward pass reads what it views as anyone does), and not kept for the backward pass.
  bool is_gone(ValueId value) const {
    if (value == kNone || value >= again_.size() || !saved_.is_forward(saved_.owner(value)) || split_.there[saved_.owner(value)])
      return false;
    return graph_.node(graph_.value(value).producer).stage == Stage::forward;
  }
  ValueId read(ValueId value) const { return is_gone(value) ? again_[value] : value; }

  // What has to run again before a node, and hasn't yet.
  std::vector<NodeId> needed(NodeId reader) {
    std::vector<NodeId> nodes, open{reader};
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      for (ValueId input : graph_.node(id).inputs) {
        if (!is_gone(input)) continue;
        const NodeId producer = graph_.value(input).producer;
        if (cloned_[producer]) continue;
        cloned_[producer] = true;
        nodes.push_back(producer);
        open.push_back(producer);
      }
    }
    return nodes;
  }

  void clone(NodeId id) {
    Node node = graph_.node(id);
    node.stage = Stage::backward;
    node.name += " again";
    for (ValueId& input : node.inputs) input = read(input);
    for (ValueId& output : node.outputs) {
      if (output == kNone) continue;
      Value value = graph_.value(output);
      value.name += ".again";
      value.producer = kNone;
      const ValueId made = graph_.add_value(std::move(value));
      again_[output] = made;
      output = made;
    }
    clones_.push_back(graph_.add_node(std::move(node)));
    order_.push_back(clones_.back());
  }

  // Forward nodes of which only the copy is read now.
  void drop_unread(const std::vector<NodeId>& order) {
    std::vector<bool> read(graph_.value_count(), false);
    for (ValueId output : graph_.outputs) read[output] = true;
    for (NodeId id : graph_.order()) {
      for (ValueId input : graph_.node(id).inputs) {
        if (input != kNone) read[input] = true;
      }
    }
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      const Node& node = graph_.node(*at);
      if (!cloned_[*at] || std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && read[v]; }))
        continue;
      graph_.remove_node(*at);
    }
  }

  Graph& graph_;
  const SavedTensors& saved_;
  const SavedTensors::Split& split_;
  std::vector<ValueId> again_;  // by ValueId: its copy
  std::vector<bool> cloned_;    // by NodeId
  std::vector<NodeId> order_, clones_;
};

}  // namespace

RecomputeChoice recompute_mode(const std::string& mode) {
  if (mode == "none") return {};
  if (mode == "all") return {.groups = kAllGroups, .every = 1};
  if (mode == "sqrt") return {.groups = kAllGroups, .every = 0};
  throw error(ErrorCode::usage, "`recompute` {}: is not known: auto, none, sqrt or all", mode);
}

bool recompute(Graph& graph, const RecomputeChoice& choice, Recomputed* result) {
  const SavedTensors saved(graph);
  const SavedTensors::Split split = split_of(saved, choice);
  Recomputed counted;
  for (const SavedTensor& tensor : saved.tensors()) {
    (split.recomputed[tensor.value] ? counted.again : counted.kept) += 1;
    (split.recomputed[tensor.value] ? counted.again_bytes : counted.kept_bytes) += tensor.bytes;
  }
  if (counted.again > 0) {
    Cloner cloner(graph, saved, split);
    cloner.run();
    counted.nodes = cloner.clones();
  }
  const bool any = counted.again > 0;
  if (result != nullptr) *result = std::move(counted);
  return any;
}

std::vector<RecomputeChoice> recompute_ladder(const Graph& graph) {
  const SavedTensors saved(graph);
  std::vector<RecomputeChoice> rungs;
  for (size_t groups = 0; groups < saved.groups().size(); ++groups) rungs.push_back({.groups = groups, .every = 1});
  for (size_t every = 1; every <= root_step(saved.boundaries()); ++every) rungs.push_back({.groups = kAllGroups, .every = every});
  return rungs;
}

std::vector<size_t> sampled_rungs(const std::vector<RecomputeChoice>& ladder, size_t parts) {
  const auto all = std::find(ladder.begin(), ladder.end(), RecomputeChoice{.groups = kAllGroups, .every = 1});
  const auto end = static_cast<size_t>(all - ladder.begin());
  std::vector<size_t> rungs;
  for (size_t part = 0; part <= parts; ++part) {
    if (rungs.empty() || rungs.back() != end * part / parts) rungs.push_back(end * part / parts);
  }
  return rungs;
}

}  // namespace ort_train
