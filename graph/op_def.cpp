#include "graph/op_def.h"

#include <numeric>

namespace ort_train {

const TensorType& InferContext::input(size_t i) const {
  if (!has(i)) throw error(ErrorCode::unsupported, "input {} is missing", i);
  return *inputs[i];
}

const Tensor& InferContext::constant(size_t i) const {
  const Tensor* const tensor = i < constants.size() ? constants[i] : nullptr;
  if (!tensor) throw error(ErrorCode::unsupported, "input {} must be known before training", i);
  return *tensor;
}

ValueId viewed(const Node& node) {
  if (node.op->alias.empty() || node.outputs.size() != 1 || node.outputs[0] == kNone) return kNone;
  return node.inputs[static_cast<size_t>(node.op->alias[0].input)];
}

std::vector<ValueId> memory_owners(const Graph& graph) {
  std::vector<ValueId> owners(graph.value_count());
  std::iota(owners.begin(), owners.end(), ValueId{0});
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (const ValueId source = viewed(node); source != kNone) owners[node.outputs[0]] = owners[source];
  }
  return owners;
}

std::vector<NodeId> live_layers(const Graph& graph) {
  std::vector<NodeId> layers;
  const auto readers = graph.readers();
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool is_read = node.outputs.size() > 1 && node.outputs[1] != kNone && !readers[node.outputs[1]].empty();
    if (node.op->traits.statistics == Statistics::batch && is_read) layers.push_back(id);
  }
  return layers;
}

int64_t view_offset(const Node& node) { return node.attributes.get("byte_offset", int64_t{0}); }

std::vector<TensorType> infer_types(const Graph& graph, const OpDef& op, const std::vector<ValueId>& inputs, const Attributes& attributes,
                                    size_t outputs, std::string_view node_name) {
  std::vector<TensorType> types(inputs.size());
  InferContext context{.attributes = attributes, .inputs = {}, .constants = {}, .outputs = outputs};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != kNone) types[i] = graph.value(inputs[i]).type();
    context.inputs.push_back(inputs[i] == kNone ? nullptr : &types[i]);
    context.constants.push_back(graph.constant(inputs[i]));
  }
  try {
    std::vector<TensorType> result = op.infer(context);
    if (result.size() < outputs) throw error(ErrorCode::unsupported, "{} outputs are asked for; it gives {}", outputs, result.size());
    for (const TensorType& type : result) check_type(type);
    return result;
  } catch (const Error& e) {
    throw error(e.code(), "[{} '{}'] {}", op.name, node_name, e.what());
  }
}

DType get_type(const Attributes& attributes, std::string_view name, DType otherwise) {
  return static_cast<DType>(attributes.between(name, 0, static_cast<int64_t>(DType::boolean), static_cast<int64_t>(otherwise)));
}

void set_type(Attributes& attributes, std::string_view name, DType type) { attributes.set(std::string(name), static_cast<int64_t>(type)); }

std::optional<Precision> runs_in(const Attributes& attributes) {
  if (!attributes.has(kRunsIn)) return {};
  return static_cast<Precision>(attributes.between(kRunsIn, 0, static_cast<int64_t>(Precision::float32), 0));
}

void set_runs_in(Attributes& attributes, Precision precision) { attributes.set(kRunsIn, static_cast<int64_t>(precision)); }

std::vector<TensorType> infer_same_as_input(const InferContext& context) {
  return std::vector<TensorType>(context.outputs, context.input(0));
}

std::vector<TensorType> infer_broadcast(const InferContext& context) {
  TensorType result = context.input(0);
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    if (context.input(i).dtype != result.dtype) {
      throw error(ErrorCode::unsupported, "input {} is {}, input 0 is {}", i, to_string(context.input(i).dtype), to_string(result.dtype));
    }
    result.shape = broadcast(result.shape, context.input(i).shape);
  }
  return {result};
}

std::vector<TensorType> infer_broadcast_bool(const InferContext& context) {
  std::vector<TensorType> result = infer_broadcast(context);
  result[0].dtype = DType::boolean;
  return result;
}

}  // namespace ort_train
