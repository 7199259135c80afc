// What a node is expected to take on a device: bound by its arithmetic or by its memory traffic. Steers plans, never results.

#pragma once

#include "exec/device.h"

namespace ort_train {

struct NodeWork {
  double flops = 0, seconds = 0;
};

NodeWork work_of(const Graph& graph, const Node& node, int threads, const ComputeRates& rates);
// On a machine that stands for all: for what has to be decided alike on each of them.
double nominal_seconds(const Graph& graph, const Node& node);

}  // namespace ort_train
