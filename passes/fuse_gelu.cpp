// fuse_gelu: the primitives that exporters write for GELU become one node, which keeps x alone for the backward pass instead of five
// tensors.
//
//   before   y = x * 0.5 * (1 + Tanh(0.7978845608 * (x + 0.044715 * Pow(x, 3))))      products in any order
//   after    y = Gelu(x, approximate="tanh")
//   before   y = x * 0.5 * (1 + Erf(x / sqrt(2)))
//   after    y = Gelu(x)
//
// Constants are those of the form to about the last digit of their type, or as they are often written in float32, with four or five digits.
//
// Needs: constants folded. Leaves: other uses of Tanh and Erf alone.

#include <algorithm>
#include <cmath>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

constexpr double kSqrt2OverPi = 0.7978845608028654, kSqrt2 = 1.4142135623730951;

// Whether a constant is that number of the form, or what is often written for it.
bool stands_for(const View& view, ValueId value, double number) {
  if (view.graph().value(value).dtype == DType::float64) return view.is_number(value, number, 1e-12);
  constexpr double kSameDigits = 1e-6, kWritten = 1e-4;
  if (view.is_number(value, number, kSameDigits)) return true;
  static constexpr double kShort[] = {0.79788, 0.7979, 1.4142, 1.41421, 0.7071, 0.70711};
  return std::any_of(std::begin(kShort), std::end(kShort), [&](double written) {
    return std::abs(written - number) < kWritten * number && view.is_number(value, written, kSameDigits);
  });
}

// The value that `product` scales by `factor` (Mul by it, or Div by its inverse); kNone where it does not.
ValueId scaled(const View& view, ValueId value, double factor) {
  if (const Node* mul = view.made_by(value, "Mul")) {
    for (const int i : {0, 1}) {
      if (stands_for(view, mul->inputs[i], factor)) return mul->inputs[1 - i];
    }
  }
  if (const Node* div = view.made_by(value, "Div")) {
    if (stands_for(view, div->inputs[1], 1 / factor)) return div->inputs[0];
  }
  return kNone;
}

bool is_cube(const View& view, ValueId value, ValueId x) {
  if (const Node* pow = view.made_by(value, "Pow")) return pow->inputs[0] == x && view.is_number(pow->inputs[1], 3);
  const Node* mul = view.made_by(value, "Mul");
  if (!mul) return false;
  for (const int i : {0, 1}) {
    if (mul->inputs[i] != x) continue;
    const Node* square = view.made_by(mul->inputs[1 - i]);
    if (!square) continue;
    if (square->op->name == "Mul" && square->inputs[0] == x && square->inputs[1] == x) return true;
    if (square->op->name == "Pow" && square->inputs[0] == x && view.is_number(square->inputs[1], 2)) return true;
  }
  return false;
}

// x, where `argument` = sqrt(2/pi) (x + 0.044715 x^3).
ValueId tanh_argument(const View& view, ValueId argument) {
  const Node* sum = view.made_by(scaled(view, argument, kSqrt2OverPi), "Add");
  if (!sum) return kNone;
  for (const int i : {0, 1}) {
    const ValueId x = sum->inputs[i], cube = scaled(view, sum->inputs[1 - i], 0.044715);
    if (cube != kNone && is_cube(view, cube, x)) return x;
  }
  return kNone;
}

// The factors of a product tree, down to what is not a Mul read by its parent alone.
void flatten(const View& view, ValueId value, ValueId stop, std::vector<ValueId>& factors) {
  const Node* mul = value == stop ? nullptr : view.made_by(value, "Mul");
  if (!mul || factors.size() > 4) {
    factors.push_back(value);
    return;
  }
  for (ValueId input : mul->inputs) flatten(view, input, stop, factors);
}

// Whether `value` = x * 0.5 * one_plus, in any order and association.
bool is_half_x_times(const View& view, ValueId value, ValueId x, ValueId one_plus) {
  std::vector<ValueId> factors;
  flatten(view, value, one_plus, factors);
  std::vector<ValueId> x_factors;  // x may be a product itself
  flatten(view, x, one_plus, x_factors);
  if (factors.size() != x_factors.size() + 2) return false;
  const auto take = [&](auto matches) {
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!matches(factors[i])) continue;
      factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    return false;
  };
  if (!take([&](ValueId v) { return v == one_plus; }) || !take([&](ValueId v) { return view.is_number(v, 0.5); })) return false;
  for (ValueId wanted : x_factors) {
    if (!take([&](ValueId v) { return v == wanted; })) return false;
  }
  return true;
}

bool fuse_one_gelu(Graph& graph, NodeId id) {
  const View view(graph);
  const Node node = graph.node(id);
  const bool tanh = node.op->name == "Tanh";
  const ValueId x = tanh ? tanh_argument(view, node.inputs[0]) : scaled(view, node.inputs[0], 1 / kSqrt2);
  if (x == kNone) return false;
  const NodeId add_id = view.only_reader(node.outputs[0]);
  if (add_id == kNone || graph.node(add_id).op->name != "Add" || !view.is_number(other_input(graph.node(add_id), node.outputs[0]), 1))
    return false;
  const ValueId one_plus = graph.node(add_id).outputs[0];
  ValueId top = one_plus;
  for (int climbed = 0; climbed < 2; ++climbed) {
    const NodeId up = view.only_reader(top);
    if (up == kNone || graph.node(up).op->name != "Mul") return false;
    top = graph.node(up).outputs[0];
    if (!is_half_x_times(view, top, x, one_plus)) continue;
    if (graph.value(top).shape != graph.value(x).shape) return false;  // a constant of more axes gives it these
    Attributes attributes;
    if (tanh) attributes.set("approximate", std::string("tanh"));
    const ValueId y = Builder(graph).before(up).named(node.name, node.ordinal).emit("Gelu", {x}, attributes);
    graph.replace_uses(top, y);
    graph.remove_dead_nodes();
    return true;
  }
  return false;
}

}  // namespace

bool fuse_gelu(Graph& graph, const PassOptions&) {
  bool changed = false;
  for (NodeId id : std::vector<NodeId>(graph.order())) {
    const OpDef* op = graph.node(id).op;
    if (op && (op->name == "Tanh" || op->name == "Erf")) changed |= fuse_one_gelu(graph, id);
  }
  return changed;
}

}  // namespace ort_train
