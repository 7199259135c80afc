#include "passes/cost.h"

#include <algorithm>

namespace ort_train {
namespace {

constexpr double kDispatch = 2e-7;  // seconds that an instruction takes, however small
constexpr double kWaking = 3e-6;    // more where there are several threads: they come late to a small one, if at all
constexpr double kFar = 96e6;       // bytes that no cache holds
constexpr double kMovement = 2;     // times as long as arithmetic on as many bytes takes what only moves them: in strides, mostly

// Whether a product's operands are of 16 bits, or are rounded to these.
bool is_of_halves(const KernelSpec& spec) {
  const auto is_half_input = [&](size_t i) { return spec.has(i) && is_half(spec.inputs[i].dtype); };
  return spec.attributes.has(kComputeType) || (is_half_input(0) && is_half_input(1));
}

}  // namespace

NodeWork work_of(const Graph& graph, const Node& node, int threads, const ComputeRates& rates) {
  Cost cost;
  double efficiency = 0;
  const Kernel* const kernel = cpu_kernels().find(*node.op);
  if (kernel && kernel->cost) {
    const KernelSpec spec = make_spec(graph, node);
    cost = kernel->cost(spec);
    if (kernel->efficiency) efficiency = kernel->efficiency(spec, threads);
    if (rates.launch > 0 && efficiency > 0)
      efficiency = is_of_halves(spec) && rates.half_flops > 0 ? rates.half_flops / rates.flops : 1;  // no processor
  } else {
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (ValueId value : *values) cost.bytes += value == kNone ? 0 : static_cast<double>(graph.value(value).bytes());
    }
  }
  if (cost.flops == 0 && cost.bytes == 0) return {};  // a view
  const double start = rates.launch > 0 ? rates.launch : kDispatch + (threads > 1 ? kWaking : 0);
  const double bytes = cost.bytes / (cost.bytes > kFar ? rates.far_bytes_per_second : rates.bytes_per_second);
  // Products wait for their operands: each tile begins with what isn't there yet, and ends with writing.
  if (efficiency > 0) return {.flops = cost.flops, .seconds = start + cost.flops / (efficiency * rates.flops) + bytes};
  return {.flops = cost.flops, .seconds = start + std::max(cost.flops / rates.element_flops, (cost.flops > 0 ? 1 : kMovement) * bytes)};
}

DType half_products_of(const Graph& graph) {
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const Kernel* const kernel = cpu_kernels().find(*node.op);
    if (kernel == nullptr || kernel->efficiency == nullptr) continue;
    const KernelSpec spec = make_spec(graph, node);
    if (is_of_halves(spec)) return get_type(spec.attributes, kComputeType, spec.inputs[0].dtype);
  }
  return DType::float32;
}

double nominal_seconds(const Graph& graph, const Node& node) { return work_of(graph, node, /*threads=*/2, ComputeRates{}).seconds; }

}  // namespace ort_train
