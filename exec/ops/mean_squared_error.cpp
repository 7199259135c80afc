// SquaredError(prediction, target) -> loss_sum [] = sum of (prediction - target)^2; the mean is a division by the number of elements.
//
// Summed in double, in lanes of fixed blocks (exec/lanes.h), in ascending order; loss_sum is float32 or wider. Saves both inputs.

#include "exec/ops/mean_squared_error.h"

#include <algorithm>

#include "exec/lanes.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<TensorType> infer_squared_error(const InferContext& context) {
  if (context.input(0) != context.input(1)) {
    throw error(ErrorCode::unsupported, "the prediction is {}, the target {}", to_string(context.input(0)), to_string(context.input(1)));
  }
  return {{compute_type(context.input(0).dtype), {}}};
}

KernelRun make_squared_error(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [n = element_count(spec.inputs[0].shape), blocks = squares_blocks(spec)](const KernelArgs& args) {
      auto* partial = reinterpret_cast<double*>(args.workspace);
      args.workers().parallel_for(blocks, [&](int64_t block, int) {
        const int64_t begin = block * kSquaresBlock;
        const T *a = args.in<T>(0) + begin, *b = args.in<T>(1) + begin;
        partial[block] =
            sum_row_in_double<T>(std::min(kSquaresBlock, n - begin), [&](int64_t i) { return squared_difference(load(a[i]), load(b[i])); });
      });
      double sum = 0;
      for (int64_t block = 0; block < blocks; ++block) sum += partial[block];
      *args.out<Compute<T>>(0) = static_cast<Compute<T>>(sum);
    };
  });
}

void squared_error_gradient(const Node& node, GradientBuilder& g) {
  const ValueId difference = g.emit("Sub", {node.inputs[0], node.inputs[1]});
  ValueId scale = g.emit("Mul", {g.output_gradient(0), g.scalar_like(g.output_gradient(0), 2)});
  if (g.dtype(scale) != g.dtype(difference)) scale = g.emit("Cast", {scale}, {{"to", static_cast<int64_t>(g.dtype(difference))}});
  const ValueId d = g.emit("Mul", {difference, scale});
  g.input_gradient(0, d);
  if (g.wants(1)) g.input_gradient(1, g.emit("Neg", {d}));
}

}  // namespace

constexpr OpDef kSquaredError{
    .name = "SquaredError",
    .infer = infer_squared_error,
    .gradient = squared_error_gradient,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kSquaredErrorKernel{
    .types = kFloating,
    .cost = elementwise_cost<3>,
    .workspace = squared_error_workspace,
    .prepare = make_squared_error,
};

ORT_TRAIN_OPS_END
