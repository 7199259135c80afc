#include <algorithm>
#include <memory>

#include "exec/kernel.h"

namespace ort_train {

KernelSpec make_spec(const Graph& graph, const Node& node) {
  KernelSpec spec;
  spec.attributes = node.attributes;
  for (ValueId input : node.inputs) {
    spec.present.push_back(input != kNone);
    spec.inputs.push_back(input == kNone ? TensorType{} : graph.value(input).type());
    spec.constants.push_back(graph.constant(input));
  }
  for (ValueId output : node.outputs) spec.outputs.push_back(output == kNone ? TensorType{} : graph.value(output).type());
  return spec;
}

std::vector<Tensor> evaluate(const OpDef& op, const Attributes& attributes, const std::vector<const Tensor*>& inputs, size_t outputs,
                             Workers& workers) {
  KernelSpec spec;
  spec.attributes = attributes;
  InferContext context{.attributes = attributes, .inputs = {}, .constants = inputs, .outputs = outputs};
  for (const Tensor* input : inputs) {
    spec.present.push_back(input != nullptr);
    spec.inputs.push_back(input ? input->type() : TensorType{});
    spec.constants.push_back(input);
  }
  for (size_t i = 0; i < inputs.size(); ++i) context.inputs.push_back(inputs[i] ? &spec.inputs[i] : nullptr);
  spec.outputs = op.infer(context);
  const Kernel& kernel = cpu_kernels().at(op, spec);
  const KernelRun run = prepare(kernel, spec);

  std::vector<Tensor> results;
  for (const TensorType& type : spec.outputs) results.emplace_back(type.dtype, type.shape);
  for (const Alias& write : op.writes) {  // state: the result starts as a copy of what it changes
    if (static_cast<size_t>(write.output) < results.size() && inputs[write.input]) results[write.output] = *inputs[write.input];
  }
  std::vector<const void*> in;
  for (const Tensor* input : inputs) in.push_back(input ? input->bytes.data() : nullptr);
  for (const Alias& write : op.writes) {
    if (static_cast<size_t>(write.output) < results.size() && inputs[write.input]) in[write.input] = results[write.output].bytes.data();
  }
  std::vector<void*> out;
  for (Tensor& result : results) out.push_back(result.bytes.data());
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes(kernel, spec, workers.threads())) + 64);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) & ~uintptr_t{63});
  DataError wrong;
  run({.inputs = in, .outputs = out, .workspace = aligned, .queue = &workers, .error = &wrong});
  wrong.check();
  return results;
}

Folder make_folder(Workers& workers, const FoldingLimits& limits) {
  // Copies of the Folder share what is left.
  return [&workers, limits, left = std::make_shared<FoldingLimits>(limits)](const Graph& graph, const Node& node) -> std::vector<Tensor> {
    const OpDef& op = *node.op;
    KernelSpec spec = make_spec(graph, node);
    spec.outputs = infer_types(graph, op, node.inputs, node.attributes, node.outputs.size(), node.name);
    if (!cpu_kernels().refusal(op, spec).empty()) return {};
    const Kernel& kernel = *cpu_kernels().find(op);
    int64_t bytes = 0;
    for (const TensorType& type : spec.outputs) bytes += type.bytes();
    if (bytes > std::min(limits.node_bytes, left->bytes)) return {};
    const Cost cost = kernel.cost ? kernel.cost(spec) : Cost{};
    const double work = cost.flops + cost.bytes;
    if (work > left->work || workspace_bytes(kernel, spec, workers.threads()) > limits.node_bytes) return {};
    left->bytes -= bytes;
    left->work -= work;
    std::vector<const Tensor*> inputs;
    for (ValueId input : node.inputs) inputs.push_back(graph.constant(input));
    return evaluate(op, node.attributes, inputs, node.outputs.size(), workers);
  };
}

}  // namespace ort_train
