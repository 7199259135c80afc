// What importers of nodes that draw random numbers share.

#pragma once

#include <algorithm>
#include <vector>

#include "exec/random.h"
#include "graph/dependence.h"
#include "graph/op_def.h"

namespace ort_train {

// Whether a value belongs to samples because what it is computed from does: inputs, or numbers that are drawn for samples.
inline bool depends_on_samples(const Graph& graph, ValueId value) {
  const std::vector<ValueId> behind = values_behind(graph, value);
  return std::any_of(behind.begin(), behind.end(), [&](ValueId id) {
    const Value& of = graph.value(id);
    if (of.kind == ValueKind::input) return of.name != kRandomInput;
    const Node* const maker = of.producer == kNone ? nullptr : &graph.node(of.producer);
    return maker && maker->op->random && maker->attributes.get("shared", 0) == 0;
  });
}

// kRandomInput of a graph.
inline ValueId random_input(Graph& graph) {
  if (const ValueId known = graph.find_value(kRandomInput); known != kNone) return known;
  const ValueId made = graph.add_value({.name = kRandomInput, .dtype = DType::int64, .shape = {kRandomNumbers}, .kind = ValueKind::input});
  graph.inputs.push_back(made);
  return made;
}

}  // namespace ort_train
