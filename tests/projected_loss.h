// What gradients of a model's inputs are tested with: inputs that are trained, and a loss of all outputs.

#pragma once

#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ort_train::fixtures {

// Makes an input of the graph a trained parameter.
inline void train_input(Graph& graph, ValueId input) {
  graph.value(input).kind = ValueKind::parameter;
  graph.value(input).trainable = true;
  std::erase(graph.inputs, input);
}

// The sum of the graph's outputs times fixed numbers: numbers_of(output) is a Tensor of the output's type.
template <typename NumbersOf> ValueId projected_loss(Builder& builder, NumbersOf&& numbers_of) {
  const Graph& graph = builder.graph();
  ValueId loss = kNone;
  for (const ValueId output : std::vector(graph.outputs)) {
    const ValueId product = builder.emit("Mul", {output, builder.constant(numbers_of(output))});
    const ValueId sum = builder.emit("ReduceSum", {builder.reshape(product, {element_count(graph.value(output).shape)})},
                                     {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
    loss = loss == kNone ? sum : builder.emit("Add", {loss, sum});
  }
  return loss;
}

}  // namespace ort_train::fixtures
