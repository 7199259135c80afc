// FusedElementwise{ops, operands, ...}(inputs) -> y: elementwise ops one behind another (graph/fused_elementwise.h), in one pass over
// memory (passes/fuse_elementwise.cpp). Its bits are those of its ops.

#include "exec/fused_elementwise.h"

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<TensorType> infer(const InferContext& context) {
  std::vector<TensorType> inputs;
  for (size_t i = 0; i < context.inputs.size(); ++i) inputs.push_back(context.input(i));
  return {types_of_steps(fused_steps(context.attributes), inputs).back()};
}

FusedLoop loop_of(const KernelSpec& spec) { return FusedLoop(fused_steps(spec.attributes), spec.inputs); }

KernelRun prepare(const KernelSpec& spec) {
  return [loop = loop_of(spec), count = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
    args.workers().parallel_blocks(count, kElementBlock, [&](int64_t begin, int64_t end, int worker) {
      loop.run(begin, end, args.inputs.data(), args.outputs[0], args.workspace + worker * loop.bytes());
    });
  };
}
Workspace workspace(const KernelSpec& spec) { return {.each = loop_of(spec).bytes()}; }

Cost cost(const KernelSpec& spec) {
  Cost all = elementwise_cost<0>(spec);
  const std::vector<FusedStep> steps = fused_steps(spec.attributes);
  const std::vector<TensorType> made = types_of_steps(steps, spec.inputs);
  for (size_t i = 0; i < steps.size(); ++i) {
    const KernelSpec step = spec_of_step(steps[i], spec.inputs, made, made[i]);
    all.flops += cpu_kernels().find(*steps[i].op)->cost(step).flops;
  }
  return all;
}

}  // namespace

constexpr OpDef kFusedElementwise{
    .name = "FusedElementwise",
    .infer = infer,
    .no_gradient = kNoGradientOfFused,
};
constexpr Kernel kFusedElementwiseKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}, {.output = 0, .input = 2}, {.output = 0, .input = 3}},
    .cost = cost,
    .workspace = workspace,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
