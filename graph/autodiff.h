// Reverse-mode differentiation, graph to graph.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ort_train {

// A value of one element whose gradient is known: `gradient`, or one where it is kNone.
struct Seed {
  ValueId value = kNone;
  ValueId gradient = kNone;
};

// Appends the backward nodes of d loss / d parameter for every trainable parameter and returns parameter -> gradient; a parameter that
// the loss does not depend on is absent. The loss is the sum of gradient * value over the seeds.
//
// Sums have a canonical order: a parameter's gradient is summed over its uses in import order, an activation's over its readers from the
// last to the first; each addition is an explicit Add node. Small products of one matrix's uses, which an unrolled network has at each
// step, are one product of what they multiply, one behind the other in import order (OpTraits::sum). Throws Error(unsupported) naming every
// node on the way that has no gradient.
std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId loss, ValueId seed = kNone);
// The same without the sums over uses: parameter -> the gradient of each of its uses, in import order.
std::map<ValueId, std::vector<ValueId>> differentiate_uses(Graph& graph, const std::vector<Seed>& seeds);
// The gradients of the sum of y's elements with respect to other values, as nodes of that stage behind all others; kNone where y does not
// depend on one. Throws Error(unsupported) for a node on the way that has none.
std::vector<ValueId> gradients_of(Graph& graph, ValueId y, const std::vector<ValueId>& xs, Stage stage);
// first + second + …, from left to right, as Add nodes.
ValueId add_up(Builder& builder, const std::vector<ValueId>& addends);

struct Blocker {
  NodeId node;
  std::string reason, hint;
};
// The nodes without gradient that lie between a trainable parameter and one of `values`. Step functions, whose derivative is zero, are
// among them only where a parameter has no way around them, or where they are straight-through estimators.
std::vector<Blocker> find_blockers(const Graph& graph, const std::vector<ValueId>& values);
// All step functions that lie there.
std::vector<NodeId> find_steps(const Graph& graph, const std::vector<ValueId>& values);
// The trainable parameters that no gradient reaches from any of `values`; it goes through no node without a gradient.
std::vector<ValueId> find_unreached(const Graph& graph, const std::vector<ValueId>& values);

}  // namespace ort_train
