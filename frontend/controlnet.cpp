#include "frontend/controlnet.h"

#include <algorithm>
#include <charconv>

#include "frontend/control_parts.h"
#include "frontend/importer.h"
#include "graph/error.h"

namespace ort_train {

ControlNet control_net(const Options& options) {
  ControlNet control{.blocks = options.control};
  if (options.control_input.empty()) return control;
  if (!control.is_on())
    throw error(ErrorCode::usage, "`control_input` {} is the condition of copied blocks: say with `control` which", options.control_input);
  const auto wrong = [&] {
    return error(ErrorCode::usage, "`control_input` '{}' is not NAME=SIZE,SIZE,…: the sizes of one sample, or names of dimensions",
                 options.control_input);
  };
  const size_t equals = options.control_input.find('=');
  if (equals == std::string::npos || equals == 0) throw wrong();
  control.condition = options.control_input.substr(0, equals);
  for (std::string_view rest = std::string_view(options.control_input).substr(equals + 1); !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    control.dimensions.emplace_back(rest.substr(0, end));
    if (control.dimensions.back().empty()) throw wrong();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (control.dimensions.empty()) throw wrong();
  return control;
}

namespace importing {

std::set<std::string> all_names(const onnx::GraphDef& graph) {
  std::set<std::string> names = initializer_names(graph);
  names.insert(graph.sparse_initializers.begin(), graph.sparse_initializers.end());
  for (const auto* values : {&graph.inputs, &graph.outputs}) {
    for (const onnx::ValueDef& value : *values) names.insert(value.name);
  }
  for (const onnx::NodeDef& node : graph.nodes) {
    names.insert(node.outputs.begin(), node.outputs.end());
    for (const auto& [attribute, inner] : node.graphs) names.merge(all_names(*inner));
  }
  return names;
}

}  // namespace importing

std::vector<onnx::ValueDef> add_condition(const ControlNet& control, onnx::GraphDef& graph) {
  if (control.condition.empty()) return {};
  const auto refuse = [&](const char* why) { return error(ErrorCode::usage, "`control_input` {}: {}", control.condition, why); };
  const std::set<std::string> initializers = importing::initializer_names(graph);
  const onnx::ValueDef* first = nullptr;
  for (const onnx::ValueDef& input : graph.inputs) {
    if (input.name == control.condition) throw refuse("the model has an input of that name: choose another");
    if (first == nullptr && input.dtype && !input.dims.empty() && !initializers.contains(input.name)) first = &input;
  }
  if (importing::all_names(graph).contains(control.condition)) throw refuse("the model has a tensor of that name: choose another");
  if (first == nullptr) throw refuse("no input of the model has an axis of samples, whose name and size the condition's would be");
  const DType dtype = importing::weight_type_of(graph);
  onnx::ValueDef value{.name = control.condition, .type = std::string(to_string(dtype)), .dtype = dtype, .has_shape = true};
  value.dims.push_back(first->dims[0]);  // the batch
  for (const std::string& text : control.dimensions) {
    onnx::DimDef dim;
    const char* const end = text.data() + text.size();
    const auto [at, problem] = std::from_chars(text.data(), end, dim.size);
    if (at != end)
      dim = {.size = -1, .name = text};
    else if (problem != std::errc() || dim.size < 1)
      throw refuse("a dimension is at least 1, and a number of 63 bits");
    value.dims.push_back(dim);
  }
  graph.inputs.push_back(value);
  return {value};
}

}  // namespace ort_train
