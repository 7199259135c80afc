#include "passes/saved_tensors.h"

#include <algorithm>
#include <map>

#include "graph/op_def.h"
#include "passes/cost.h"

namespace ort_train {
namespace {

constexpr size_t kCompared = 64;  // groups

}  // namespace

SavedTensors::SavedTensors(const Graph& graph) : graph_(graph), owner_(memory_owners(graph)) {
  position_.assign(graph.node_count(), -1);
  seconds_.assign(graph.node_count(), 0);
  met_.assign(graph.node_count(), 0);
  const auto& order = graph.order();
  for (size_t at = 0; at < order.size(); ++at) {
    const Node& node = graph.node(order[at]);
    position_[order[at]] = static_cast<int32_t>(at);
    if (viewed(node) == kNone) seconds_[order[at]] = nominal_seconds(graph, node);
  }
  find_tensors();
  find_fixed_nodes();
  find_movable();
  cut();
  find_groups();
}

bool SavedTensors::is_forward(ValueId value) const {
  const NodeId producer = graph_.value(value).producer;
  return owner_[value] == value && producer != kNone && graph_.node(producer).stage == Stage::forward;
}

void SavedTensors::find_tensors() {
  last_forward_.assign(graph_.value_count(), -1);
  std::vector<int32_t> first_backward(graph_.value_count(), -1);
  const auto& order = graph_.order();
  for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at) {
    const Node& node = graph_.node(order[static_cast<size_t>(at)]);
    for (ValueId input : node.inputs) {
      if (input == kNone || !is_forward(owner_[input])) continue;
      if (node.stage == Stage::forward)
        last_forward_[owner_[input]] = at;
      else if (first_backward[owner_[input]] < 0)
        first_backward[owner_[input]] = at;
    }
  }
  for (NodeId id : order) {
    for (ValueId value : graph_.node(id).outputs) {
      if (value == kNone || first_backward[value] < 0) continue;
      tensors_.push_back({.value = value,
                          .bytes = graph_.value(value).bytes(),
                          .made = position_[id],
                          .last_forward = std::max(position_[id], last_forward_[value]),
                          .first_backward = first_backward[value]});
    }
  }
}

// Nodes that change state, and those that read state which is another before the backward pass is over.
void SavedTensors::find_fixed_nodes() {
  fixed_.assign(graph_.node_count(), false);
  const auto& order = graph_.order();
  const auto last = std::find_if(order.rbegin(), order.rend(), [&](NodeId id) { return graph_.node(id).stage != Stage::update; });
  std::vector<bool> changed(graph_.value_count(), false);
  for (auto at = order.begin(); at != last.base(); ++at) {
    const Node& node = graph_.node(*at);
    for (const Alias& write : node.op->writes) {
      fixed_[*at] = true;
      if (static_cast<size_t>(write.output) >= node.outputs.size()) continue;  // an optional piece of state
      if (node.inputs[write.input] != kNone) changed[owner_[node.inputs[write.input]]] = true;
    }
  }
  for (NodeId id : order) {
    for (ValueId input : graph_.node(id).inputs) fixed_[id] = fixed_[id] || (input != kNone && changed[owner_[input]]);
  }
}

void SavedTensors::find_movable() {
  std::vector<double> until{0};  // nominal seconds before each position
  for (NodeId id : graph_.order()) until.push_back(until.back() + seconds_[id]);
  const std::vector<bool> there = all_saved();
  std::vector<NodeId> nodes;
  for (SavedTensor& tensor : tensors_) {
    nodes.clear();
    if (!closure(tensor.value, there, nodes)) continue;
    double again = 0;
    for (NodeId id : nodes) again += seconds_[id];
    // The logits are wanted again as soon as the loss is known: to drop them frees nothing.
    tensor.movable = until[static_cast<size_t>(tensor.first_backward)] - until[static_cast<size_t>(tensor.last_forward) + 1] > again;
  }
}

std::vector<bool> SavedTensors::all_saved() const {
  std::vector<bool> there(graph_.value_count(), false);
  for (const SavedTensor& tensor : tensors_) there[tensor.value] = true;
  return there;
}

bool SavedTensors::closure(ValueId value, const std::vector<bool>& there, std::vector<NodeId>& nodes) const {
  ++round_;
  for (NodeId id : nodes) met_[id] = round_;
  std::vector<NodeId> open{graph_.value(value).producer};
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (met_[id] == round_) continue;
    if (fixed_[id]) return false;
    met_[id] = round_;
    nodes.push_back(id);
    for (ValueId input : graph_.node(id).inputs) {
      if (input != kNone && is_forward(owner_[input]) && !there[owner_[input]]) open.push_back(graph_.value(input).producer);
    }
  }
  return true;
}

// --- segments -------------------------------------------------------------------------------------------------------------------------

// Of several ways to cut, the one whose boundaries and largest segment together are least.
void SavedTensors::cut() {
  int64_t total = 0;
  for (const SavedTensor& tensor : tensors_) total += tensor.movable ? tensor.bytes : 0;
  int64_t least = expected_peak({});
  for (double share = 0.95; share > 1e-3; share *= 0.9) {
    std::vector<int32_t> cuts = cuts_within(static_cast<int64_t>(share * static_cast<double>(total)));
    const int64_t peak = expected_peak(cuts);
    if (peak >= least) continue;
    least = peak;
    cuts_ = std::move(cuts);
  }
}

// Segments that save about `bytes`, each cut at the narrowest place of its second half.
std::vector<int32_t> SavedTensors::cuts_within(int64_t bytes) const {
  const auto end = static_cast<int32_t>(graph_.order().size());
  std::vector<int64_t> saved(static_cast<size_t>(end), 0), width(static_cast<size_t>(end) + 1, 0);
  for (const SavedTensor& tensor : tensors_) saved[static_cast<size_t>(tensor.made)] += tensor.movable ? tensor.bytes : 0;
  for (NodeId id : graph_.order()) {
    for (ValueId value : graph_.node(id).outputs) {
      if (value == kNone || !is_forward(value) || last_forward_[value] < 0) continue;
      width[static_cast<size_t>(position_[id])] += graph_.value(value).bytes();
      width[static_cast<size_t>(last_forward_[value])] -= graph_.value(value).bytes();
    }
  }
  std::vector<int32_t> cuts;
  int32_t start = 0;
  int64_t inside = 0, crossing = 0, narrowest = 0;
  int32_t best = -1;
  for (int32_t at = 0; at < end; ++at) {
    const auto i = static_cast<size_t>(at);
    inside += saved[i];
    if (inside > bytes && best >= start) {
      cuts.push_back(best);
      start = best + 1;
      inside = 0;
      for (int32_t k = start; k <= at; ++k) inside += saved[static_cast<size_t>(k)];
      best = -1;
    }
    crossing += width[i];
    if (graph_.node(graph_.order()[i]).stage != Stage::forward || 2 * inside < bytes || crossing == 0) continue;
    if (best >= start && crossing > narrowest) continue;
    best = at;
    narrowest = crossing;
  }
  return cuts;
}

std::vector<bool> SavedTensors::crossing(const std::vector<int32_t>& cuts) const {
  std::vector<bool> crosses(graph_.value_count(), false);
  for (NodeId id : graph_.order()) {
    for (ValueId value : graph_.node(id).outputs) {
      if (value == kNone || !is_forward(value)) continue;
      const auto next = std::lower_bound(cuts.begin(), cuts.end(), position_[id]);
      crosses[value] = next != cuts.end() && *next < last_forward_[value];
    }
  }
  return crosses;
}

int64_t SavedTensors::expected_peak(const std::vector<int32_t>& cuts) const {
  const std::vector<bool> crosses = crossing(cuts);
  int64_t kept = 0;
  for (ValueId value = 0; value < crosses.size(); ++value) kept += crosses[value] ? graph_.value(value).bytes() : 0;
  std::vector<int64_t> segments(cuts.size() + 1, 0);
  for (const SavedTensor& tensor : tensors_) {
    if (!tensor.movable || crosses[tensor.value]) continue;
    segments[static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), tensor.made) - cuts.begin())] += tensor.bytes;
  }
  return kept + *std::max_element(segments.begin(), segments.end());
}

// --- groups ---------------------------------------------------------------------------------------------------------------------------

void SavedTensors::find_groups() {
  const std::vector<bool> crosses = crossing(cuts_);
  std::vector<bool> there = all_saved();
  for (ValueId value = 0; value < there.size(); ++value) there[value] = there[value] || crosses[value];
  std::vector<std::map<NodeId, SavedGroup>> segments(cuts_.size() + 1);  // by the node that costs most
  std::vector<NodeId> nodes;
  for (const SavedTensor& tensor : tensors_) {
    if (!tensor.movable || crosses[tensor.value]) continue;
    nodes.clear();
    closure(tensor.value, there, nodes);
    const NodeId dearest = *std::max_element(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) { return seconds_[a] < seconds_[b]; });
    const auto segment = static_cast<uint32_t>(std::lower_bound(cuts_.begin(), cuts_.end(), tensor.made) - cuts_.begin());
    SavedGroup& group = segments[segment][dearest];
    group.values.push_back(tensor.value);
    group.segment = segment;
    group.bytes += tensor.bytes;
  }
  for (auto& segment : segments) {
    std::vector<SavedGroup> groups;
    for (auto& [node, group] : segment) groups.push_back(std::move(group));
    groups = order_segment(std::move(groups), there);
    groups_.insert(groups_.end(), std::make_move_iterator(groups.begin()), std::make_move_iterator(groups.end()));
  }
  std::stable_sort(groups_.begin(), groups_.end(), [](const SavedGroup& a, const SavedGroup& b) { return a.cost < b.cost; });
}

// Again and again the one that costs least a byte, given those before it. In very large segments, of the first few only.
std::vector<SavedGroup> SavedTensors::order_segment(std::vector<SavedGroup> groups, const std::vector<bool>& saved) const {
  std::vector<bool> there = saved;
  std::vector<NodeId> again;  // what is computed again so far
  std::vector<SavedGroup> ordered;
  double least = 0;
  while (!groups.empty()) {
    size_t best = 0;
    double best_cost = 0;
    std::vector<NodeId> best_nodes;
    for (size_t g = 0; g < std::min(groups.size(), kCompared); ++g) {
      std::vector<NodeId> nodes = again;
      for (ValueId value : groups[g].values) there[value] = false;
      for (ValueId value : groups[g].values) closure(value, there, nodes);
      for (ValueId value : groups[g].values) there[value] = true;
      double seconds = 0;
      for (size_t i = again.size(); i < nodes.size(); ++i) seconds += seconds_[nodes[i]];
      const double cost = seconds / static_cast<double>(std::max<int64_t>(1, groups[g].bytes));
      if (g > 0 && cost >= best_cost) continue;
      best = g;
      best_cost = cost;
      best_nodes = std::move(nodes);
    }
    for (ValueId value : groups[best].values) there[value] = false;
    least = std::max(least, best_cost);
    groups[best].cost = least;
    again = std::move(best_nodes);
    ordered.push_back(std::move(groups[best]));
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return ordered;
}

// --- splits ---------------------------------------------------------------------------------------------------------------------------

SavedTensors::Split SavedTensors::of_groups(size_t count) const {
  Split split{.recomputed = std::vector<bool>(graph_.value_count(), false), .there = crossing(cuts_)};
  for (size_t g = 0; g < std::min(count, groups_.size()); ++g) {
    for (ValueId value : groups_[g].values) split.recomputed[value] = true;
  }
  return settle(std::move(split));
}

SavedTensors::Split SavedTensors::of_boundaries(size_t every) const {
  std::vector<int32_t> cuts;
  for (size_t i = every; i <= cuts_.size(); i += every) cuts.push_back(cuts_[i - 1]);
  Split split{.recomputed = std::vector<bool>(graph_.value_count(), false), .there = crossing(cuts)};
  for (const SavedTensor& tensor : tensors_) split.recomputed[tensor.value] = tensor.movable && !split.there[tensor.value];
  return settle(std::move(split));
}

// Keeps what can't be computed again because of other things that aren't there either.
SavedTensors::Split SavedTensors::settle(Split split) const {
  for (const SavedTensor& tensor : tensors_) split.there[tensor.value] = !split.recomputed[tensor.value];
  std::vector<NodeId> nodes;
  for (bool changed = true; changed;) {
    changed = false;
    for (const SavedTensor& tensor : tensors_) {
      nodes.clear();
      if (!split.recomputed[tensor.value] || closure(tensor.value, split.there, nodes)) continue;
      split.recomputed[tensor.value] = false;
      split.there[tensor.value] = true;
      changed = true;
    }
  }
  return split;
}

}  // namespace ort_train
