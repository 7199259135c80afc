// What a value is computed from.

#pragma once

#include <vector>

#include "graph/graph.h"

namespace ort_train {

// All values that a value is computed from, and itself, each once.
std::vector<ValueId> values_behind(const Graph& graph, ValueId value);
// The graph's inputs among these.
std::vector<ValueId> inputs_behind(const Graph& graph, ValueId value);

}  // namespace ort_train
