// DoraScale{scale}(magnitude [out], squares [out], wa [rank, out], ba [out, rank], b [out, rank]) -> factor [out], inverse [out]
// What the rows of a weight with its adapter are multiplied by so that they have their trained magnitudes (DoRA, Liu et al., arXiv
// 2402.09353):
//
//   inverse = 1 / ||W + s B A||, factor = magnitude * inverse, by row
//
// The sum isn't made for that: of row o, ||W + s B A||^2 = squares_o + sum over k of b_ok (2 s wa_ko + s^2 ba_ok), with squares those of
// W's rows, wa = A W' and ba = B (A A'). The norm counts as a constant (section 4.3 of the paper): gradients go to the magnitude alone.

#include "exec/ops/dora.h"

#include "exec/element_types.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &magnitude = context.input(0), &wa = context.input(2);
  if (magnitude.shape.size() != 1 || wa.shape.size() != 2)
    throw error(ErrorCode::unsupported, "{} and {} are no magnitudes and products of an adapter", to_string(magnitude), to_string(wa));
  const int64_t rows = magnitude.shape[0], rank = wa.shape[0];
  const Shape wanted[] = {{rows}, {rows}, {rank, rows}, {rows, rank}, {rows, rank}};
  for (size_t i = 0; i < 5; ++i) {
    if (context.input(i) != TensorType{magnitude.dtype, wanted[i]})
      throw error(ErrorCode::unsupported, "input {} is {}, but must be {}", i, to_string(context.input(i)),
                  to_string(TensorType{magnitude.dtype, wanted[i]}));
  }
  return {magnitude, magnitude};
}

void gradient(const Node& node, GradientBuilder& g) {
  if (g.wants(0) && g.has_output_gradient(0)) g.input_gradient(0, g.emit("Mul", {g.output_gradient(0), node.outputs[1]}));
}

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [spec](const KernelArgs& args) {
      const DoraRow<T> row = dora_rows<T>(spec, args);
      constexpr int64_t kWork = 1 << 14;  // of a task
      args.workers().parallel_blocks(row.rows, std::max<int64_t>(16, kWork / std::max<int64_t>(1, row.rank)),
                                     [&](int64_t begin, int64_t end) {
                                       for (int64_t o = begin; o < end; ++o) row(o);
                                     });
    };
  });
}

}  // namespace

constexpr OpDef kDoraScale{
    .name = "DoraScale",
    .infer = infer,
    .gradient = gradient,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kDoraScaleKernel{
    .types = kWide,
    .cost = dora_cost,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
