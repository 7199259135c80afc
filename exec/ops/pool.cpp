// MaxPool{kernel_shape, strides, pads, dilations, ceil_mode}(x) (ONNX MaxPool-1..22, whose Indices are a chain of ops) and AveragePool{the
// same, count_include_pad}(x) (ONNX AveragePool-1..22) over one or two axes; over three they lower to two of these. GlobalAveragePool and
// GlobalMaxPool lower to ReduceMean and ReduceMax, LpPool, GlobalLpPool and LRN to AveragePool or a sum.
//
// MaxPool saves x: its gradient goes to the first of the largest elements of a window, rows before columns, as in PyTorch; NaN is larger
// than all. AveragePool saves nothing. Elements of padding are never the largest, and count in a mean where count_include_pad says so;
// what ceil_mode adds beyond the padding never counts. Each plane of a sample is one thread's, in a fixed order.

#include "exec/ops/pool.h"

#include <algorithm>
#include <limits>

#include "exec/normalization.h"
#include "exec/op_list.h"
#include "exec/ops/max_pool_rows.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace pool;

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType& x = context.input(0);
  if (!is_floating(x.dtype)) throw error(ErrorCode::unsupported, "there is no pool of {}; cast it to float32", to_string(x.dtype));
  return {{x.dtype, windowed_shape(windows_of(context.attributes, x.shape), x.shape, x.shape[1])}};
}
std::vector<TensorType> infer_mean_gradient(const InferContext& context) {
  return {{context.input(0).dtype, context.attributes.get("shape", std::vector<int64_t>{})}};
}

// body(plane, worker) for all samples' channels.
template <typename Body> void for_planes(int64_t planes, const Windows& windows, Workers& workers, const Body& body) {
  const auto each = static_cast<int64_t>(std::max(1.0, 16384 / std::max(1.0, windows.work())));
  workers.parallel_for((planes + each - 1) / each, [&](int64_t task, int worker) {
    for (int64_t plane = task * each; plane < std::min(planes, (task + 1) * each); ++plane) body(plane, worker);
  });
}

// visit(first window, first element of x, n): for each tap, upwards, and each row of windows the n windows whose tap reads no padding.
template <typename Visit> void for_taps(const Windows& windows, const Visit& visit) {
  const auto& [h, w] = windows;
  for (int64_t kh = 0; kh < h.kernel; ++kh) {
    for (int64_t oh = h.first(kh); oh < h.last(kh); ++oh) {
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t first = w.first(kw), last = w.last(kw);
        if (first < last) visit(oh * w.out + first, h.at(oh, kh) * w.in + w.at(first, kw), last - first);
      }
    }
  }
}

// --- MaxPool --------------------------------------------------------------------------------------------------------------------------

// How planes of floats and of 16 bits are computed.
MaxRows rows_of(const KernelSpec& spec, size_t x) {
  return MaxRows(windows_of(spec.attributes, spec.inputs[x].shape), element_of(spec.inputs[x].dtype));
}
template <size_t x> Workspace max_workspace(const KernelSpec& spec) {
  return {.each = spec.inputs[x].dtype == DType::float64 ? 0 : rows_of(spec, x).bytes()};
}

KernelRun max_forward(const KernelSpec& spec) {
  const Windows windows = windows_of(spec.attributes, spec.inputs[0].shape);
  const int64_t planes = planes_of(spec.inputs[0].shape), in = windows.in_size(), out = windows.out_size();
  if (spec.inputs[0].dtype == DType::float64) {
    return [=](const KernelArgs& args) {
      for_planes(planes, windows, args.workers(), [&](int64_t plane, int) {
        const double* const x = args.in<double>(0) + plane * in;
        for (int64_t window = 0; window < out; ++window) {
          const int64_t element = largest(windows, x, window / windows.w.out, window % windows.w.out);
          args.out<double>(0)[plane * out + window] = element < 0 ? -std::numeric_limits<double>::infinity() : x[element];
        }
      });
    };
  }
  return [=, rows = rows_of(spec, 0), size = int64_t{size_of(spec.inputs[0].dtype)}](const KernelArgs& args) {
    for_planes(planes, windows, args.workers(), [&](int64_t plane, int worker) {
      rows.forward(args.in<std::byte>(0) + plane * in * size, args.out<std::byte>(0) + plane * out * size,
                   args.workspace + worker * rows.bytes());
    });
  };
}

KernelRun max_backward(const KernelSpec& spec) {
  const Windows windows = windows_of(spec.attributes, spec.inputs[1].shape);
  const int64_t planes = planes_of(spec.inputs[1].shape), in = windows.in_size(), out = windows.out_size();
  if (spec.inputs[1].dtype == DType::float64) {
    return [=](const KernelArgs& args) {
      for_planes(planes, windows, args.workers(), [&](int64_t plane, int) {
        double* const dx = args.out<double>(0) + plane * in;
        std::fill_n(dx, in, 0.0);
        for (int64_t window = 0; window < out; ++window) {
          const int64_t element = largest(windows, args.in<double>(1) + plane * in, window / windows.w.out, window % windows.w.out);
          if (element >= 0) dx[element] += args.in<double>(0)[plane * out + window];
        }
      });
    };
  }
  return [=, rows = rows_of(spec, 1), size = int64_t{size_of(spec.inputs[1].dtype)}](const KernelArgs& args) {
    for_planes(planes, windows, args.workers(), [&](int64_t plane, int worker) {
      rows.backward(args.in<std::byte>(0) + plane * out * size, args.in<std::byte>(1) + plane * in * size,
                    args.out<std::byte>(0) + plane * in * size, args.workspace + worker * rows.bytes());
    });
  };
}

void max_gradient(const Node& node, GradientBuilder& g) {
  if (g.wants(0)) g.input_gradient(0, g.emit("MaxPoolGrad", {g.output_gradient(0), node.inputs[0]}, node.attributes));
}

// --- AveragePool ----------------------------------------------------------------------------------------------------------------------

struct Means {
  Windows windows;
  std::vector<int64_t> rows, columns;  // what a window counts

  Means(const Attributes& attributes, const Shape& x) : windows(windows_of(attributes, x)) {
    const bool with_padding = attributes.get("count_include_pad", 0) != 0;
    for (int64_t o = 0; o < windows.h.out; ++o) rows.push_back(counted(windows.h, o, with_padding));
    for (int64_t o = 0; o < windows.w.out; ++o) columns.push_back(counted(windows.w, o, with_padding));
  }
  template <typename T> T count(int64_t oh, int64_t ow) const {
    return static_cast<T>(rows[static_cast<size_t>(oh)] * columns[static_cast<size_t>(ow)]);
  }
};

KernelRun mean_forward(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [means = Means(spec.attributes, spec.inputs[0].shape), planes = planes_of(spec.inputs[0].shape)](const KernelArgs& args) {
      const Windows& windows = means.windows;
      for_planes(planes, windows, args.workers(), [&](int64_t plane, int) {
        const T* const x = args.in<T>(0) + plane * windows.in_size();
        T* const y = args.out<T>(0) + plane * windows.out_size();
        std::fill_n(y, windows.out_size(), T(0));
        for_taps(windows, [&](int64_t window, int64_t element, int64_t n) {
          for (int64_t i = 0; i < n; ++i) y[window + i] += x[element + i * windows.w.stride];
        });
        for (int64_t oh = 0; oh < windows.h.out; ++oh) {
          for (int64_t ow = 0; ow < windows.w.out; ++ow) y[oh * windows.w.out + ow] /= means.count<T>(oh, ow);
        }
      });
    };
  });
}

KernelRun mean_backward(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [means = Means(spec.attributes, spec.outputs[0].shape), planes = planes_of(spec.outputs[0].shape)](const KernelArgs& args) {
      const Windows& windows = means.windows;
      for_planes(planes, windows, args.workers(), [&](int64_t plane, int) {
        const T* const dy = args.in<T>(0) + plane * windows.out_size();
        T* const dx = args.out<T>(0) + plane * windows.in_size();
        std::fill_n(dx, windows.in_size(), T(0));
        for_taps(windows, [&](int64_t window, int64_t element, int64_t n) {
          const int64_t oh = window / windows.w.out, ow = window % windows.w.out;
          for (int64_t i = 0; i < n; ++i) dx[element + i * windows.w.stride] += dy[window + i] / means.count<T>(oh, ow + i);
        });
      });
    };
  });
}

void mean_gradient(const Node& node, GradientBuilder& g) {
  if (!g.wants(0)) return;
  Attributes attributes = node.attributes;
  attributes.set("shape", g.shape(node.inputs[0]));
  g.input_gradient(0, g.emit("AveragePoolGrad", {g.output_gradient(0)}, attributes));
}

// --- import ---------------------------------------------------------------------------------------------------------------------------

// Over three axes: the last two first, then the one before. (A mean's count is a product of counts along axes.)
ValueId pooled(Lowering& l, std::string_view op, ValueId x, const Attributes& attributes) {
  const Shape shape = l.shape(x);
  if (shape.size() != 5) return l.emit(op, {x}, attributes);
  const ValueId planes =
      l.emit(op, {l.reshape(x, {shape[0], checked_product({shape[1], shape[2]}), shape[3], shape[4]})}, of_axes(attributes, {1, 2}));
  const int64_t h = l.shape(planes)[2], w = l.shape(planes)[3];
  const ValueId y = l.emit(op, {l.reshape(planes, {shape[0], shape[1], shape[2], h * w})}, of_axes(attributes, {0, kNoAxis}));
  return l.reshape(y, {shape[0], shape[1], l.shape(y)[2], h, w});
}

Attributes pool_attributes(Lowering& l) {
  const Attributes& given = l.node.attributes;
  Attributes attributes = window_attributes(l, l.shape(l.input(0)), given.get("kernel_shape", std::vector<int64_t>{}));
  if (given.get("ceil_mode", 0) != 0) attributes.set("ceil_mode", int64_t{1});
  return attributes;
}

// MaxPool's second output: for each window where the first of its largest elements is, counted through all of x; `columns_first` counts
// each plane of two axes column by column.
ValueId indices_of(Lowering& l, ValueId x, const Attributes& attributes, const Shape y) {
  const Shape shape = l.shape(x);
  const size_t axes = shape.size() - 2;
  const auto list = [&](const char* name) { return attributes.get(name, std::vector<int64_t>{}); };
  const std::vector<int64_t> kernel = list("kernel_shape"), strides = list("strides"), dilations = list("dilations"), pads = list("pads");
  const bool columns_first = l.node.attributes.get("storage_order", int64_t{0}) != 0;
  if (columns_first && axes != 2) l.fail("storage_order 1 is supported over two axes");
  const int64_t windows = element_count(Shape(y.begin() + 2, y.end())), taps = element_count(Shape(kernel.begin(), kernel.end())),
                plane = element_count(Shape(shape.begin() + 2, shape.end())), planes = checked_product({shape[0], shape[1]});
  constexpr int64_t kMost = int64_t{1} << 26, kPadding = -1;
  if (checked_product({windows, taps}) > kMost) l.fail("its windows are too many to number their elements");
  // Of each tap of each window: its element of a plane, `plane` where it reads padding; its number, for padding that of the window's first
  // element: where all elements are -infinity, ArgMax may find padding first.
  std::vector<int64_t> read, numbers;
  for (int64_t window = 0; window < windows; ++window) {
    std::optional<int64_t> first;
    for (int64_t tap = 0; tap < taps; ++tap) {
      int64_t element = 0, number = 0, stride = 1, w = window, t = tap, by_columns = 0;
      bool inside = true;
      for (size_t axis = axes; axis-- > 0;) {
        const int64_t size = shape[2 + axis], at = w % y[2 + axis] * strides[axis] - pads[axis] + t % kernel[axis] * dilations[axis];
        w /= y[2 + axis];
        t /= kernel[axis];
        inside &= at >= 0 && at < size;
        element += at * stride;
        stride *= size;
        by_columns = by_columns * size + at;
      }
      number = columns_first ? by_columns : element;
      read.push_back(inside ? element : plane);
      numbers.push_back(inside ? number : kPadding);
      if (inside && !first) first = number;
    }
    std::replace(numbers.end() - taps, numbers.end(), kPadding, first.value_or(0));
  }
  // Behind each plane an element that none is below.
  const ValueId flat = l.reshape(x, {planes, plane});
  Tensor lowest(DType::float64, {1, 1});
  lowest.data<double>()[0] = -std::numeric_limits<double>::infinity();
  const ValueId behind =
      l.emit("Expand", {l.cast(l.constant(std::move(lowest)), l.dtype(x))}, {{"shape", std::vector<int64_t>{planes, 1}}});
  const ValueId elements = l.emit("Concat", {flat, behind}, {{"axis", int64_t{1}}});
  const ValueId taken = l.emit("Gather", {elements, l.constant(make_tensor({windows, taps}, read))}, {{"axis", int64_t{1}}});
  const ValueId best = l.emit("ArgMax", {taken}, {{"axis", int64_t{2}}, {"keepdims", int64_t{0}}});
  std::vector<int64_t> rows, begins;
  for (int64_t window = 0; window < windows; ++window) rows.push_back(window * taps);
  for (int64_t p = 0; p < planes; ++p) begins.push_back(p * plane);
  const ValueId at = l.emit("Add", {best, l.constant(make_tensor({1, windows}, rows))});
  const ValueId number = l.emit("Gather", {l.constant(make_tensor({windows * taps}, numbers)), at}, {{"axis", int64_t{0}}});
  return l.reshape(l.emit("Add", {number, l.constant(make_tensor({planes, 1}, begins))}), y);
}

// MaxUnpool(x, indices, shape?): zeros but for the elements of x, each at its index into a result of the size that follows from the
// windows; a larger shape has more zeros at its ends.
void lower_unpool(Lowering& l) {
  const Shape x = l.shape(l.input(0));
  const size_t axes = x.size() < 3 ? 0 : x.size() - 2;
  const Attributes& given = l.node.attributes;
  const std::vector<int64_t> kernel = window_list(given, "kernel_shape", 1, axes), strides = window_list(given, "strides", 1, axes),
                             pads = window_list(given, "pads", 0, 2 * axes);
  if (axes == 0 || l.shape(l.input(1)) != x)
    l.fail(fmt::format("indices of {} do not fit {}", to_string(l.shape(l.input(1))), to_string(x)));
  Shape y{x[0], x[1]};
  for (size_t i = 0; i < axes; ++i) {
    y.push_back(checked_product({x[2 + i] - 1, strides[i]}) + kernel[i] - pads[i] - pads[axes + i]);
    if (y.back() < 1) l.fail(fmt::format("its result would have {} elements along axis {}", y.back(), 2 + i));
  }
  const int64_t count = element_count(y), elements = element_count(x);
  const ValueId zeros = l.emit("Expand", {l.reshape(l.scalar_like(l.input(0), 0), {1})}, {{"shape", std::vector<int64_t>{count}}});
  ValueId result = l.reshape(
      l.emit("ScatterElements", {zeros, l.reshape(l.input(1), {elements}), l.reshape(l.input(0), {elements})}, {{"axis", int64_t{0}}}), y);
  if (l.has(2)) {
    const std::vector<int64_t> wanted = l.ints(2, "the shape");
    if (wanted.size() != y.size() || wanted[0] != y[0] || wanted[1] != y[1])
      l.fail(fmt::format("a result of {} is no {}", to_string(y), to_string(wanted)));
    std::vector<int64_t> more(2 * y.size());
    for (size_t i = 0; i < y.size(); ++i) more[y.size() + i] = wanted[i] - y[i];
    if (Shape(wanted.begin(), wanted.end()) != y) result = l.emit("Pad", {result}, {{"pads", more}});
  }
  l.output(0, result);
}

template <bool mean> void lower(Lowering& l) {
  Attributes attributes = pool_attributes(l);
  if (!mean && (l.node.outputs > 1 || !is_floating(l.dtype(l.input(0))))) {
    // Integers of 8 bits are numbers of float32.
    const DType type = l.dtype(l.input(0));
    if (!is_floating(type) && type != DType::int8 && type != DType::uint8)
      l.fail(fmt::format("there is no pool of {}; cast it to float32", to_string(type)));
    const ValueId x = l.cast(l.input(0), is_floating(type) ? type : DType::float32), y = pooled(l, "MaxPool", x, attributes);
    l.output(0, l.cast(y, type));
    if (l.node.outputs > 1) l.output(1, indices_of(l, x, attributes, l.shape(y)));
    return;
  }
  if (mean && l.node.attributes.get("count_include_pad", 0) != 0) attributes.set("count_include_pad", int64_t{1});
  l.output(0, pooled(l, mean ? "AveragePool" : "MaxPool", l.input(0), attributes));
}

ValueId power(Lowering& l, ValueId x, double exponent) { return exponent == 1 ? x : l.emit("Pow", {x, l.scalar_like(x, exponent)}); }
// The p-th root of a sum; zero has a gradient of zero.
ValueId root(Lowering& l, ValueId sum, double p) {
  if (p == 1) return sum;
  const ValueId zero = l.scalar_like(sum, 0), is_zero = l.emit("Equal", {sum, zero});
  return l.emit("Where", {is_zero, zero, power(l, l.emit("Where", {is_zero, l.scalar_like(sum, 1), sum}), 1 / p)});
}
double order_of(Lowering& l) {
  const auto p = static_cast<double>(l.node.attributes.get("p", int64_t{2}));
  if (p < 1) l.fail(fmt::format("p is {}, but must be 1 or more", p));
  return p;
}

// LpPool: the p-norm of a window, as a mean times the number of its taps; padding counts as zero.
void lower_norm(Lowering& l) {
  const double p = order_of(l);
  Attributes attributes = pool_attributes(l);
  if (attributes.has("ceil_mode")) l.fail("ceil_mode is not supported");
  attributes.set("count_include_pad", int64_t{1});
  int64_t taps = 1;
  for (const int64_t size : attributes.get("kernel_shape", std::vector<int64_t>{})) taps = checked_product({taps, size});
  const ValueId mean = pooled(l, "AveragePool", power(l, l.emit("Abs", {l.input(0)}), p), attributes);
  l.output(0, root(l, l.emit("Mul", {mean, l.scalar_like(mean, static_cast<double>(taps))}), p));
}

void lower_global_norm(Lowering& l) {
  const double p = order_of(l);
  std::vector<int64_t> axes;
  for (size_t axis = 2; axis < l.shape(l.input(0)).size(); ++axis) axes.push_back(static_cast<int64_t>(axis));
  const Attributes attributes{{"axes", axes}, {"keepdims", int64_t{1}}};
  if (p == 2) return l.output(0, l.emit("ReduceL2", {l.input(0)}, attributes));
  l.output(0, root(l, l.emit("ReduceSum", {power(l, l.emit("Abs", {l.input(0)}), p)}, attributes), p));
}

// LRN: x / (bias + alpha * mean of the squares of `size` neighbouring channels)^beta, where channels that aren't there count as zero.
void lower_response(Lowering& l) {
  const Attributes& given = l.node.attributes;
  const ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const int64_t size = given.get("size", int64_t{0});
  if (shape.size() < 2 || size < 1) l.fail(fmt::format("{} channels of {} are no neighbours", size, to_string(shape)));
  const ValueId channels = l.reshape(x, {shape[0], 1, shape[1], element_count(shape.from(2))});
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{size, 1}},
                              {"strides", std::vector<int64_t>{1, 1}},
                              {"dilations", std::vector<int64_t>{1, 1}},
                              {"pads", std::vector<int64_t>{(size - 1) / 2, 0, size / 2, 0}},
                              {"count_include_pad", int64_t{1}}};
  const ValueId mean = l.reshape(l.emit("AveragePool", {l.emit("Mul", {channels, channels})}, attributes), shape);
  const auto number = [&](const char* name, float otherwise) { return l.scalar_like(x, given.get(name, otherwise)); };
  const ValueId base = l.emit("Add", {l.emit("Mul", {mean, number("alpha", 0.0001f)}), number("bias", 1)});
  l.output(0, l.emit("Div", {x, l.emit("Pow", {base, number("beta", 0.75f)})}));
}

// As one window: the gradient of a maximum is that of the first of its largest elements. (A reduction, because a MaxPoolGrad looks at each
// tap of a window for each element.)
template <bool mean> void lower_global(Lowering& l) {
  std::vector<int64_t> axes;
  for (size_t axis = 2; axis < l.shape(l.input(0)).size(); ++axis) axes.push_back(static_cast<int64_t>(axis));
  Attributes attributes{{"axes", axes}, {"keepdims", int64_t{1}}};
  if (!mean) attributes.set("first", int64_t{1});
  l.output(0, l.emit(mean ? "ReduceMean" : "ReduceMax", {l.input(0)}, attributes));
}

}  // namespace

constexpr OpDef kMaxPool{
    .name = "MaxPool",
    .onnx = {{.domain = "", .name = "MaxPool", .since = 1, .lower = lower<false>},
             {.domain = "", .name = "GlobalMaxPool", .since = 1, .lower = lower_global<false>},
             {.domain = "", .name = "MaxUnpool", .since = 9, .lower = lower_unpool}},
    .infer = infer,
    .gradient = max_gradient,
    .traits = {.along = along_batch},
    .standard = 22,
};
constexpr Kernel kMaxPoolKernel{
    .types = kFloating,
    .cost = [](const KernelSpec& spec) { return cost_of<4>(spec, spec.inputs[0].shape); },
    .workspace = max_workspace<0>,
    .prepare = max_forward,
};

// (dy, x) -> dx
constexpr OpDef kMaxPoolGrad{
    .name = "MaxPoolGrad",
    .infer = [](const InferContext& context) -> std::vector<TensorType> { return {context.input(1)}; },
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kMaxPoolGradKernel{
    .types = kFloating,
    .typed = 1,
    .cost = [](const KernelSpec& spec) { return cost_of<12>(spec, spec.inputs[1].shape); },
    .workspace = max_workspace<1>,
    .prepare = max_backward,
};

constexpr OpDef kAveragePool{
    .name = "AveragePool",
    .onnx = {{.domain = "", .name = "AveragePool", .since = 1, .lower = lower<true>},
             {.domain = "", .name = "GlobalAveragePool", .since = 1, .lower = lower_global<true>},
             {.domain = "", .name = "LpPool", .since = 2, .lower = lower_norm},
             {.domain = "", .name = "GlobalLpPool", .since = 2, .lower = lower_global_norm},
             {.domain = "", .name = "LRN", .since = 1, .lower = lower_response}},
    .infer = infer,
    .gradient = mean_gradient,
    .traits = {.along = along_batch},
    .standard = 22,
};
constexpr Kernel kAveragePoolKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = [](const KernelSpec& spec) { return cost_of<4>(spec, spec.inputs[0].shape); },
    .prepare = mean_forward,
};

// dy -> dx of attribute `shape`
constexpr OpDef kAveragePoolGrad{
    .name = "AveragePoolGrad",
    .infer = infer_mean_gradient,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kAveragePoolGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = [](const KernelSpec& spec) { return cost_of<6>(spec, spec.outputs[0].shape); },
    .prepare = mean_backward,
};

ORT_TRAIN_OPS_END
