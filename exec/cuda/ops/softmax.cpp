// Softmax, LogSoftmax and their gradients on CUDA; exec/ops/softmax.cpp says what they are. Along the last axis a row's sum is that of its
// 32 lanes (exec/cuda/rows.h), along another one a thread adds a column upwards: the processor's orders. Exponentials are worked out twice,
// so that nothing is written before the row's sum is known.

#include "exec/ops/softmax.h"

#include "exec/cuda/rows.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <bool log_form, typename C> HOST_DEVICE inline C softmax_of(C x, C largest, C sum, C log_sum) {
  return log_form ? (x - largest) - log_sum : math::exp(x - largest) / sum;
}
template <bool log_form, typename C> HOST_DEVICE inline C softmax_slope(C dy, C y, C sum) {
  return log_form ? dy - math::exp(y) * sum : y * (dy - sum);
}

// --- rows ------------------------------------------------------------------------------------------------------------------------------

template <bool log_form, class Rows, typename T> struct SoftmaxRows {
  using C = Compute<T>;
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<C, C>;
  Rows rows;
  const T* x;
  T* y;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<C> largest, sum, log_sum;
    rows.largest(block, x, largest);
    rows.template sum<T>(
        block,
        [&]<int w>(const Spot& s, Width<w>) {
          auto v = loaded<w>(x + s.at);
          for (int k = 0; k < w; ++k) v.at[k] = math::exp(v.at[k] - largest[s.thread]);
          return v;
        },
        [](C e, C& lane) { lane += e; }, sum);
    block.each([&](int t) { log_sum[t] = log_form ? math::log(sum[t]) : C(0); });
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      auto v = loaded<w>(x + s.at);
      for (int k = 0; k < w; ++k) v.at[k] = softmax_of<log_form>(v.at[k], largest[s.thread], sum[s.thread], log_sum[s.thread]);
      store_all<w>(y + s.at, v);
    });
  }
};

template <bool log_form, class Rows, typename T> struct SoftmaxGradRows {
  using C = Compute<T>;
  using Summed = std::conditional_t<log_form, C, Two<C>>;  // dy, or dy and y
  static constexpr int kThreads = Rows::kThreads;
  using Shared = typename Rows::template Shared<Summed, C>;
  Rows rows;
  const T *dy, *y;
  T* dx;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<C> sum;
    if constexpr (log_form) {
      rows.template sum<T>(
          block, [&]<int w>(const Spot& s, Width<w>) { return loaded<w>(dy + s.at); }, [](C v, C& lane) { lane += v; }, sum);
    } else {
      rows.template sum<T>(
          block,
          [&]<int w>(const Spot& s, Width<w>) {
            const auto d = loaded<w>(dy + s.at), v = loaded<w>(y + s.at);
            Neighbours<Two<C>, w> both;
            for (int k = 0; k < w; ++k) both.at[k] = {d.at[k], v.at[k]};
            return both;
          },
          [](const Two<C>& v, C& lane) { lane = math::fma(v.first, v.second, lane); }, sum);
    }
    rows.each(block, [&]<int w>(const Spot& s, Width<w>) {
      const auto d = loaded<w>(dy + s.at);
      auto v = loaded<w>(y + s.at);
      for (int k = 0; k < w; ++k) v.at[k] = softmax_slope<log_form>(d.at[k], v.at[k], sum[s.thread]);
      store_all<w>(dx + s.at, v);
    });
  }
};

// --- columns: (outer, n, inner), a thread each -----------------------------------------------------------------------------------------

constexpr int kColumnThreads = 128;

// body(at) for a thread's column: where it begins.
template <class Block, class Body> HOST_DEVICE inline void each_column(Block& block, const SoftmaxLayout& layout, const Body& body) {
  block.each([&](int t) {
    const int64_t column = block.index * kColumnThreads + t;
    if (column < layout.outer * layout.inner) body(column / layout.inner * layout.n * layout.inner + column % layout.inner);
  });
}
int64_t column_blocks(const SoftmaxLayout& layout) { return (layout.outer * layout.inner + kColumnThreads - 1) / kColumnThreads; }

// step() of what read(at) makes of a column's elements, in ascending order; some are read at a time.
template <class Read, class Step>
HOST_DEVICE inline void walk_column(const SoftmaxLayout& layout, int64_t at, const Read& read, const Step& step) {
  constexpr int kBatch = 8;
  int64_t i = 0;
  for (; i + kBatch <= layout.n; i += kBatch) {
    decltype(read(at)) v[kBatch];
    for (int k = 0; k < kBatch; ++k) v[k] = read(at + (i + k) * layout.inner);
    for (int k = 0; k < kBatch; ++k) step(v[k]);
  }
  for (; i < layout.n; ++i) step(read(at + i * layout.inner));
}

template <bool log_form, typename T> struct SoftmaxColumns {
  using C = Compute<T>;
  static constexpr int kThreads = kColumnThreads;
  using Shared = NoShared;
  SoftmaxLayout layout;
  const T* x;
  T* y;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    each_column(block, layout, [&](int64_t at) {
      const auto read = [&](int64_t from) { return load(x[from]); };
      C largest = read(at), sum = 0;
      walk_column(layout, at, read, [&](C v) { largest = Larger{}(largest, v); });
      walk_column(layout, at, read, [&](C v) { sum += math::exp(v - largest); });
      const C log_sum = log_form ? math::log(sum) : C(0);
      for (int64_t i = 0; i < layout.n; ++i, at += layout.inner) y[at] = store<T>(softmax_of<log_form>(read(at), largest, sum, log_sum));
    });
  }
};

template <bool log_form, typename T> struct SoftmaxGradColumns {
  using C = Compute<T>;
  static constexpr int kThreads = kColumnThreads;
  using Shared = NoShared;
  SoftmaxLayout layout;
  const T *dy, *y;
  T* dx;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    each_column(block, layout, [&](int64_t at) {
      C sum = 0;
      walk_column(
          layout, at,
          [&](int64_t from) {
            return Two<C>{load(dy[from]), log_form ? C(0) : load(y[from])};
          },
          [&](const Two<C>& v) { sum = log_form ? sum + v.first : math::fma(v.first, v.second, sum); });
      for (int64_t i = 0; i < layout.n; ++i, at += layout.inner) dx[at] = store<T>(softmax_slope<log_form>(load(dy[at]), load(y[at]), sum));
    });
  }
};

// --- kernels ---------------------------------------------------------------------------------------------------------------------------

template <bool log_form> KernelRun forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [layout = softmax_layout(spec)](const KernelArgs& args) {
      const T* const x = args.in<T>(0);
      T* const y = args.out<T>(0);
      if (layout.outer * layout.n * layout.inner == 0) return;
      if (layout.inner > 1) return launch(SoftmaxColumns<log_form, T>{layout, x, y}, column_blocks(layout), args);
      with_rows(layout.outer, layout.n, [&](auto rows) {
        launch(SoftmaxRows<log_form, decltype(rows), T>{rows, x, y}, rows.blocks(), args);
      });
    };
  });
}

template <bool log_form> KernelRun backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [layout = softmax_layout(spec)](const KernelArgs& args) {
      const T *const dy = args.in<T>(0), *const y = args.in<T>(1);
      T* const dx = args.out<T>(0);
      if (layout.outer * layout.n * layout.inner == 0) return;
      if (layout.inner > 1) return launch(SoftmaxGradColumns<log_form, T>{layout, dy, y, dx}, column_blocks(layout), args);
      with_rows(layout.outer, layout.n, [&](auto rows) {
        launch(SoftmaxGradRows<log_form, decltype(rows), T>{rows, dy, y, dx}, rows.blocks(), args);
      });
    };
  });
}

}  // namespace

constexpr Kernel kSoftmaxKernel = unary_kernel_of(forward<false>, kSoftmaxCost);
constexpr Kernel kLogSoftmaxKernel = unary_kernel_of(forward<true>, kSoftmaxCost);
constexpr Kernel kSoftmaxGradKernel = slope_kernel(backward<false>, kSoftmaxGradientCost);
constexpr Kernel kLogSoftmaxGradKernel = slope_kernel(backward<true>, kLogSoftmaxGradientCost);

ORT_TRAIN_OPS_END
