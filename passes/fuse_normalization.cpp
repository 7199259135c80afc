// fuse_normalization: layer normalisation written in primitives (exports before opset 17) becomes one node.
//
//   before   d = x - ReduceMean(x, -1) ; v = ReduceMean(d * d, -1) ; y = d / Sqrt(v + eps) [* scale [+ bias]]      Pow(d, 2) for d * d too
//   after    y, mean, inv_std_dev = LayerNormalization(x, scale, bias)
//
// Needs: constants folded. Leaves: other means and square roots alone, and in float64 where eps is no float32. Without scale a constant of
// ones takes its place.

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

// The value whose mean over the last axis `value` is (kept as a dimension of one); kNone else.
ValueId mean_of(const View& view, ValueId value) {
  const Node* mean = view.made_by(value, "ReduceMean");
  if (!mean || mean->attributes.get("keepdims", 1) == 0) return kNone;
  const int64_t rank = static_cast<int64_t>(view.graph().value(mean->inputs[0]).shape.size());
  const std::vector<int64_t> axes = mean->attributes.get("axes", std::vector<int64_t>{});
  return axes.size() == 1 && (axes[0] == rank - 1 || axes[0] == -1) ? mean->inputs[0] : kNone;
}

bool is_deviation(const View& view, ValueId d) {
  const Node* sub = view.made_by(d, "Sub");
  return sub && mean_of(view, sub->inputs[1]) == sub->inputs[0];
}

// d, where `value` is d squared.
ValueId squared(const View& view, ValueId value) {
  const Node* node = view.made_by(value);
  if (!node) return kNone;
  if (node->op->name == "Mul" && node->inputs[0] == node->inputs[1]) return node->inputs[0];
  return node->op->name == "Pow" && view.is_number(node->inputs[1], 2) ? node->inputs[0] : kNone;
}

bool fuse_division(Graph& graph, NodeId id) {
  const View view(graph);
  const Node& div = graph.node(id);
  const Node* root = view.made_by(div.inputs[1], "Sqrt");
  const Node* sum = root ? view.made_by(root->inputs[0], "Add") : nullptr;
  if (!sum) return false;
  std::optional<double> epsilon = view.number(sum->inputs[1]);
  const ValueId variance = epsilon ? sum->inputs[0] : sum->inputs[1];
  if (!epsilon) epsilon = view.number(sum->inputs[0]);
  const ValueId d = squared(view, mean_of(view, variance));
  // Exporters compute x - mean once or twice; both are the same deviation of the same x.
  if (!epsilon || d == kNone || !is_deviation(view, d) || !is_deviation(view, div.inputs[0])) return false;
  const ValueId x = view.made_by(d)->inputs[0];
  if (view.made_by(div.inputs[0])->inputs[0] != x || !is_floating(graph.value(x).dtype)) return false;
  if (graph.value(div.outputs[0]).shape != graph.value(x).shape) return false;  // a constant of more axes gives it these
  if (!is_float32(*epsilon)) return false;

  const Shape row{graph.value(x).shape.back()};
  ValueId scale = kNone, bias = kNone, top = div.outputs[0];
  NodeId last = id;
  const auto absorb = [&](std::string_view op, ValueId& factor) {
    const NodeId up = view.only_reader(top);
    if (up == kNone || graph.node(up).op->name != op) return;
    const ValueId other = other_input(graph.node(up), top);
    if (other == kNone || graph.value(other).shape != row) return;
    factor = other;
    top = graph.node(up).outputs[0];
    last = up;
  };
  absorb("Mul", scale);
  if (scale != kNone) absorb("Add", bias);
  const std::string name = div.name;
  const uint32_t ordinal = div.ordinal;
  Builder builder(graph);
  builder.before(last).named(name, ordinal);
  if (scale == kNone) {
    Tensor ones(graph.value(x).dtype, row);
    if (ones.dtype != DType::float32) return false;
    for (float& one : ones.data<float>()) one = 1;
    scale = builder.constant(std::move(ones));
  }
  std::vector<ValueId> inputs{x, scale};
  if (bias != kNone) inputs.push_back(bias);
  const std::vector<ValueId> results =
      builder.emit_many("LayerNormalization", inputs, {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(*epsilon)}}, 3);
  graph.replace_uses(top, results[0]);
  graph.remove_dead_nodes();
  return true;
}

}  // namespace

bool fuse_normalization(Graph& graph, const PassOptions&) {
  bool changed = false;
  for (NodeId id : std::vector<NodeId>(graph.order())) {
    const OpDef* op = graph.node(id).op;
    if (op && op->name == "Div") changed |= fuse_division(graph, id);
  }
  return changed;
}

}  // namespace ort_train
