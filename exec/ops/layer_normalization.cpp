// LayerNormalization (ONNX LayerNormalization-17; Ba et al., arXiv 1607.06450) over the axes from `axis` on:
// y = (x - mean) / sqrt(variance + epsilon) * scale + bias, the variance from a second reading of the row.
//
// Outputs y, mean, inv_std_dev: always three here, whatever the ONNX node has. Saves x, mean and inv_std_dev (one number a row), not y.
// With g = dy * scale and h = (x - mean) * inv_std_dev: dx = inv_std_dev * (g - mean(g) - h * mean(g * h)), dscale = sum over rows of dy *
// h, dbias = sum over rows of dy.

#include "exec/lane_rows.h"
#include "exec/map_elements.h"
#include "exec/normalization.h"
#include "exec/op_list.h"
#include "exec/ops/contrib_attention.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename C> struct RowMoments { C mean, inv_std_dev; };

template <typename T, typename C = Compute<T>> RowMoments<C> moments(const T* x, int64_t n, C epsilon) {
  const C mean = sum_rows<T>(
                     n, [](C lane, C value) { return lane + value; }, x) /
                 static_cast<C>(n);
  const auto add = [&](C lane, C value) {
    const C d = value - mean;
    return math::fma(d, d, lane);
  };
  const C squares = sum_rows<T>(n, add, x);
  return {mean, C(1) / math::sqrt(squares / static_cast<C>(n) + epsilon)};
}

template <typename X, typename S, typename Y>
void normalize_row(const X* x, const S* scale, const S* bias, Y* y, int64_t n, RowMoments<Compute<X>> m) {
  if (bias) {
    map_elements(
        y, n, [m](auto of_x, auto factor, auto added) { return math::fma((of_x - m.mean) * m.inv_std_dev, factor, added); }, x, scale,
        bias);
  } else {
    map_elements(
        y, n, [m](auto of_x, auto factor) { return (of_x - m.mean) * m.inv_std_dev * factor; }, x, scale);
  }
}

KernelRun forward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[0], spec.inputs[1], spec.outputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[0].shape);
    const C epsilon = spec.attributes.get("epsilon", 1e-5f);
    const bool with_bias = spec.has(2);
    return [layout, epsilon, with_bias](const KernelArgs& args) {
      const int64_t n = layout.n;
      const X* const x = args.in<X>(0);
      const S *const scale = args.in<S>(1), *const bias = with_bias ? args.in<S>(2) : nullptr;
      Y* const y = args.out<Y>(0);
      C *mean = args.out<C>(1), *inv_std_dev = args.out<C>(2);
      args.workers().parallel_blocks(layout.rows, layout.rows_per_task(), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const RowMoments<C> m = moments(x + r * n, n, epsilon);
          normalize_row(x + r * n, scale, bias, y + r * n, n, m);
          if (mean) mean[r] = m.mean;
          if (inv_std_dev) inv_std_dev[r] = m.inv_std_dev;
        }
      });
    };
  });
}

// dx of one row; dscale and dbias (null or n partial sums) take in the row.
template <bool with_scale, typename Y, typename X, typename S, typename C = Compute<X>>
void gradient_row(const Y* dy, const X* x, const S* scale, X* dx, C* dscale, C* dbias, int64_t n, RowMoments<C> m) {
  const auto add = [&](C& of_g, C& of_gh, C d, C factor, C value) {
    const C g = d * factor;
    of_g += g;
    of_gh = math::fma(g, (value - m.mean) * m.inv_std_dev, of_gh);
  };
  const TwoSums<C> sums = sum_rows_twice<X>(n, add, dy, scale, x);
  const C mean_g = sums.first / static_cast<C>(n), mean_gh = sums.second / static_cast<C>(n);
  if (with_scale) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const C d = load(dy[i]);
      dscale[i] = math::fma(d, (load(x[i]) - m.mean) * m.inv_std_dev, dscale[i]);
      dbias[i] += d;
    }
  }
  const auto of_x = [=](C d, C value, C factor) {
    return m.inv_std_dev * (d * factor - mean_g - (value - m.mean) * m.inv_std_dev * mean_gh);
  };
  map_elements(dx, n, of_x, dy, x, scale);
}

KernelRun backward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[1], spec.inputs[2], spec.inputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[1].shape);
    const size_t outputs = spec.outputs.size();
    return [layout, outputs](const KernelArgs& args) {
      const int64_t n = layout.n;
      const Y* const dy = args.in<Y>(0);
      const X* const x = args.in<X>(1);
      const S* const scale = args.in<S>(2);
      const C *mean = args.in<C>(3), *inv_std_dev = args.in<C>(4);
      X* const dx = args.out<X>(0);
      C* partial = outputs > 1 ? reinterpret_cast<C*>(args.workspace) : nullptr;
      args.workers().parallel_for(layout.blocks(), [&](int64_t block, int) {
        C* dscale = partial ? partial + block * 2 * n : nullptr;
        if (dscale) std::fill(dscale, dscale + 2 * n, C(0));
        const int64_t end = std::min(layout.rows, (block + 1) * layout.block_rows());
        for (int64_t r = block * layout.block_rows(); r < end; ++r) {
          const RowMoments<C> m{mean[r], inv_std_dev[r]};
          if (dscale)
            gradient_row<true>(dy + r * n, x + r * n, scale, dx + r * n, dscale, dscale + n, n, m);
          else
            gradient_row<false>(dy + r * n, x + r * n, scale, dx + r * n, dscale, dscale, n, m);
        }
      });
      if (!partial) return;
      S* const sums[2] = {args.out<S>(1), outputs > 2 ? args.out<S>(2) : nullptr};
      add_partials<S>(layout, partial, 2, sums, args.workers());
    };
  });
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0], mean = node.outputs[1], inv_std_dev = node.outputs[2];
  const bool with_bias = node.inputs.size() > 2 && node.inputs[2] != kNone;
  const size_t outputs = with_bias && g.wants(2) ? 3 : g.wants(1) ? 2 : 1;
  const std::vector<ValueId> gradients = g.emit_many("LayerNormalizationGrad", {g.output_gradient(0), x, node.inputs[1], mean, inv_std_dev},
                                                     gradient_attributes(node), outputs);
  if (g.wants(1)) g.input_gradient(1, gradients[1]);
  if (g.wants(2)) g.input_gradient(2, gradients[2]);
  if (!g.wants(0)) return;
  // Rare: the model reads the statistics too. dmean/dx = 1/n, dinv_std_dev/dx = -inv_std_dev^3 * (x - mean) / n.
  ValueId dx = gradients[0];
  const ValueId per_element = g.scalar_like(mean, 1.0 / static_cast<double>(row_layout(node.attributes, g.shape(x)).n));
  const auto like_x = [&](ValueId of_rows) { return g.cast(of_rows, g.dtype(x)); };
  if (g.has_output_gradient(1)) dx = g.emit("Add", {dx, like_x(g.emit("Mul", {g.output_gradient(1), per_element}))});
  if (g.has_output_gradient(2)) {
    const ValueId cube = g.emit("Mul", {g.emit("Mul", {inv_std_dev, inv_std_dev}), inv_std_dev});
    const ValueId slope = g.emit("Mul", {g.emit("Mul", {cube, per_element}), g.output_gradient(2)});
    dx = g.emit("Sub", {dx, g.emit("Mul", {g.emit("Sub", {x, like_x(mean)}), like_x(slope)})});
  }
  g.input_gradient(0, dx);
}

void lower(Lowering& l) {
  const std::vector<ValueId> results = emit_normalization(l, "LayerNormalization", l.input(0), l.input(1), l.has(2) ? l.input(2) : kNone,
                                                          l.node.attributes.get("axis", -1), l.node.attributes.get("epsilon", 1e-5f), 3);
  l.output_all(results);
}

// com.microsoft SkipLayerNormalization(x, skip, scale, bias?, bias of the sum?) -> y, mean?, inv_std_dev?, sum?
void lower_skip(Lowering& l) {
  ValueId sum = l.emit("Add", {l.input(0), l.input(1)});
  if (l.has(4)) sum = l.emit("Add", {sum, l.input(4)});
  std::vector<ValueId> results = emit_normalization(l, "LayerNormalization", sum, l.input(2), l.has(3) ? l.input(3) : kNone, -1,
                                                    l.node.attributes.get("epsilon", 1e-12f), 3);
  results.push_back(sum);
  l.output_all(results);
}

// Of each channel of each sample: x (N, C, ...), scale and bias (C).
void lower_instance(Lowering& l) {
  const Shape shape = l.shape(l.input(0));
  if (shape.size() < 3 || l.shape(l.input(1)) != Shape{shape[1]} || l.shape(l.input(2)) != Shape{shape[1]})
    l.fail(fmt::format("x {} has no channels for a scale {} and a bias {}", to_string(shape), to_string(l.shape(l.input(1))),
                       to_string(l.shape(l.input(2)))));
  const ValueId planes = l.reshape(l.input(0), {shape[0], shape[1], element_count(shape.from(2))});
  const auto of_channels = [&](size_t i) { return l.reshape(l.input(i), {shape[1], 1}); };
  const ValueId y = emit_normalization(l, "LayerNormalization", planes, of_channels(1), of_channels(2), -1,
                                       l.node.attributes.get("epsilon", 1e-5f), 3)[0];
  l.output(0, l.reshape(y, shape));
}

// Of each group of channels of each sample: x (N, C, ...). Scale and bias have a number for each channel, before opset 21 for each group.
// (The standard's own function subtracts the square of the mean from the mean of the squares.)
void lower_group(Lowering& l) {
  constexpr int kOfChannels = 21;
  const ValueId x = l.input(0), scale = l.input(1), bias = l.input(2);
  const Shape shape = l.shape(x);
  const int64_t groups = l.node.attributes.get("num_groups", int64_t{0});
  if (shape.size() < 2 || groups < 1 || shape[1] == 0 || shape[1] % groups != 0)
    l.fail(fmt::format("x {} has no channels that {} groups could share", to_string(shape), groups));
  const int64_t numbers = l.node.opset < kOfChannels ? groups : shape[1], sample = element_count(shape.from(1));
  if (l.shape(scale) != Shape{numbers} || l.shape(bias) != Shape{numbers})
    l.fail(fmt::format("scale {} and bias {} would have to be [{}]: a number for each {}", to_string(l.shape(scale)),
                       to_string(l.shape(bias)), numbers, numbers == groups ? "group" : "channel"));
  const ValueId rows = l.reshape(x, {shape[0], groups, sample / groups});
  ValueId y = emit_unscaled_normalization(l, "LayerNormalization", rows, 2, l.node.attributes.get("epsilon", 1e-5f), 3)[0];
  y = l.reshape(y, {shape[0], numbers, sample / numbers});
  y = l.emit("Mul", {y, l.reshape(scale, {numbers, 1})});
  y = l.emit("Add", {y, l.reshape(bias, {numbers, 1})});
  l.output(0, l.reshape(y, shape));
}

}  // namespace

constexpr OpDef kLayerNormalization{
    .name = "LayerNormalization",
    .onnx = {{.domain = "", .name = "LayerNormalization", .since = 1, .lower = lower},  // before opset 17 a contributed op of that name
             {.domain = "", .name = "InstanceNormalization", .since = 6, .lower = lower_instance},
             {.domain = "", .name = "GroupNormalization", .since = 18, .lower = lower_group},
             {.domain = "com.microsoft", .name = "SkipLayerNormalization", .lower = lower_skip, .inputs = 5, .outputs = 4},
             {.domain = "com.microsoft",
              .name = "EmbedLayerNormalization",
              .lower = lower_embed_layer_normalization,
              .inputs = 9,
              .outputs = 3}},
    .infer = [](const InferContext& context) { return infer_normalization(context, 2); },
    .gradient = gradient,
    .traits = {.precision = kNormalizationPrecision, .along = along_axes_before},
    .standard = 17,
};
constexpr Kernel kLayerNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<8>,
    .prepare = forward,
};

// (dy, x, scale, mean, inv_std_dev) -> dx, dscale?, dbias?
constexpr OpDef kLayerNormalizationGrad{
    .name = "LayerNormalizationGrad",
    .infer = infer_normalization_gradient,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kLayerNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<16>,
    .workspace = scale_gradient_workspace<2>,
    .prepare = backward,
};

ORT_TRAIN_OPS_END
