// What a node is expected to take on this machine: bound by its arithmetic or by its memory traffic. Steers plans, never results.

#pragma once

#include "exec/kernel.h"

namespace ort_train {

struct ComputeRates {
  double flops = 1e11;                 // of matrix products, per second
  double element_flops = 5e10;         // of exp, tanh, erf and the like
  double bytes_per_second = 1e10;      // of memory that is in the cache, in part
  double far_bytes_per_second = 1e10;  // of more memory than any cache holds
  bool operator==(const ComputeRates&) const = default;
};

struct NodeWork {
  double flops = 0, seconds = 0;
};

NodeWork work_of(const Graph& graph, const Node& node, int threads, const ComputeRates& rates);
// On a machine that stands for all: for what has to be decided alike on each of them.
double nominal_seconds(const Graph& graph, const Node& node);

}  // namespace ort_train
