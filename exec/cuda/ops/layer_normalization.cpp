// LayerNormalization and its gradient on CUDA; exec/ops/layer_normalization.cpp says what they are. A row's sums are those of its 32 lanes
// (exec/cuda/rows.h), the gradients of scale and bias those of blocks of rows (exec/cuda/normalization.h): the processor's orders.

#include "exec/cuda/normalization.h"
#include "exec/cuda/rows.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <class Rows, typename X, typename S, typename Y> struct LayerNormRows {
  using C = Compute<X>;
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<C, C>;
  Rows rows;
  C epsilon;
  const X* x;
  const S *scale, *bias;  // bias: may be null
  Y* y;
  C *means, *inverses;  // may be null

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<C> mean, inverse;
    const auto n = static_cast<C>(rows.n);
    rows.template sum<X>(
        block, [&]<int w>(const Spot& s, Width<w>) { return loaded<w>(x + s.at); }, [](C v, C& sum) { sum += v; }, mean);
    block.each([&](int t) { mean[t] = mean[t] / n; });
    rows.template sum<X>(
        block,
        [&]<int w>(const Spot& s, Width<w>) {
          auto d = loaded<w>(x + s.at);
          for (int k = 0; k < w; ++k) d.at[k] -= mean[s.thread];
          return d;
        },
        [](C d, C& sum) { sum = math::fma(d, d, sum); }, inverse);
    block.each([&](int t) { inverse[t] = C(1) / math::sqrt(inverse[t] / n + epsilon); });
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      auto v = loaded<w>(x + s.at);
      const auto a = loaded<w>(scale + s.i);
      for (int k = 0; k < w; ++k) v.at[k] = (v.at[k] - mean[s.thread]) * inverse[s.thread];
      if (bias) {
        const auto b = loaded<w>(bias + s.i);
        for (int k = 0; k < w; ++k) v.at[k] = math::fma(v.at[k], a.at[k], b.at[k]);
      } else {
        for (int k = 0; k < w; ++k) v.at[k] *= a.at[k];
      }
      store_all<w>(y + s.at, v);
    });
    rows.lead(block, [&](int t, int64_t row) {
      if (means) means[row] = mean[t];
      if (inverses) inverses[row] = inverse[t];
    });
  }
};

KernelRun forward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[0], spec.inputs[1], spec.outputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[0].shape);
    const C epsilon = spec.attributes.get("epsilon", 1e-5f);
    const bool with_bias = spec.has(2);
    return [layout, epsilon, with_bias](const KernelArgs& args) {
      with_rows(layout.rows, layout.n, [&](auto rows) {
        launch(LayerNormRows<decltype(rows), X, S, Y>{.rows = rows,
                                                      .epsilon = epsilon,
                                                      .x = args.in<X>(0),
                                                      .scale = args.in<S>(1),
                                                      .bias = with_bias ? args.in<S>(2) : nullptr,
                                                      .y = args.out<Y>(0),
                                                      .means = args.out<C>(1),
                                                      .inverses = args.out<C>(2)},
               rows.blocks(), args);
      });
    };
  });
}

// dx of rows, behind the sums of scale and bias.
template <class Rows, typename X, typename S, typename Y> struct LayerNormGradRows {
  using C = Compute<X>;
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<Two<C>, C>;
  Rows rows;
  ScaleSums<S, 2> scale_sums;
  const Y* dy;
  const X* x;
  const S* scale;
  const C *means, *inverses;
  X* dx;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    if (block.index < rows.first)
      block.each([&](int t) { scale_sums.add(block.index * kThreads + t); });
    else
      find_dx(block);
  }

 private:
  template <class Block> HOST_DEVICE void find_dx(Block& block) const {
    typename Block::template Own<C> mean, inverse, mean_g, mean_gh;
    block.each([&](int t) {
      const int64_t row = rows.row(block, t);
      mean[t] = row < rows.rows ? means[row] : C(0);
      inverse[t] = row < rows.rows ? inverses[row] : C(0);
    });
    rows.template sum<X>(
        block,
        [&]<int w>(const Spot& s, Width<w>) {
          const auto d = loaded<w>(dy + s.at), v = loaded<w>(x + s.at), a = loaded<w>(scale + s.i);
          Neighbours<Two<C>, w> both;
          for (int k = 0; k < w; ++k) both.at[k] = {d.at[k] * a.at[k], (v.at[k] - mean[s.thread]) * inverse[s.thread]};
          return both;
        },
        [](const Two<C>& v, C& of_g, C& of_gh) {
          of_g += v.first;
          of_gh = math::fma(v.first, v.second, of_gh);
        },
        mean_g, mean_gh);
    block.each([&](int t) {
      mean_g[t] = mean_g[t] / static_cast<C>(rows.n);
      mean_gh[t] = mean_gh[t] / static_cast<C>(rows.n);
    });
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      const auto d = loaded<w>(dy + s.at), a = loaded<w>(scale + s.i);
      auto v = loaded<w>(x + s.at);
      for (int k = 0; k < w; ++k) {
        const C h = (v.at[k] - mean[s.thread]) * inverse[s.thread];
        v.at[k] = inverse[s.thread] * (d.at[k] * a.at[k] - mean_g[s.thread] - h * mean_gh[s.thread]);
      }
      store_all<w>(dx + s.at, v);
    });
  }
};

KernelRun backward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[1], spec.inputs[2], spec.inputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[1].shape);
    const size_t outputs = spec.outputs.size();
    return [layout, outputs](const KernelArgs& args) {
      const Y* const dy = args.in<Y>(0);
      const X* const x = args.in<X>(1);
      const C *means = args.in<C>(3), *inverses = args.in<C>(4);
      auto* const partial = reinterpret_cast<C*>(args.workspace);
      const ScaleSums<S, 2> scale_sums{
          layout.n, layout.blocks(), partial, {outputs > 1 ? args.out<S>(1) : nullptr, outputs > 2 ? args.out<S>(2) : nullptr}};
      if (outputs > 1) {
        const auto partials = ScalePartials<true, X, Y>::of(layout, dy, x, means, inverses, partial);
        launch(partials, partials.blocks(), args);
      }
      with_rows(layout.rows, layout.n, [&](auto rows) {
        using Rows = decltype(rows);
        if (outputs > 1) rows.first = scale_sums.template blocks<Rows::kThreads>();
        launch(LayerNormGradRows<Rows, X, S, Y>{.rows = rows,
                                                .scale_sums = scale_sums,
                                                .dy = dy,
                                                .x = x,
                                                .scale = args.in<S>(2),
                                                .means = means,
                                                .inverses = inverses,
                                                .dx = args.out<X>(0)},
               rows.first + rows.blocks(), args);
      });
    };
  });
}

}  // namespace

constexpr Kernel kLayerNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<8>,
    .prepare = forward,
};
constexpr Kernel kLayerNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<16>,
    .workspace = scale_gradient_workspace<2>,
    .prepare = backward,
};

ORT_TRAIN_OPS_END
