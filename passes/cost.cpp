#include "passes/cost.h"

#include <algorithm>

namespace ort_train {
namespace {

constexpr double kDispatch = 3e-6;  // seconds that an instruction takes, however small

}  // namespace

NodeWork work_of(const Graph& graph, const Node& node, int threads, const ComputeRates& rates) {
  Cost cost;
  if (node.op->cost != nullptr) {
    cost = node.op->cost(make_spec(graph, node, threads));
  } else {
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (ValueId value : *values) cost.bytes += value == kNone ? 0 : static_cast<double>(graph.value(value).bytes());
    }
  }
  return {.flops = cost.flops, .seconds = kDispatch + std::max(cost.flops / rates.flops, cost.bytes / rates.bytes_per_second)};
}

}  // namespace ort_train
