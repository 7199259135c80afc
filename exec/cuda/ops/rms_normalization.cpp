// RMSNormalization and its gradient on CUDA; exec/ops/rms_normalization.cpp says what they are. A row's sums are those of its 32 lanes
// (exec/cuda/rows.h), the gradient of the scale that of blocks of rows (exec/cuda/normalization.h): the processor's orders.

#include "exec/cuda/normalization.h"
#include "exec/cuda/rows.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <class Rows, typename X, typename S, typename Y> struct RmsNormRows {
  using C = Compute<X>;
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<C, C>;
  Rows rows;
  C epsilon;
  const X* x;
  const S* scale;
  Y* y;
  C* inverses;  // may be null

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<C> inverse;
    rows.template sum<X>(
        block, [&]<int w>(const Spot& s, Width<w>) { return loaded<w>(x + s.at); }, [](C v, C& sum) { sum = math::fma(v, v, sum); },
        inverse);
    block.each([&](int t) { inverse[t] = C(1) / math::sqrt(inverse[t] / static_cast<C>(rows.n) + epsilon); });
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      auto v = loaded<w>(x + s.at);
      const auto a = loaded<w>(scale + s.i);
      for (int k = 0; k < w; ++k) v.at[k] = v.at[k] * inverse[s.thread] * a.at[k];
      store_all<w>(y + s.at, v);
    });
    rows.lead(block, [&](int t, int64_t row) {
      if (inverses) inverses[row] = inverse[t];
    });
  }
};

KernelRun forward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[0], spec.inputs[1], spec.outputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[0].shape);
    return [layout, epsilon = C(spec.attributes.get("epsilon", 1e-5f))](const KernelArgs& args) {
      with_rows(layout.rows, layout.n, [&](auto rows) {
        launch(RmsNormRows<decltype(rows), X, S, Y>{rows, epsilon, args.in<X>(0), args.in<S>(1), args.out<Y>(0), args.out<C>(1)},
               rows.blocks(), args);
      });
    };
  });
}

// dx of rows, behind the sums of the scale.
template <class Rows, typename X, typename S, typename Y> struct RmsNormGradRows {
  using C = Compute<X>;
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<Two<C>, C>;
  Rows rows;
  ScaleSums<S, 1> scale_sums;
  const Y* dy;
  const X* x;
  const S* scale;
  const C* inverses;
  X* dx;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    if (block.index < rows.first)
      block.each([&](int t) { scale_sums.add(block.index * kThreads + t); });
    else
      find_dx(block);
  }

 private:
  template <class Block> HOST_DEVICE void find_dx(Block& block) const {
    typename Block::template Own<C> inverse, mean;
    block.each([&](int t) {
      const int64_t row = rows.row(block, t);
      inverse[t] = row < rows.rows ? inverses[row] : C(0);
    });
    rows.template sum<X>(
        block,
        [&]<int w>(const Spot& s, Width<w>) {
          const auto d = loaded<w>(dy + s.at), v = loaded<w>(x + s.at), a = loaded<w>(scale + s.i);
          Neighbours<Two<C>, w> both;
          for (int k = 0; k < w; ++k) both.at[k] = {d.at[k] * a.at[k], v.at[k] * inverse[s.thread]};
          return both;
        },
        [](const Two<C>& v, C& sum) { sum = math::fma(v.first, v.second, sum); }, mean);
    block.each([&](int t) { mean[t] = mean[t] / static_cast<C>(rows.n); });
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      const auto d = loaded<w>(dy + s.at), a = loaded<w>(scale + s.i);
      auto v = loaded<w>(x + s.at);
      for (int k = 0; k < w; ++k) {
        const C h = v.at[k] * inverse[s.thread];
        v.at[k] = inverse[s.thread] * (d.at[k] * a.at[k] - h * mean[s.thread]);
      }
      store_all<w>(dx + s.at, v);
    });
  }
};

KernelRun backward(const KernelSpec& spec) {
  return for_normalization(spec.inputs[1], spec.inputs[2], spec.inputs[0], [&]<typename X, typename S, typename Y>() -> KernelRun {
    using C = Compute<X>;
    const RowLayout layout = row_layout(spec.attributes, spec.inputs[1].shape);
    return [layout, with_scale = spec.outputs.size() > 1](const KernelArgs& args) {
      const Y* const dy = args.in<Y>(0);
      const X* const x = args.in<X>(1);
      const C* const inverses = args.in<C>(3);
      auto* const partial = reinterpret_cast<C*>(args.workspace);
      const ScaleSums<S, 1> scale_sums{layout.n, layout.blocks(), partial, {with_scale ? args.out<S>(1) : nullptr}};
      if (with_scale) {
        const auto partials = ScalePartials<false, X, Y>::of(layout, dy, x, nullptr, inverses, partial);
        launch(partials, partials.blocks(), args);
      }
      with_rows(layout.rows, layout.n, [&](auto rows) {
        using Rows = decltype(rows);
        if (with_scale) rows.first = scale_sums.template blocks<Rows::kThreads>();
        launch(RmsNormGradRows<Rows, X, S, Y>{rows, scale_sums, dy, x, args.in<S>(2), inverses, args.out<X>(0)}, rows.first + rows.blocks(),
               args);
      });
    };
  });
}

}  // namespace

constexpr Kernel kRMSNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<6>,
    .prepare = forward,
};
constexpr Kernel kRMSNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<12>,
    .workspace = scale_gradient_workspace<1>,
    .prepare = backward,
};

ORT_TRAIN_OPS_END
