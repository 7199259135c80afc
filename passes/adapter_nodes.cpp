// adapter_nodes: what an adapter adds to a use of its weight.
//
//   before   y = MatMul(x, w, bias, trans_b=1)                                                     w [out, in]
//
//   LoRA     u = MatMul(Dropout(x), a, trans_b=1) ; low = MatMul(u, b, trans_b=1, alpha=scale)     a [rank, in], b [out, rank]
//            y = Add(MatMul(x, w, bias, trans_b=1), low)
//
//   DoRA     f = DoraScale(m, squares, MatMul(a, w, trans_b=1), MatMul(b, MatMul(a, a, trans_b=1)), b)     once for all uses
//            y = Add(Mul(Add(MatMul(x, w, trans_b=1), low), f), bias)
//   with Dropout, as PEFT has it: with h = Dropout(x)
//            y = Add(MatMul(x, w, bias, trans_b=1), Sub(Mul(Add(v, low), f), v)), v = MatMul(h, w, trans_b=1)
//
//   (IA)3    y = Mul(MatMul(x, w, bias, trans_b=1), l)   or   MatMul(Mul(x, l), w, bias, trans_b=1)
//
// A convolution's a [rank, in, …] goes over x as w does, its b [out, rank, 1, …] over what that gives. Of a lookup, a [rank, rows] is
// looked up in columns.

#include <algorithm>

#include "graph/op_def.h"
#include "passes/adapters.h"
#include "passes/build.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

// Emits between the node and what comes after it by now.
Builder builder_after(Graph& graph, const Node& node) {
  Builder builder(graph);
  emit_after(builder.named(node.name, node.ordinal), node.outputs[0]);
  return builder;
}

// Products of activations and factors have the type of the activations.
Attributes as_first() { return {{kTypedByFirst, int64_t{1}}}; }

ValueId bias_of(const Node& node) { return node.inputs.size() > 2 ? node.inputs[2] : kNone; }

// Whether a value is nothing but the bias of uses of that weight, as it is or reshaped.
bool is_bias_alone(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId value, ValueId weight) {
  if (std::find(graph.outputs.begin(), graph.outputs.end(), value) != graph.outputs.end()) return false;
  return std::all_of(readers[value].begin(), readers[value].end(), [&](NodeId id) {
    const Node& reader = graph.node(id);
    if (reader.op->name == "Reshape") return is_bias_alone(graph, readers, reader.outputs[0], weight);
    return reader.inputs.size() > 1 && reader.inputs[1] == weight && bias_of(reader) == value;
  });
}

}  // namespace

void AdapterNodes::add(NodeId use, Adapter& adapter) {
  if (spec_.kind == AdapterKind::ia3) return adapter.scales_inputs ? scale_inputs(use, adapter) : scale_outputs(use, adapter);
  if (spec_.kind == AdapterKind::dora) return add_dora(use, adapter);
  const Node node = graph_.node(use);
  Builder builder = builder_after(graph_, node);
  const ValueId y = node.outputs[0], low = low_rank(node, adapter).y;
  // All readers of y now read the sum, which alone reads y.
  insert_after(graph_, y, builder.emit("Add", {y, low}));
}

// --- LoRA -------------------------------------------------------------------------------------------------------------------------------

AdapterNodes::LowRank AdapterNodes::low_rank(const Node& node, const Adapter& adapter) {
  const ValueId a = graph_.find_value(adapter.a), b = graph_.find_value(adapter.b);
  Builder builder = builder_after(graph_, node);
  if (adapter.use == AdaptedUse::convolution) {
    const ValueId x = dropped(node);
    const size_t axes = graph_.value(a).shape.size() - 2;
    const ValueId narrow = builder.emit("Conv", {x, a}, node.attributes);
    const ValueId scaled = spec_.scale == 1 ? narrow : builder.emit("Mul", {narrow, builder.scalar_like(narrow, spec_.scale)});
    const Attributes one{{"kernel_shape", std::vector<int64_t>(axes, 1)},
                         {"strides", std::vector<int64_t>(axes, 1)},
                         {"dilations", std::vector<int64_t>(axes, 1)},
                         {"pads", std::vector<int64_t>(2 * axes, 0)}};
    return {.x = x, .y = builder.emit("Conv", {scaled, b}, one)};
  }
  const bool is_lookup = adapter.use == AdaptedUse::lookup;
  ValueId x = kNone, narrow = kNone;
  if (is_lookup) {  // [rank, lookups]
    const ValueId columns = builder.emit("Gather", {a, node.inputs[1]}, {{"axis", int64_t{1}}});
    narrow = builder.reshape(columns, {spec_.rank, element_count(graph_.value(node.inputs[1]).shape)});
  } else {
    x = dropped(node);
    const Attributes flags{{"trans_a", node.attributes.get("trans_a", int64_t{0})}, {"trans_b", int64_t{1}}};
    narrow = builder.emit("MatMul", {x, a}, flags);
  }
  const double alpha = spec_.scale * static_cast<double>(node.attributes.get("alpha", 1.0f));
  const ValueId low =
      builder.emit("MatMul", {narrow, b}, {{"trans_a", int64_t{is_lookup}}, {"trans_b", int64_t{1}}, {"alpha", static_cast<float>(alpha)}});
  return {.x = x, .y = is_lookup ? builder.reshape(low, graph_.value(node.outputs[0]).shape) : low};
}

// What of the node's x goes into the adapter: in training some of it is left out, by numbers that no other node of the file draws.
ValueId AdapterNodes::dropped(const Node& node) {
  const ValueId x = node.inputs[0];
  if (spec_.dropout == 0) return x;
  constexpr uint32_t kOfAdapters = uint32_t{1} << 30;
  constexpr int kOrdinalBits = 20;                        // of a node of the file
  const uint32_t earlier = products_of_[node.ordinal]++;  // an Einsum of three factors has become two products
  constexpr int kOpset = 13;
  const OnnxNode dropout{.op_type = "Dropout",
                         .name = node.name,
                         .opset = kOpset,
                         .attributes = {},
                         .inputs = {x, graph_.add_constant(scalar_tensor(static_cast<float>(spec_.dropout)), "ratio"),
                                    graph_.add_constant(scalar_tensor(true), "training_mode")},
                         .outputs = 1};
  Lowering lowering(graph_, dropout);
  emit_after(lowering.named(node.name, node.ordinal | earlier << kOrdinalBits | kOfAdapters), node.outputs[0]);
  op_named(dropout.op_type).onnx[0].lower(lowering);
  return lowering.results()[0];
}

// --- DoRA -------------------------------------------------------------------------------------------------------------------------------

// What each output is multiplied by. The weight is an operand of one more product, so it may be stored in blocks and in parts.
ValueId AdapterNodes::row_scale(const Node& node, const Adapter& adapter) {
  const auto [at, is_new] = row_scales_.emplace(adapter.weight, kNone);
  if (!is_new) return at->second;
  Builder builder = builder_after(graph_, node);
  const auto as_matrix = [&](ValueId value) {
    const Shape shape = graph_.value(value).shape;
    return shape.size() == 2 ? value : builder.reshape(value, {shape[0], element_count(shape.from(1))});
  };
  const ValueId a = as_matrix(graph_.find_value(adapter.a)), b = as_matrix(graph_.find_value(adapter.b));
  const Attributes by_rows{{"trans_b", int64_t{1}}}, by_columns{};
  const ValueId wa =
      builder.emit("MatMul", {a, as_matrix(node.inputs[1])}, adapter.use == AdaptedUse::transposed_product ? by_columns : by_rows);
  const ValueId ba = builder.emit("MatMul", {b, builder.emit("MatMul", {a, a}, by_rows)});
  const std::vector<ValueId> inputs{graph_.find_value(adapter.magnitude), graph_.find_value(adapter.squares), wa, ba, b};
  return at->second = builder.emit_many("DoraScale", inputs, {{"scale", static_cast<float>(spec_.scale)}}, 2)[0];
}

void AdapterNodes::add_dora(NodeId use, const Adapter& adapter) {
  const Node node = graph_.node(use);
  Builder builder = builder_after(graph_, node);
  const ValueId y = node.outputs[0], bias = bias_of(node), scale = row_scale(node, adapter);
  const LowRank low = low_rank(node, adapter);
  const ValueId base = builder.emit(node.op->name, {low.x, node.inputs[1]}, node.attributes);
  const ValueId sum = builder.emit("Add", {base, low.y});
  ValueId result = builder.emit("Mul", {sum, factor(builder, scale, node, adapter)}, as_first());
  if (spec_.dropout != 0) return insert_after(graph_, y, builder.emit("Add", {y, builder.emit("Sub", {result, base})}));
  if (bias != kNone) result = builder.emit("Add", {result, factor(builder, bias, node, adapter)}, as_first());
  graph_.replace_uses(y, result);
  graph_.remove_node(use);
}

// --- (IA)3 ------------------------------------------------------------------------------------------------------------------------------

void AdapterNodes::scale_inputs(NodeId use, const Adapter& adapter) {
  const Node node = graph_.node(use);
  Builder builder(graph_);
  builder.before(use).named(node.name, node.ordinal);
  const ValueId factors = factor(builder, graph_.find_value(adapter.factors), node, adapter);
  graph_.node(use).inputs[0] = builder.emit("Mul", {node.inputs[0], factors}, as_first());
}

void AdapterNodes::scale_outputs(NodeId use, Adapter& adapter) {
  const Node node = graph_.node(use);
  if (ValueId bias = bias_of(node); bias != kNone) {  // the factors go into it in the end
    while (graph_.value(bias).producer != kNone && graph_.node(graph_.value(bias).producer).op->name == "Reshape")
      bias = graph_.node(graph_.value(bias).producer).inputs[0];
    const std::string& name = graph_.value(bias).name;
    if (graph_.value(bias).kind != ValueKind::parameter || !is_bias_alone(graph_, graph_.readers(), bias, node.inputs[1]))
      throw error(ErrorCode::unsupported,
                  "'{}' can't have its outputs scaled: its bias '{}' {}, so that no bias of the new model can have the factors in it",
                  adapter.weight, name,
                  graph_.value(bias).kind == ValueKind::parameter ? "has other uses, too (`untie` gives each a weight of its own)"
                                                                  : "is no weight");
    if (std::find(adapter.biases.begin(), adapter.biases.end(), name) == adapter.biases.end()) adapter.biases.push_back(name);
  }
  Builder builder = builder_after(graph_, node);
  const ValueId factors = factor(builder, graph_.find_value(adapter.factors), node, adapter);
  insert_after(graph_, node.outputs[0], builder.emit("Mul", {node.outputs[0], factors}, as_first()));
}

// Numbers of channels as what the node's activations are multiplied by, or added to.
ValueId AdapterNodes::factor(Builder& builder, ValueId vector, const Node& node, const Adapter& adapter) const {
  Shape shape{element_count(graph_.value(vector).shape)};
  if (adapter.use == AdaptedUse::convolution) shape.resize(graph_.value(node.inputs[1]).shape.size() - 1, 1);
  if (adapter.scales_inputs && node.attributes.get("trans_a", int64_t{0}) != 0) shape.push_back(1);
  return builder.reshape(vector, shape);
}

}  // namespace ort_train
