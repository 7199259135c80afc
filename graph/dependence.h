// What a value is computed from.

#pragma once

#include <vector>

#include "graph/graph.h"

namespace ort_train {

// The graph's inputs that a value depends on (itself, if it is one), each once.
std::vector<ValueId> inputs_behind(const Graph& graph, ValueId value);

}  // namespace ort_train
