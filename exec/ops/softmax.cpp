// Softmax and LogSoftmax along one axis: y = e^(x - m) / sum e^(x - m), m the row's largest number. Before opset 13 ONNX took all axes from
// `axis` on as one: lowered to Reshape, Softmax along the last axis, Reshape.
//
// Saves y. A number of -infinity (a mask) gives 0; a row of nothing else gives NaN, as everywhere. Along the last axis a row is read from
// cache three times; along another one, kColumns columns are worked on side by side.

#include "exec/ops/softmax.h"

#include <limits>

#include "exec/lanes.h"
#include "exec/map_elements.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kColumns = 128;

// --- one row, contiguous: (n) ---------------------------------------------------------------------------------------------------------

struct SoftmaxRow {
  template <typename T> static void run(const T* x, T* y, int64_t n) {
    using C = Compute<T>;
    const C largest = max_row(x, n);
    if constexpr (std::is_same_v<T, C>) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - largest);
      const C sum = sum_row<T>(n, [&](C lane, int64_t i) { return lane + y[i]; });
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] / sum;
    } else {  // y would round the exponentials
      const C sum = sum_row<T>(n, [&](C lane, int64_t i) { return lane + math::exp(load(x[i]) - largest); });
      map_elements(
          y, n, [=](C value) { return math::exp(value - largest) / sum; }, x);
    }
  }
};

struct LogSoftmaxRow {
  template <typename T> static void run(const T* x, T* y, int64_t n) {
    using C = Compute<T>;
    const C largest = max_row(x, n);
    const C sum = sum_row<T>(n, [&](C lane, int64_t i) { return lane + math::exp(load(x[i]) - largest); });
    const C log_sum = math::log(sum);
    map_elements(
        y, n, [=](C value) { return (value - largest) - log_sum; }, x);
  }
};

// dx = y * (dy - sum(dy * y))
struct SoftmaxGradRow {
  template <typename T> static void run(const T* dy, const T* y, T* dx, int64_t n) {
    using C = Compute<T>;
    const C sum = sum_row<T>(n, [&](C lane, int64_t i) { return math::fma(load(dy[i]), load(y[i]), lane); });
    map_elements(
        dx, n, [=](C of_y, C d) { return of_y * (d - sum); }, y, dy);
  }
};

// dx = dy - e^y * sum(dy)
struct LogSoftmaxGradRow {
  template <typename T> static void run(const T* dy, const T* y, T* dx, int64_t n) {
    using C = Compute<T>;
    const C sum = sum_row<T>(n, [&](C lane, int64_t i) { return lane + load(dy[i]); });
    map_elements(
        dx, n, [=](C of_y, C d) { return d - math::exp(of_y) * sum; }, y, dy);
  }
};

// --- columns side by side: (n, inner), `width` of them from here on -------------------------------------------------------------------

template <bool log_form, typename T> void softmax_columns(const T* x, T* y, const SoftmaxLayout& layout, int64_t width) {
  using C = Compute<T>;
  C largest[kColumns], sum[kColumns];
  for (int64_t c = 0; c < width; ++c) largest[c] = load(x[c]), sum[c] = C(0);
  for (int64_t i = 1; i < layout.n; ++i) {
    const T* from = x + i * layout.inner;
    for (int64_t c = 0; c < width; ++c) largest[c] = largest[c] > load(from[c]) ? largest[c] : load(from[c]);
  }
  for (int64_t i = 0; i < layout.n; ++i) {
    const T* from = x + i * layout.inner;
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) sum[c] += math::exp(load(from[c]) - largest[c]);
  }
  if (log_form) {
    for (int64_t c = 0; c < width; ++c) sum[c] = math::log(sum[c]);
  }
  for (int64_t i = 0; i < layout.n; ++i) {
    const T* from = x + i * layout.inner;
    T* to = y + i * layout.inner;
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) {
      const C above = load(from[c]) - largest[c];
      to[c] = store<T>(log_form ? above - sum[c] : math::exp(above) / sum[c]);
    }
  }
}

template <bool log_form, typename T> void gradient_columns(const T* dy, const T* y, T* dx, const SoftmaxLayout& layout, int64_t width) {
  using C = Compute<T>;
  C sum[kColumns] = {};
  for (int64_t i = 0; i < layout.n; ++i) {
    const int64_t at = i * layout.inner;
    for (int64_t c = 0; c < width; ++c)
      sum[c] = log_form ? sum[c] + load(dy[at + c]) : math::fma(load(dy[at + c]), load(y[at + c]), sum[c]);
  }
  for (int64_t i = 0; i < layout.n; ++i) {
    const int64_t at = i * layout.inner;
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) {
      const C d = load(dy[at + c]), of_y = load(y[at + c]);
      dx[at + c] = store<T>(log_form ? d - math::exp(of_y) * sum[c] : of_y * (d - sum[c]));
    }
  }
}

// row(at) for each row of the last axis, or columns(at, width) for each group of columns: `at` is where it begins.
template <typename Row, typename Columns> void run_layout(const SoftmaxLayout& layout, Workers& workers, Row&& row, Columns&& columns) {
  if (layout.outer * layout.n * layout.inner == 0) return;
  if (layout.inner == 1) {
    const int64_t rows = layout.n < kElementBlock ? kElementBlock / layout.n : 1;
    workers.parallel_blocks(layout.outer, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) row(r * layout.n);
    });
    return;
  }
  const int64_t groups = (layout.inner + kColumns - 1) / kColumns;
  workers.parallel_for(layout.outer * groups, [&](int64_t task, int) {
    const int64_t first = task % groups * kColumns;
    columns(task / groups * layout.n * layout.inner + first, first + kColumns < layout.inner ? kColumns : layout.inner - first);
  });
}

template <bool log_form> KernelRun forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [layout = softmax_layout(spec)](const KernelArgs& args) {
      using Row = std::conditional_t<log_form, LogSoftmaxRow, SoftmaxRow>;
      const T* x = args.in<T>(0);
      T* y = args.out<T>(0);
      run_layout(
          layout, args.workers(), [&](int64_t at) { Row::run(x + at, y + at, layout.n); },
          [&](int64_t at, int64_t width) { softmax_columns<log_form>(x + at, y + at, layout, width); });
    };
  });
}

template <bool log_form> KernelRun backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [layout = softmax_layout(spec)](const KernelArgs& args) {
      using Row = std::conditional_t<log_form, LogSoftmaxGradRow, SoftmaxGradRow>;
      const T *dy = args.in<T>(0), *y = args.in<T>(1);
      T* dx = args.out<T>(0);
      run_layout(
          layout, args.workers(), [&](int64_t at) { Row::run(dy + at, y + at, dx + at, layout.n); },
          [&](int64_t at, int64_t width) { gradient_columns<log_form>(dy + at, y + at, dx + at, layout, width); });
    };
  });
}

std::vector<TensorType> infer(const InferContext& context) {
  normalize_axis(context.attributes.get("axis", -1), static_cast<int64_t>(context.input(0).shape.size()), "axis");
  return infer_same_as_input(context);
}

void lower(Lowering& l) {
  const std::string_view op = l.node.op_type;
  const ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const int64_t rank = static_cast<int64_t>(shape.size());
  const int64_t axis = normalize_axis(l.node.attributes.get("axis", l.node.opset < 13 ? 1 : -1), rank, "axis");
  if (l.node.opset >= 13 || axis == rank - 1) return l.output(0, l.emit(op, {x}, {{"axis", axis}}));
  Shape flat{1, 1};
  for (int64_t i = 0; i < rank; ++i) flat[i < axis ? 0 : 1] *= shape[i];
  l.output(0, l.reshape(l.emit(op, {l.reshape(x, flat)}, {{"axis", int64_t{1}}}), shape));
}

AxisPath along(const Graph& graph, const Node& node, size_t, size_t axis) {
  const auto rank = static_cast<int64_t>(graph.value(node.inputs[0]).shape.size());
  if (static_cast<size_t>(normalize_axis(node.attributes.get("axis", -1), rank, "axis")) != axis)
    return {.use = AxisPath::kept, .axis = axis};
  return {.use = AxisPath::filled, .axis = axis, .fill = -std::numeric_limits<double>::infinity()};
}

constexpr OpDef softmax(std::string_view name, PrecisionTraits precision = {}) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = 1, .lower = lower}},
          .infer = infer,
          .gradient = gradient_from_output,
          .traits = {.precision = precision, .along = along},
          .standard = 13};
}

}  // namespace

constexpr OpDef kSoftmax = softmax("Softmax");
constexpr OpDef kLogSoftmax = softmax("LogSoftmax", kInFloat32);
constexpr Kernel kSoftmaxKernel = unary_kernel_of(forward<false>, kSoftmaxCost);
constexpr Kernel kLogSoftmaxKernel = unary_kernel_of(forward<true>, kSoftmaxCost);

// (dy, y) -> dx
constexpr OpDef kSoftmaxGrad = slope_op("SoftmaxGrad");
constexpr OpDef kLogSoftmaxGrad = slope_op("LogSoftmaxGrad");
constexpr Kernel kSoftmaxGradKernel = slope_kernel(backward<false>, kSoftmaxGradientCost);
constexpr Kernel kLogSoftmaxGradKernel = slope_kernel(backward<true>, kLogSoftmaxGradientCost);

ORT_TRAIN_OPS_END
