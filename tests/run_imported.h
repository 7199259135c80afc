// Runs what import made of a model: node by node, in ordinary memory, with the processor's kernels.

#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exec/kernel.h"
#include "frontend/import.h"
#include "frontend/weight_file.h"
#include "graph/op_def.h"

namespace ort_train::fixtures {

inline Tensor weight_tensor(const Imported& imported, const Weight& weight) {
  const Value& value = imported.graph.value(imported.graph.find_value(weight.parameter));
  Tensor tensor(value.dtype, value.shape);
  read_weight(weight.places.at(0), 0, tensor.dtype, tensor.bytes);
  return tensor;
}

// The model's outputs, by name; weights come from the file.
inline std::map<std::string, Tensor> run_imported(const Imported& imported, const std::map<std::string, Tensor>& inputs) {
  Workers workers(1);
  const Graph& graph = imported.graph;
  std::map<ValueId, Tensor> values;
  for (const auto& [name, tensor] : inputs) values[graph.find_value(name)] = tensor;
  for (const Weight& weight : imported.weights) values[graph.find_value(weight.parameter)] = weight_tensor(imported, weight);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> read;
    for (ValueId input : node.inputs)
      read.push_back(input == kNone ? nullptr : graph.constant(input) ? graph.constant(input) : &values.at(input));
    std::vector<Tensor> outputs = evaluate(*node.op, node.attributes, read, node.outputs.size(), workers);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(outputs[i]);
    }
  }
  std::map<std::string, Tensor> results;
  for (ValueId output : graph.outputs) results[graph.output_name(output)] = values.at(output);
  return results;
}

}  // namespace ort_train::fixtures
