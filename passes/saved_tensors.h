// SavedTensors: what the backward pass of a train graph reads of the forward pass, and how each of it could be computed again.
//
// The forward pass is cut into segments at its narrowest places (in a transformer: between blocks). What crosses a cut is its boundary. A
// saved tensor inside a segment can be computed again from the boundary before it and from the saved tensors that stay. Tensors that come
// of the same expensive node form a group: Q, K and V of one product. A fixed function of the graph, whatever the machine's rates are.
// Refers to its graph, which must not change meanwhile.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

// A piece of memory: named by the value that is no view.
struct SavedTensor {
  ValueId value = kNone;
  int64_t bytes = 0;
  int32_t made = 0, last_forward = 0, first_backward = 0;  // positions in the graph's order
  bool movable = false;  // can be computed again, and something happens between its last use forward and its first use backward
};

// What is to be recomputed together.
struct SavedGroup {
  std::vector<ValueId> values;
  uint32_t segment = 0;
  int64_t bytes = 0;
  double cost = 0;  // seconds a byte on a nominal machine, what is recomputed already left out; not less than that of the groups it needs
};

class SavedTensors {
 public:
  explicit SavedTensors(const Graph& graph);

  const std::vector<SavedTensor>& tensors() const { return tensors_; }
  // Cheapest first; of equal ones those of the first segments, whose tensors wait longest.
  const std::vector<SavedGroup>& groups() const { return groups_; }
  size_t boundaries() const { return cuts_.size(); }

  struct Split {
    std::vector<bool> recomputed;  // by ValueId: saved, and computed again
    std::vector<bool> there;       // by ValueId: what forward values can be read in the backward pass
  };
  // The first `groups` are recomputed.
  Split of_groups(size_t groups) const;
  // All but each `every`-th boundary.
  Split of_boundaries(size_t every) const;

  // The value whose memory this one shows: itself, unless it is a view.
  ValueId owner(ValueId value) const { return owner_[value]; }
  bool is_forward(ValueId value) const;  // made by the forward pass, no view of something else
  // Adds the nodes that compute `value` again from what is there; false where that is not possible.
  bool closure(ValueId value, const std::vector<bool>& there, std::vector<NodeId>& nodes) const;

 private:
  void find_tensors();
  void find_fixed_nodes();
  void find_movable();
  void cut();
  std::vector<int32_t> cuts_within(int64_t bytes) const;
  int64_t expected_peak(const std::vector<int32_t>& cuts) const;
  std::vector<bool> crossing(const std::vector<int32_t>& cuts) const;
  void find_groups();
  std::vector<SavedGroup> order_segment(std::vector<SavedGroup> groups, const std::vector<bool>& there) const;
  Split settle(Split split) const;
  std::vector<bool> all_saved() const;

  const Graph& graph_;
  const std::vector<ValueId> owner_;
  std::vector<int32_t> position_;      // by NodeId
  std::vector<double> seconds_;        // by NodeId, nominal
  std::vector<bool> fixed_;            // by NodeId: can't be run again
  std::vector<int32_t> last_forward_;  // by ValueId (owner): the last forward node that reads it; -1: none
  mutable std::vector<uint32_t> met_;  // by NodeId: in which round of closure() it was met
  mutable uint32_t round_ = 0;
  std::vector<SavedTensor> tensors_;
  std::vector<int32_t> cuts_;  // positions: a segment ends with this node
  std::vector<SavedGroup> groups_;
};

}  // namespace ort_train
