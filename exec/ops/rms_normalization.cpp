// RMSNormalization (ONNX RMSNormalization-23; Zhang and Sennrich, arXiv 1910.07467) over the axes from `axis` on:
// y = x / sqrt(mean(x^2) + epsilon) * scale.
//
// Outputs y and inv_rms (one number a row), which is saved beside x. With g = dy * scale and h = x * inv_rms:
// dx = inv_rms * (g - h * mean(g * h)), dscale = sum over rows of dy * h.

#include "exec/lane_rows.h"
#include "exec/map_elements.h"
#include "exec/normalization.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

KernelRun forward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[0], spec.inputs[1], spec.outputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[0].shape);
    return [layout, epsilon = C(spec.attributes.get("epsilon", 1e-5f))](const KernelArgs& args) {
      const int64_t n = layout.n;
      const S* scale = args.in<S>(1);
      C* inv_rms = args.out<C>(1);
      args.workers().parallel_blocks(layout.rows, layout.rows_per_task(), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const X* x = args.in<X>(0) + r * n;
          Y* y = args.out<Y>(0) + r * n;
          const C squares = sum_rows<X>(
              n, [](C lane, C value) { return math::fma(value, value, lane); }, x);
          const C inverse = C(1) / math::sqrt(squares / static_cast<C>(n) + epsilon);
          map_elements(
              y, n, [inverse](auto of_x, auto factor) { return of_x * inverse * factor; }, x, scale);
          if (inv_rms) inv_rms[r] = inverse;
        }
      });
    };
  });
}

// dx of one row; dscale (null or n partial sums) takes in the row.
template <bool with_scale, typename Y, typename X, typename S, typename C = Compute<X>>
void gradient_row(const Y* dy, const X* x, const S* scale, X* dx, C* dscale, int64_t n, C inv_rms) {
  const auto add = [&](C lane, C d, C factor, C value) { return math::fma(d * factor, value * inv_rms, lane); };
  const C sum = sum_rows<X>(n, add, dy, scale, x);
  const C mean = sum / static_cast<C>(n);
  if (with_scale) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dscale[i] = math::fma(load(dy[i]), load(x[i]) * inv_rms, dscale[i]);
  }
  map_elements(
      dx, n, [=](C d, C value, C factor) { return inv_rms * (d * factor - value * inv_rms * mean); }, dy, x, scale);
}

KernelRun backward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[1], spec.inputs[2], spec.inputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[1].shape);
    return [layout, with_scale = spec.outputs.size() > 1](const KernelArgs& args) {
      const int64_t n = layout.n;
      const Y* const dy = args.in<Y>(0);
      const X* const x = args.in<X>(1);
      const S* const scale = args.in<S>(2);
      const C* inv_rms = args.in<C>(3);
      X* const dx = args.out<X>(0);
      C* partial = with_scale ? reinterpret_cast<C*>(args.workspace) : nullptr;
      args.workers().parallel_for(layout.blocks(), [&](int64_t block, int) {
        C* dscale = partial ? partial + block * n : nullptr;
        if (dscale) std::fill(dscale, dscale + n, C(0));
        const int64_t end = std::min(layout.rows, (block + 1) * layout.block_rows());
        for (int64_t r = block * layout.block_rows(); r < end; ++r) {
          if (dscale)
            gradient_row<true>(dy + r * n, x + r * n, scale, dx + r * n, dscale, n, inv_rms[r]);
          else
            gradient_row<false>(dy + r * n, x + r * n, scale, dx + r * n, dscale, n, inv_rms[r]);
        }
      });
      if (!partial) return;
      S* const sums[1] = {args.out<S>(1)};
      add_partials<S>(layout, partial, 1, sums, args.workers());
    };
  });
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0], inv_rms = node.outputs[1];
  const std::vector<ValueId> gradients = g.emit_many("RMSNormalizationGrad", {g.output_gradient(0), x, node.inputs[1], inv_rms},
                                                     gradient_attributes(node), g.wants(1) ? 2 : 1);
  if (g.wants(1)) g.input_gradient(1, gradients[1]);
  if (!g.wants(0)) return;
  ValueId dx = gradients[0];
  if (g.has_output_gradient(1)) {  // rare: the model reads inv_rms too; dinv_rms/dx = -inv_rms^3 * x / n
    const ValueId per_element = g.scalar_like(inv_rms, 1.0 / static_cast<double>(row_layout(node.attributes, g.shape(x)).n));
    const ValueId cube = g.emit("Mul", {g.emit("Mul", {inv_rms, inv_rms}), inv_rms});
    const ValueId slope = g.emit("Mul", {g.emit("Mul", {cube, per_element}), g.output_gradient(1)});
    dx = g.emit("Sub", {dx, g.emit("Mul", {x, g.cast(slope, g.dtype(x))})});
  }
  g.input_gradient(0, dx);
}

void lower(Lowering& l) {  // SimplifiedLayerNormalization has the second output too
  const std::vector<ValueId> results = emit_normalization(l, "RMSNormalization", l.input(0), l.input(1), kNone,
                                                          l.node.attributes.get("axis", -1), l.node.attributes.get("epsilon", 1e-5f), 2);
  l.output_all(results);
}

// com.microsoft SkipSimplifiedLayerNormalization(x, skip, scale, bias of the sum?) -> y, (unused), inv_rms?, sum?
void lower_skip(Lowering& l) {
  ValueId sum = l.emit("Add", {l.input(0), l.input(1)});
  if (l.has(3)) sum = l.emit("Add", {sum, l.input(3)});
  const std::vector<ValueId> results =
      emit_normalization(l, "RMSNormalization", sum, l.input(2), kNone, -1, l.node.attributes.get("epsilon", 1e-12f), 2);
  l.output(0, results[0]);
  if (l.node.outputs > 2) l.output(2, results[1]);
  if (l.node.outputs > 3) l.output(3, sum);
}

}  // namespace

constexpr OpDef kRMSNormalization{
    .name = "RMSNormalization",
    .onnx = {{.domain = "", .name = "RMSNormalization", .since = 23, .lower = lower},
             {.domain = "", .name = "SimplifiedLayerNormalization", .since = 1, .lower = lower},
             {.domain = "com.microsoft", .name = "SimplifiedLayerNormalization", .lower = lower, .inputs = 2, .outputs = 2},
             {.domain = "com.microsoft", .name = "SkipSimplifiedLayerNormalization", .lower = lower_skip, .inputs = 4, .outputs = 4}},
    .infer = [](const InferContext& context) { return infer_normalization(context, 1); },
    .gradient = gradient,
    .traits = {.precision = kNormalizationPrecision, .along = along_axes_before},
};
constexpr Kernel kRMSNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<6>,
    .prepare = forward,
};

// (dy, x, scale, inv_rms) -> dx, dscale?
constexpr OpDef kRMSNormalizationGrad{
    .name = "RMSNormalizationGrad",
    .infer = infer_normalization_gradient,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kRMSNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<12>,
    .workspace = scale_gradient_workspace<1>,
    .prepare = backward,
};

ORT_TRAIN_OPS_END
