#include "graph/builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/dependence.h"
#include "graph/op_def.h"

namespace ort_train {

Builder& Builder::named(std::string node_name, uint32_t ordinal) {
  node_name_ = std::move(node_name);
  ordinal_ = ordinal;
  return *this;
}

std::vector<ValueId> Builder::emit_many(std::string_view op_name, std::vector<ValueId> inputs, Attributes attributes, size_t outputs) {
  const OpDef& op = op_named(op_name);
  Node node{.op = &op,
            .inputs = std::move(inputs),
            .outputs = {},
            .attributes = std::move(attributes),
            .stage = stage_,
            .name = node_name_,
            .ordinal = ordinal_};
  const std::vector<TensorType> types = infer_types(graph_, op, node.inputs, node.attributes, outputs, node.name);
  const bool constant = folder_ && op.writes.empty() && !op.random &&
                        std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v == kNone || graph_.constant(v); });
  if (constant) {
    node.outputs.assign(outputs, kNone);
    std::vector<Tensor> folded = folder_(graph_, node);
    if (!folded.empty()) {
      std::vector<ValueId> results;
      for (Tensor& tensor : folded) results.push_back(graph_.add_constant(std::move(tensor), node_name_.empty() ? "constant" : node_name_));
      return results;
    }
    node.outputs.clear();
  }
  const std::string base = node_name_.empty() ? std::string(op_name) : fmt::format("{}/{}", node_name_, op_name);
  for (const TensorType& type : types) {
    node.outputs.push_back(graph_.add_value({.name = base,
                                             .dtype = type.dtype,
                                             .shape = type.shape,
                                             .kind = stage_ == Stage::forward ? ValueKind::activation : ValueKind::gradient}));
  }
  std::vector<ValueId> results = node.outputs;
  graph_.add_node(std::move(node), before_);
  return results;
}

ValueId Builder::constant(Tensor tensor) {
  return graph_.add_constant(std::move(tensor), node_name_.empty() ? "constant" : node_name_ + "/constant");
}

ValueId Builder::zeros(Shape shape, DType type) {
  return emit("ConstantOfShape", {}, {{"shape", std::move(shape)}, {"value", Tensor(type, {1})}});
}

ValueId Builder::scalar_like(ValueId value, double number) {
  switch (dtype(value)) {
    case DType::float32:
      return constant(scalar_tensor(static_cast<float>(number)));
    case DType::float64:
      return constant(scalar_tensor(number));
    case DType::float16:
      return constant(scalar_tensor(to_float16(static_cast<float>(number))));
    case DType::bfloat16:
      return constant(scalar_tensor(to_bfloat16(static_cast<float>(number))));
    case DType::int64:
      return constant(scalar_tensor(to_integer<int64_t>(number)));
    case DType::int32:
      return constant(scalar_tensor(to_integer<int32_t>(number)));
    default:
      throw error(ErrorCode::unsupported, "[{}] arithmetic on {} is not supported", node_name_, to_string(dtype(value)));
  }
}

ValueId Builder::reshape(ValueId value, Shape shape) {
  if (this->shape(value) == shape) return value;
  return emit("Reshape", {value}, {{"shape", shape}});
}

ValueId Builder::transpose(ValueId value, std::vector<int64_t> permutation) {
  return emit("Transpose", {value}, {{"perm", std::move(permutation)}});
}

ValueId Builder::reduce_to(ValueId value, Shape target) { return reduce(value, std::move(target), dtype(value)); }

ValueId Builder::reduce_like(ValueId value, ValueId like) { return reduce(value, shape(like), dtype(like)); }

ValueId Builder::reduce(ValueId value, Shape target, DType to) {
  const Shape from = shape(value);
  if (from == target) return cast(value, to);
  const size_t extra = from.size() - target.size();
  std::vector<int64_t> axes;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i < extra || (target[i - extra] == 1 && from[i] != 1)) axes.push_back(static_cast<int64_t>(i));
  }
  return reshape(axes.empty() ? cast(value, to) : sum(value, std::move(axes), to), target);
}

ValueId Builder::sum(ValueId value, std::vector<int64_t> axes, DType to) {
  Attributes attributes{{"axes", std::move(axes)}, {"keepdims", int64_t{0}}};
  if (to != dtype(value) && to == compute_type(dtype(value))) set_type(attributes, kResultType, to);
  return cast(emit("ReduceSum", {value}, std::move(attributes)), to);
}

ValueId Builder::cast(ValueId value, DType to) {
  return dtype(value) == to ? value : emit("Cast", {value}, {{"to", static_cast<int64_t>(to)}});
}

ValueId Lowering::input(size_t i) const {
  if (!has(i)) fail(fmt::format("input {} is missing", i));
  return node.inputs[i];
}

const Tensor& Lowering::constant_input(size_t i, std::string_view what) const {
  const Tensor* tensor = graph_.constant(input(i));
  if (tensor) return *tensor;
  std::string inputs, first;
  for (const ValueId id : inputs_behind(graph_, input(i))) {
    if (first.empty()) first = value(id).name;
    inputs += fmt::format("{}'{}'", inputs.empty() ? "" : ", ", value(id).name);
  }
  fail(first.empty()
           ? fmt::format("{} must be known before training, but '{}' is computed from the model's weights", what, value(input(i)).name)
           : fmt::format("{} must be known before training, but '{}' is computed from the model's input{} {} (`bind` {}=VALUE "
                         "fixes an input)",
                         what, value(input(i)).name, inputs.find(',') == std::string::npos ? "" : "s", inputs, first));
}

const Tensor& Lowering::single(size_t i, std::string_view what) const {
  const Tensor& tensor = constant_input(i, what);
  if (tensor.size() != 1) fail(fmt::format("{} is {}, but must be one number", what, to_string(tensor.type())));
  return tensor;
}

int64_t Lowering::integer(size_t i, std::string_view what) const { return single(i, what).to_int64().at(0); }
double Lowering::number(size_t i, std::string_view what) const { return single(i, what).to_double().at(0); }

void Lowering::output_all(const std::vector<ValueId>& values) {
  for (size_t i = 0; i < std::min(values.size(), node.outputs); ++i) output(i, values[i]);
}

std::vector<int64_t> Lowering::ints_from(std::string_view name, size_t i, std::vector<int64_t> otherwise) const {
  if (node.attributes.has(name)) return node.attributes.get(name, std::vector<int64_t>{});
  return has(i) ? ints(i, name) : otherwise;
}

void Lowering::pass_on(std::string_view op, Attributes attributes) { pass_on(op, node.inputs, std::move(attributes)); }

void Lowering::pass_on(std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  while (!inputs.empty() && inputs.back() == kNone) inputs.pop_back();
  results_ = emit_many(op, std::move(inputs), std::move(attributes), node.outputs);
}

void Lowering::fail(const std::string& why) const { throw error(ErrorCode::unsupported, "[{} '{}'] {}", node.op_type, node.name, why); }

GradientBuilder::GradientBuilder(Graph& graph, NodeId node, std::vector<ValueId> output_gradients, std::vector<bool> wanted, Stage stage)
    : Builder(graph, stage), node_(node), output_gradients_(std::move(output_gradients)), wanted_(std::move(wanted)) {
  named(graph.node(node).name, graph.node(node).ordinal);
  input_gradients_.assign(graph.node(node).inputs.size(), kNone);
}

ValueId GradientBuilder::output_gradient(size_t i) {
  if (output_gradients_.at(i) == kNone) {
    const ValueId output = graph_.node(node_).outputs[i];
    output_gradients_[i] = constant(Tensor(dtype(output), {}));
    if (!shape(output).empty()) output_gradients_[i] = emit("Expand", {output_gradients_[i]}, {{"shape", shape(output)}});
  }
  return output_gradients_[i];
}

void GradientBuilder::input_gradient(size_t i, ValueId gradient) {
  const Value& input = value(graph_.node(node_).inputs.at(i));
  require(value(gradient).type() == input.type(), "a gradient has the type of what it is the gradient of");
  input_gradients_[i] = gradient;
}

}  // namespace ort_train
