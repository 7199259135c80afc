// simplify: what exporters leave around the arithmetic is folded into it.
//
//   before   r = Reshape(x) ; s = Reshape(r) ; t = Transpose(w, [1, 0]) ; m = MatMul(s, t) ; y = Add(m, b)
//   after    s = Reshape(x) ; y = MatMul(s, w, b, trans_b=1)
//
// Needs: types bound. Leaves: no Reshape, Cast or Expand that changes nothing, no Reshape of a Reshape, no Transpose that a product can
// take as a flag, rank-1 biases inside products. Runs its rules until none applies. Idempotent; changes no number's meaning, only its
// route.

#include <algorithm>
#include <numeric>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

using Permutation = std::vector<int64_t>;

Permutation permutation_of(const Node& node) { return node.attributes.get("perm", Permutation{}); }

bool is_identity(const Permutation& p) {
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Each rule looks at one node and returns true if it changed the graph.

// Reshape, Cast, Expand to what it already is; Transpose by the identity.
bool drop_no_op(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool same = node.op->traits.same_numbers || (node.op->name == "Transpose" && is_identity(permutation_of(node)));
  if (!same || graph.value(node.inputs[0]).type() != graph.value(node.outputs[0]).type()) return false;
  graph.replace_uses(node.outputs[0], node.inputs[0]);
  graph.remove_node(id);
  return true;
}

// Reshape(Reshape(x)) -> Reshape(x); Transpose(Transpose(x)) -> Transpose(x).
bool merge_views(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  if (node.op->name != "Reshape" && node.op->name != "Transpose") return false;
  const NodeId inner_id = graph.value(node.inputs[0]).producer;
  if (inner_id == kNone) return false;
  const Node& inner = graph.node(inner_id);
  if (inner.op != node.op) return false;
  if (node.op->name == "Reshape") {
    node.inputs[0] = inner.inputs[0];
    return true;
  }
  const Permutation first = permutation_of(inner), second = permutation_of(node);
  Permutation both(first.size());
  for (size_t i = 0; i < both.size(); ++i) both[i] = first[second[i]];
  node.attributes.set("perm", both);
  node.inputs[0] = inner.inputs[0];
  return true;
}

// Reshape(Transpose(Reshape(x: ..., T, D -> N, T, D), [0, 2, 1]) -> ..., D, T) -> Transpose(x) of the last two axes.
bool unflatten_transpose(Graph& graph, NodeId id) {
  const Node outer = graph.node(id);
  if (outer.op->name != "Reshape") return false;
  const NodeId middle_id = graph.value(outer.inputs[0]).producer;
  if (middle_id == kNone || graph.node(middle_id).op->name != "Transpose") return false;
  const Node& middle = graph.node(middle_id);
  if (permutation_of(middle) != Permutation{0, 2, 1}) return false;
  const NodeId inner_id = graph.value(middle.inputs[0]).producer;
  if (inner_id == kNone || graph.node(inner_id).op->name != "Reshape") return false;
  const ValueId x = graph.node(inner_id).inputs[0];
  const Shape from = graph.value(x).shape, flat = graph.value(middle.inputs[0]).shape, to = graph.value(outer.outputs[0]).shape;
  const size_t rank = from.size();
  if (rank < 3 || to.size() != rank || from[rank - 2] != flat[1] || from[rank - 1] != flat[2]) return false;
  if (to[rank - 2] != flat[2] || to[rank - 1] != flat[1] || !std::equal(from.begin(), from.end() - 2, to.begin())) return false;
  Permutation swap(rank);
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[rank - 2], swap[rank - 1]);
  const ValueId y = Builder(graph, outer.stage).before(id).named(middle.name, middle.ordinal).transpose(x, swap);
  graph.replace_uses(outer.outputs[0], y);
  graph.remove_node(id);
  return true;
}

// MatMul(a, Transpose(b)) -> MatMul(a, b', trans_b): where the transpose leaves the innermost axis second to last, the product reads it
// that way for nothing; what remains of the permutation (if anything) moves whole rows.
bool absorb_transpose(Graph& graph, NodeId id) {
  if (graph.node(id).op->name != "MatMul") return false;
  for (const int operand : {0, 1}) {
    const Node product = graph.node(id);
    const NodeId transpose_id = graph.value(product.inputs[operand]).producer;
    if (transpose_id == kNone || graph.node(transpose_id).op->name != "Transpose") continue;
    const Node transpose = graph.node(transpose_id);
    Permutation p = permutation_of(transpose);
    const size_t rank = p.size();
    if (rank < 2 || p[rank - 2] != static_cast<int64_t>(rank) - 1) continue;
    std::swap(p[rank - 2], p[rank - 1]);
    ValueId source = transpose.inputs[0];
    if (!is_identity(p))
      source = Builder(graph, transpose.stage).before(transpose_id).named(transpose.name, transpose.ordinal).transpose(source, p);
    const char* flag = operand == 0 ? "trans_a" : "trans_b";
    Node& changed = graph.node(id);
    changed.inputs[operand] = source;
    changed.attributes.set(flag, int64_t{1} - changed.attributes.get(flag, 0));
    return true;
  }
  return false;
}

// Add(MatMul(a, b), bias [N]) -> MatMul(a, b, bias).
bool absorb_bias(Graph& graph, const View& view, NodeId id) {
  const Node& add = graph.node(id);
  if (add.op->name != "Add") return false;
  for (const int operand : {0, 1}) {
    const ValueId product_value = add.inputs[operand], bias = add.inputs[1 - operand];
    const Node* product = view.made_by(product_value, "MatMul");
    if (!product || !view.knows(product_value) || view.only_reader(product_value) != id || product->inputs.size() > 2) continue;
    const Shape& shape = graph.value(product_value).shape;
    if (graph.value(bias).shape != Shape{shape.back()} || graph.value(add.outputs[0]).shape != shape) continue;
    // The bias may be made after the product: the product moves to where the sum was.
    const ValueId result = Builder(graph, add.stage)
                               .before(id)
                               .named(product->name, product->ordinal)
                               .emit("MatMul", {product->inputs[0], product->inputs[1], bias}, product->attributes);
    graph.replace_uses(graph.node(id).outputs[0], result);
    graph.remove_node(id);
    return true;
  }
  return false;
}

}  // namespace

bool simplify(Graph& graph, const PassOptions&) {
  bool changed = graph.remove_dead_nodes();
  for (bool again = true; again;) {
    again = false;
    for (NodeId id : std::vector<NodeId>(graph.order())) {
      if (!graph.node(id).op) continue;  // removed on the way
      again |= drop_no_op(graph, id) || merge_views(graph, id) || unflatten_transpose(graph, id) || absorb_transpose(graph, id);
    }
    if (!again) {
      const View view(graph);  // of the graph as it was: what a sum becomes is looked at in the next round
      for (NodeId id : std::vector<NodeId>(graph.order())) {
        if (graph.node(id).op && graph.node(id).op->name == "Add") again |= absorb_bias(graph, view, id);
      }
    }
    graph.remove_dead_nodes();
    changed |= again;
  }
  return changed;
}

}  // namespace ort_train
