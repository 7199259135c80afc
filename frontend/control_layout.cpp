// What of a tensor's layout and type a layer of zeros has to know.

#include <algorithm>
#include <array>

#include "frontend/control_parts.h"
#include "frontend/importer.h"

namespace ort_train::importing {
namespace {

// Which axis of a tensor has its channels or features is told by the nearest of these that makes or reads it.
constexpr std::array kChannelsAreSecond{"Conv",
                                        "ConvTranspose",
                                        "BatchNormalization",
                                        "InstanceNormalization",
                                        "GroupNormalization",
                                        "MaxPool",
                                        "AveragePool",
                                        "LpPool",
                                        "GlobalMaxPool",
                                        "GlobalAveragePool",
                                        "LRN",
                                        "Resize",
                                        "Upsample",
                                        "DepthToSpace",
                                        "SpaceToDepth"};
constexpr std::array kFeaturesAreLast{"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Gather"};
// Between tensors of one layout.
constexpr std::array kKeepLayout{"Add",         "Sub",       "Mul",      "Div",     "Sum",   "Min",      "Max",      "Pow",
                                 "Relu",        "LeakyRelu", "PRelu",    "Sigmoid", "Tanh",  "Erf",      "Gelu",     "HardSwish",
                                 "HardSigmoid", "Mish",      "Elu",      "Selu",    "Celu",  "Softplus", "Softsign", "Swish",
                                 "Clip",        "Dropout",   "Identity", "Cast",    "Sqrt",  "Exp",      "Log",      "Neg",
                                 "Abs",         "Where",     "Concat",   "Slice",   "Split", "Pad",      "Softmax",  "LogSoftmax"};

template <size_t n> bool is_one_of(const onnx::NodeDef& node, const std::array<const char*, n>& ops) {
  return node.domain.empty() && std::find(ops.begin(), ops.end(), node.op_type) != ops.end();
}

// Whether that node's weight gives the number of channels or features of an activation that it makes or reads.
bool is_sized_by_weight(const ModelIndex& model, const onnx::NodeDef& node, const std::string& value) {
  constexpr std::array kWeightIsSecond{"Conv",
                                       "ConvTranspose",
                                       "BatchNormalization",
                                       "InstanceNormalization",
                                       "GroupNormalization",
                                       "LayerNormalization",
                                       "RMSNormalization",
                                       "SimplifiedLayerNormalization",
                                       "MatMul",
                                       "Gemm"};
  const auto is_weight = [&](size_t i) { return i < node.inputs.size() && model.weights_of.contains(node.inputs[i]); };
  if (node.domain.empty() && node.op_type == "Gather") return is_weight(0) && node.outputs[0] == value;
  return is_one_of(node, kWeightIsSecond) && is_weight(1) && (node.inputs[0] == value || node.outputs[0] == value);
}

const onnx::ValueDef* declared_value(const onnx::GraphDef& graph, const std::string& name) {
  if (const auto found = graph.declared.find(name); found != graph.declared.end()) return &found->second;
  for (const auto* values : {&graph.inputs, &graph.outputs}) {
    for (const onnx::ValueDef& value : *values) {
      if (value.name == name) return &value;
    }
  }
  return nullptr;
}

// Whether a size that no weight gives is the same for every batch: as the file says, or where only the number of samples may vary and the
// size is another.
bool is_declared_fixed(const ModelIndex& model, const std::string& name, size_t axis) {
  const onnx::ValueDef* const value = declared_value(model.graph, name);
  if (value != nullptr && axis < value->dims.size() && (value->dims[axis].size >= 0 || !value->dims[axis].name.empty()))
    return value->dims[axis].size >= 0;
  const std::set<std::string> initializers = initializer_names(model.graph);
  for (const onnx::ValueDef& input : model.graph.inputs) {
    if (initializers.contains(input.name)) continue;
    for (size_t i = 0; i < input.dims.size(); ++i) {
      if (input.dims[i].size >= 0) continue;
      const auto type = model.plain.activations.find(input.name);
      if (i > 0 || (type != model.plain.activations.end() && type->second.shape[0] == model.plain.activations.at(name).shape[axis]))
        return false;
    }
  }
  return true;
}

// Of a node's outputs those behind the first have other types than its inputs.
bool only_first_is_typed(const onnx::NodeDef& node) { return node.op_type.ends_with("Normalization"); }

// The type of what a node computes: that of its first floating-point input, but for Casts.
std::optional<DType> computed_type(const onnx::NodeDef& node, const std::unordered_map<std::string, DType>& types) {
  if (!node.domain.empty() || !node.graphs.empty()) return std::nullopt;
  if (node.op_type == "Cast") return onnx::cast_type(node);
  for (size_t i = node.op_type == "CastLike" ? 1 : 0; i < node.inputs.size(); ++i) {
    if (const auto type = types.find(node.inputs[i]); type != types.end() && is_floating(type->second)) return type->second;
  }
  return std::nullopt;
}

}  // namespace

Channels channels_of(const ModelIndex& model, const std::string& value) {
  const auto& activations = model.plain.activations;
  const Shape& shape = activations.at(value).shape;
  const size_t rank = shape.size();
  std::optional<size_t> axis;
  if (rank <= 2) axis = rank - 1;
  std::vector<std::string> near{value};
  constexpr size_t kFarthest = 1000;
  for (size_t at = 0; at < std::min(near.size(), kFarthest); ++at) {
    const std::string name = near[at];
    std::vector<size_t> nodes;
    if (const auto producer = model.producers.find(name); producer != model.producers.end()) nodes.push_back(producer->second);
    if (const auto readers = model.readers.find(name); readers != model.readers.end())
      nodes.insert(nodes.end(), readers->second.begin(), readers->second.end());
    for (const size_t i : nodes) {
      const onnx::NodeDef& node = model.graph.nodes[i];
      const bool second = is_one_of(node, kChannelsAreSecond), last = is_one_of(node, kFeaturesAreLast);
      if (!axis && (second || last)) axis = second ? 1 : rank - 1;
      if (axis && (second || last) && (rank <= 2 || *axis == (second ? 1 : rank - 1)) && is_sized_by_weight(model, node, name) &&
          activations.at(name).shape[*axis] == shape[*axis])
        return {.axis = *axis, .is_fixed = true, .are_second = *axis == 1 && rank > 2};
      if (!is_one_of(node, kKeepLayout)) continue;
      for (const auto* names : {&node.inputs, &node.outputs}) {
        for (const std::string& other : *names) {
          const auto type = activations.find(other);
          if (type != activations.end() && type->second.shape.size() == rank && std::find(near.begin(), near.end(), other) == near.end())
            near.push_back(other);
        }
      }
    }
  }
  if (!axis) axis = rank - 1;
  return {.axis = *axis, .is_fixed = is_declared_fixed(model, value, *axis), .are_second = *axis == 1 && rank > 2};
}

std::unordered_map<std::string, DType> file_types(const ModelIndex& model) {
  const onnx::GraphDef& graph = model.graph;
  std::unordered_map<std::string, DType> types;
  for (const onnx::TensorDef& tensor : graph.initializers) {
    if (tensor.dtype) types.emplace(tensor.name, *tensor.dtype);
  }
  for (const auto* values : {&graph.inputs, &graph.outputs}) {
    for (const onnx::ValueDef& value : *values) {
      if (value.dtype) types.emplace(value.name, *value.dtype);
    }
  }
  for (const auto& [name, value] : graph.declared) {
    if (value.dtype) types.emplace(name, *value.dtype);
  }
  for (const onnx::NodeDef& node : graph.nodes) {
    const auto tensor = node.tensors.find("value");
    const bool is_constant = node.op_type == "Constant" && tensor != node.tensors.end();
    const std::optional<DType> type = is_constant ? tensor->second.dtype : computed_type(node, types);
    for (size_t i = 0; type && i < (only_first_is_typed(node) ? 1 : node.outputs.size()); ++i) {
      const auto data = model.plain.activations.find(node.outputs[i]);
      const bool is_floating_data = data != model.plain.activations.end() && is_floating(data->second.dtype);
      if (is_constant || is_floating_data || model.weights_of.contains(node.outputs[i])) types.emplace(node.outputs[i], *type);
    }
  }
  return types;
}

}  // namespace ort_train::importing
