// What a node is expected to take on a device: bound by its arithmetic or by its memory traffic. Steers plans, never results.

#pragma once

#include "exec/device.h"

namespace ort_train {

struct NodeWork {
  double flops = 0, seconds = 0;
};

NodeWork work_of(const Graph& graph, const Node& node, int threads, const ComputeRates& rates);
// The 16-bit type in which a graph's products are made, of several that of the first; float32: in none.
DType half_products_of(const Graph& graph);
// On a machine that stands for all: for what has to be decided alike on each of them.
double nominal_seconds(const Graph& graph, const Node& node);

}  // namespace ort_train
