// ONNX files, of any bytes.

#include <optional>

#include "exec/kernel.h"
#include "frontend/import.h"
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "tests/fuzz/fuzz.h"

namespace ort_train::fuzz {
namespace {

constexpr int64_t kSmall = int64_t{1} << 16;  // bytes of a node's tensors, for it to be run
constexpr double kQuick = 0x1p22;             // its operations

Workers& workers() {
  static Workers one(1);
  return one;
}

bool is_small(const KernelSpec& spec, const Cost& cost) {
  int64_t bytes = 0;
  for (const auto* types : {&spec.inputs, &spec.outputs}) {
    for (const TensorType& type : *types) bytes += type.bytes();
  }
  return bytes <= kSmall && cost.flops + cost.bytes <= kQuick;
}

// Runs the nodes one after the other, on zeros where nothing is known; those that are large are left out.
void run_nodes(const Graph& graph) {
  std::vector<std::optional<Tensor>> values(graph.value_count());
  const auto value = [&](ValueId id) -> const Tensor* {
    if (id == kNone) return nullptr;
    if (const Tensor* constant = graph.constant(id)) return constant;
    if (!values[id]) values[id] = Tensor(graph.value(id).dtype, graph.value(id).shape);
    return &*values[id];
  };
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const KernelSpec spec = make_spec(graph, node);
    if (!cpu_kernels().refusal(*node.op, spec).empty()) continue;
    const Kernel& kernel = cpu_kernels().at(*node.op, spec);
    const Cost cost = kernel.cost ? kernel.cost(spec) : Cost{};
    workspace_bytes(kernel, spec, 1);
    if (!is_small(spec, cost)) continue;
    std::vector<const Tensor*> inputs;
    for (ValueId input : node.inputs) inputs.push_back(value(input));
    try {
      std::vector<Tensor> results = evaluate(*node.op, node.attributes, inputs, node.outputs.size(), workers());
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(results[i]);
      }
    } catch (const Error& e) {  // no kernel for such elements, an index outside …
      if (e.code() == ErrorCode::internal) throw;
    }
  }
}

// The gradient of the sum of an output's elements.
void differentiate_output(Graph graph, ValueId output) {
  if (!is_floating(graph.value(output).dtype) || !find_blockers(graph, {output}).empty()) return;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < graph.value(output).shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  const ValueId loss = Builder(graph).emit("ReduceSum", {output}, {{"axes", axes}, {"keepdims", int64_t{0}}});
  const auto gradients = differentiate(graph, loss);
  for (const auto& [parameter, gradient] : gradients) graph.outputs.push_back(gradient);
  graph.verify("differentiate");
  run_nodes(graph);
}

}  // namespace

void exercise_model(const std::string& path) {
  ImportOptions options;
  for (const DeclaredInput& input : declared(path).inputs) {
    for (size_t axis = 0; axis < input.dims.size(); ++axis)
      options.shapes[input.dims[axis].empty() ? input.name + "." + std::to_string(axis) : input.dims[axis]] = 2;
  }
  // Dimensions that are numbers need none, and one too many is an error.
  std::erase_if(options.shapes, [](const auto& entry) { return entry.first.find_first_not_of("0123456789") == std::string::npos; });
  const Imported imported = import_model(path, options, workers());
  for (ValueId output : imported.graph.outputs) find_blockers(imported.graph, {output});
  if (!imported.graph.outputs.empty()) differentiate_output(imported.graph, imported.graph.outputs[0]);
}

void fuzz_model(Bytes bytes) { exercise_model(write("model.onnx", bytes)); }

}  // namespace ort_train::fuzz
