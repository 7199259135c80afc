// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL2, ReduceSumSquare {axes, keepdims} (ONNX 1 and later of each).
//
// Of 16-bit numbers the result may be float32 (attribute `to`). `axes` are normalised; none means that nothing is reduced (ONNX's "all" is
// resolved at import). ReduceL1, ReduceLogSum, ReduceLogSumExp and LpNormalization lower to these. The gradient of Max and Min is shared
// equally among the elements that are equal to the result; with the attribute `first`, over the last axes, it is that of the first of them,
// as a pool's. ReduceProd's is ReduceProdGrad(dy, x): dy times the product of all other elements, right where elements are zero. Of
// ReduceL2 at the zero vector it is zero. What 16-bit gradients are divided by is a float32: float16 has no 65,536, bfloat16 no 361.

#include "exec/ops/reduce.h"

#include <limits>

#include "exec/op_list.h"
#include "exec/reduce.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN

namespace {

Shape reduced_shape(const Shape& from, const std::vector<int64_t>& axes, bool keep) {
  Shape shape;
  size_t next = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool drop = next < axes.size() && axes[next] == static_cast<int64_t>(i);
    if (drop) ++next;
    if (!drop)
      shape.push_back(from[i]);
    else if (keep)
      shape.push_back(1);
  }
  return shape;
}

// --- import ---------------------------------------------------------------------------------------------------------------------------

std::vector<int64_t> lowered_axes(Lowering& l) {
  const Shape& shape = l.shape(l.input(0));
  std::vector<int64_t> axes = l.ints_from("axes", 1, {});
  if (axes.empty() && l.node.attributes.get("noop_with_empty_axes", 0) == 0) {
    for (size_t i = 0; i < shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  return reduced_axes({{"axes", axes}}, shape);
}

ValueId emit_reduce(Builder& builder, std::string_view op, ValueId x, const std::vector<int64_t>& axes, bool keep) {
  return builder.emit(op, {x}, {{"axes", axes}, {"keepdims", int64_t{keep}}});
}

bool keeps(const Attributes& attributes) { return attributes.get("keepdims", 1) != 0; }

// Those that leave single elements as they are: over axes of one element they are a Reshape.
void lower_plain(Lowering& l) {
  const ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const std::vector<int64_t> axes = lowered_axes(l);
  const bool keep = keeps(l.node.attributes);
  if (std::all_of(axes.begin(), axes.end(), [&](int64_t axis) { return shape[axis] == 1; }))
    return l.output(0, l.reshape(x, reduced_shape(shape, axes, keep)));
  l.output(0, emit_reduce(l, l.node.op_type, x, axes, keep));
}

void lower_norm(Lowering& l) { l.output(0, emit_reduce(l, l.node.op_type, l.input(0), lowered_axes(l), keeps(l.node.attributes))); }

// x / ||x||_p along an axis, p 1 or 2; zeros stay.
void lower_lp_normalization(Lowering& l) {
  const ValueId x = l.input(0);
  const int64_t p = l.node.attributes.get("p", 2);
  if (p != 1 && p != 2) l.fail(fmt::format("p is {}, but must be 1 or 2", p));
  const std::vector<int64_t> axes{normalize_axis(l.node.attributes.get("axis", -1), static_cast<int64_t>(l.shape(x).size()), "axis")};
  const ValueId norm = p == 2 ? emit_reduce(l, "ReduceL2", x, axes, true) : emit_reduce(l, "ReduceSum", l.emit("Abs", {x}), axes, true);
  const ValueId is_zero = l.emit("Equal", {norm, l.scalar_like(norm, 0)});
  l.output(0, l.emit("Div", {x, l.emit("Where", {is_zero, l.scalar_like(norm, 1), norm})}));
}

void lower_l1(Lowering& l) {
  l.output(0, emit_reduce(l, "ReduceSum", l.emit("Abs", {l.input(0)}), lowered_axes(l), keeps(l.node.attributes)));
}

void lower_log_sum(Lowering& l) {
  l.output(0, l.emit("Log", {emit_reduce(l, "ReduceSum", l.input(0), lowered_axes(l), keeps(l.node.attributes))}));
}

// log sum exp(x) = m + log sum exp(x - m), m the maximum, 0 where that is infinite. A sum of nothing has a gradient of zero.
void lower_log_sum_exp(Lowering& l) {
  const ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const std::vector<int64_t> axes = lowered_axes(l);
  ValueId maximum = emit_reduce(l, "ReduceMax", x, axes, true);
  maximum = l.emit("Where", {l.emit("IsInf", {maximum}), l.scalar_like(maximum, 0), maximum});
  const ValueId sum = emit_reduce(l, "ReduceSum", l.emit("Exp", {l.emit("Sub", {x, maximum})}), axes, true);
  const ValueId is_zero = l.emit("Equal", {sum, l.scalar_like(sum, 0)});
  const ValueId logarithm = l.emit("Where", {is_zero, l.scalar_like(sum, -std::numeric_limits<double>::infinity()),
                                             l.emit("Log", {l.emit("Where", {is_zero, l.scalar_like(sum, 1), sum})})});
  l.output(0, l.reshape(l.emit("Add", {logarithm, maximum}), reduced_shape(shape, axes, keeps(l.node.attributes))));
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType& x = context.input(0);
  const DType result = get_type(context.attributes, kResultType, x.dtype);
  if (result != x.dtype && result != compute_type(x.dtype))
    throw error(ErrorCode::unsupported, "{} isn't reduced to {}", to_string(x), to_string(result));
  return {{result, reduced_shape(x.shape, reduced_axes(context.attributes, x.shape), keeps(context.attributes))}};
}

// --- gradients ------------------------------------------------------------------------------------------------------------------------

// A value of the reduced shape in x's type, with the reduced axes put back as axes of one element.
ValueId with_axes(GradientBuilder& g, const Node& node, ValueId value) {
  const Shape from = g.shape(node.inputs[0]);
  return g.reshape(g.cast(value, g.dtype(node.inputs[0])), reduced_shape(from, reduced_axes(node.attributes, from), true));
}

ValueId spread(GradientBuilder& g, const Node& node, ValueId value) {
  const Shape from = g.shape(node.inputs[0]);
  value = with_axes(g, node, value);
  return g.shape(value) == from ? value : g.emit("Expand", {value}, {{"shape", from}});
}

void sum_gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, spread(g, node, g.output_gradient(0))); }

void mean_gradient(const Node& node, GradientBuilder& g) {
  const Shape from = g.shape(node.inputs[0]);
  double count = 1;
  for (int64_t axis : reduced_axes(node.attributes, from)) count *= static_cast<double>(from[axis]);
  const ValueId of_mean = g.output_gradient(0), dy = g.cast(of_mean, compute_type(g.dtype(of_mean)));
  g.input_gradient(0, spread(g, node, g.emit("Div", {dy, g.scalar_like(dy, count)})));
}

// To the first of the largest elements, in the order of memory.
void first_gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0];
  const Shape shape = g.shape(x);
  const size_t kept = shape.size() - reduced_axes(node.attributes, shape).size();
  const Shape rows{element_count(shape.before(kept)), element_count(shape.from(kept))};
  const ValueId largest =
      g.emit("ArgMax", {g.reshape(x, rows)}, {{"axis", int64_t{1}}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{0}}});
  const ValueId zeros = g.zeros(rows, g.dtype(x));
  const ValueId dy = g.reshape(g.cast(g.output_gradient(0), g.dtype(x)), {rows[0], 1});
  g.input_gradient(0, g.reshape(g.emit("ScatterElements", {zeros, largest, dy}, {{"axis", int64_t{1}}}), shape));
}

void extreme_gradient(const Node& node, GradientBuilder& g) {
  if (node.attributes.get("first", 0) != 0) return first_gradient(node, g);
  const ValueId x = node.inputs[0];
  const ValueId equal = g.emit("Equal", {x, with_axes(g, node, node.outputs[0])});
  const ValueId chosen = g.emit("Cast", {equal}, {{"to", static_cast<int64_t>(g.dtype(x))}});
  Attributes of_ties{{"axes", reduced_axes(node.attributes, g.shape(x))}, {"keepdims", int64_t{1}}};
  if (is_half(g.dtype(x))) set_type(of_ties, kResultType, compute_type(g.dtype(x)));
  const ValueId ties = g.emit("ReduceSum", {chosen}, of_ties);
  const ValueId dy = g.reshape(g.cast(g.output_gradient(0), g.dtype(ties)), g.shape(ties));
  g.input_gradient(0, g.emit("Mul", {chosen, g.cast(g.emit("Div", {dy, ties}), g.dtype(x))}));
}

void sum_square_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = with_axes(g, node, g.output_gradient(0));
  g.input_gradient(0, g.emit("Mul", {node.inputs[0], g.emit("Mul", {dy, g.scalar_like(dy, 2)})}));
}

// dx = x dy / y
void l2_gradient(const Node& node, GradientBuilder& g) {
  const ValueId y = node.outputs[0], zero = g.scalar_like(y, 0);
  const ValueId ratio = g.emit("Where", {g.emit("Equal", {y, zero}), zero, g.emit("Div", {g.output_gradient(0), y})});
  g.input_gradient(0, g.emit("Mul", {node.inputs[0], with_axes(g, node, ratio)}));
}

void prod_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("ReduceProdGrad", {g.cast(g.output_gradient(0), g.dtype(node.inputs[0])), node.inputs[0]}, node.attributes));
}

// --- kernels --------------------------------------------------------------------------------------------------------------------------

template <template <typename> class Kind, typename Supported> KernelRun prepare(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    if constexpr (!std::is_same_v<T, Compute<T>>) {
      if (spec.outputs[0].dtype != dtype_of<T>())
        return [plan = reduction_plan(spec)](const KernelArgs& args) { run_reduce<Kind<T>, T, Compute<T>>(plan, args); };
    }
    return [plan = reduction_plan(spec)](const KernelArgs& args) { run_reduce<Kind<T>, T, T>(plan, args); };
  });
}

std::vector<TensorType> infer_prod_grad(const InferContext& context) { return {context.input(1)}; }

int64_t prefixes_of(int64_t count) { return whole_lines(count * int64_t{sizeof(double)}); }
Workspace prod_grad_workspace(const KernelSpec& spec) {
  const Shape& shape = spec.inputs[1].shape;
  return {.each = prefixes_of(reduced_loops(shape, reduced_axes(spec.attributes, shape)).reduced.count)};
}

// Forwards the product of all elements before, then backwards times that of all after: no division, so zeros are no exception. In double,
// as the product itself: parts of it may leave the range of floats.
template <typename T> KernelRun prod_grad_of(const KernelSpec& spec) {
  const auto [kept, forward] = reduced_loops(spec.inputs[1].shape, reduced_axes(spec.attributes, spec.inputs[1].shape));
  StridedLoop<1> backward = forward;
  int64_t last = 0;  // offset of the last element of a product
  for (int axis = 0; axis < forward.rank; ++axis) {
    backward.strides[axis][0] = -forward.strides[axis][0];
    last += (forward.dims[axis] - 1) * forward.strides[axis][0];
  }
  return [kept = kept, forward = forward, backward, last](const KernelArgs& args) {
    const T *const dy = args.in<T>(0), *const x = args.in<T>(1);
    T* const dx = args.out<T>(0);
    args.workers().parallel_blocks(kept.count, per_task(kTaskElements, forward.count), [&](int64_t begin, int64_t end, int worker) {
      auto* const prefixes = reinterpret_cast<double*>(args.workspace + worker * prefixes_of(forward.count));
      for (int64_t output = begin; output < end; ++output) {
        const int64_t at = offset_at(kept, output);
        double before = 1, after = static_cast<double>(dy[output]);
        walk(forward, 0, forward.count, [&](const std::array<int64_t, 1>& offsets, int64_t first, int64_t run) {
          for (int64_t i = 0; i < run; ++i) {
            prefixes[first + i] = before;
            before *= static_cast<double>(x[at + offsets[0] + i * forward.inner_stride(0)]);
          }
        });
        walk(backward, 0, backward.count, [&](const std::array<int64_t, 1>& offsets, int64_t first, int64_t run) {
          for (int64_t i = 0; i < run; ++i) {
            const int64_t here = at + last + offsets[0] + i * backward.inner_stride(0);
            dx[here] = static_cast<T>(prefixes[backward.count - 1 - (first + i)] * after);
            after *= static_cast<double>(x[here]);
          }
        });
      }
    });
  };
}

KernelRun prepare_prod_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[1].dtype, [&]<typename T>() { return prod_grad_of<T>(spec); });
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `fill`, in place of an element, changes nothing.
template <double (*kFill)()> AxisPath along(const Graph& graph, const Node& node, size_t, size_t axis) {
  const std::vector<int64_t> axes = reduced_axes(node.attributes, graph.value(node.inputs[0]).shape);
  const bool keep = keeps(node.attributes);
  size_t gone = 0;
  for (const int64_t reduced : axes) {
    if (static_cast<size_t>(reduced) == axis) return {.use = AxisPath::filled, .fill = kFill()};
    gone += !keep && static_cast<size_t>(reduced) < axis;
  }
  return {.use = AxisPath::kept, .axis = axis - gone};
}
constexpr double zero() { return 0; }
constexpr double one() { return 1; }
constexpr double lowest() { return -kInfinity; }
constexpr double highest() { return kInfinity; }
// A mean divides by how many there are, which only the importer knows.
AxisPath along_mean(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const AxisPath path = along<zero>(graph, node, input, axis);
  return path.use == AxisPath::kept ? path : AxisPath{};
}

// Sums are float32, whatever they are sums of.
constexpr PrecisionTraits kSum{.runs = Precision::float32, .chooses_result = true};

constexpr OpDef reduction(std::string_view name, List<OnnxForm, 6> forms, void (*gradient)(const Node&, GradientBuilder&), AxisRule along,
                          PrecisionTraits precision = kSum) {
  return {.name = name, .onnx = forms, .infer = infer, .gradient = gradient, .traits = {.precision = precision, .along = along}};
}

constexpr Kernel reduction_kernel(Prepare prepare, DTypes types) {
  return {.types = types, .cost = reduction_cost, .workspace = reduction_workspace, .prepare = prepare};
}
template <template <typename> class Kind>
constexpr Kernel arithmetic_kernel = reduction_kernel(prepare<Kind, ReducedNumbers>, dtypes_of(ReducedNumbers{}));
template <template <typename> class Kind>
constexpr Kernel extreme_kernel = reduction_kernel(prepare<Kind, ReducedOrdered>, dtypes_of(ReducedOrdered{}));

}  // namespace

constexpr OpDef kReduceSum = reduction("ReduceSum",
                                       {{.domain = "", .name = "ReduceSum", .since = 1, .lower = lower_plain},
                                        {.domain = "", .name = "ReduceL1", .since = 1, .lower = lower_l1},
                                        {.domain = "", .name = "ReduceLogSum", .since = 1, .lower = lower_log_sum},
                                        {.domain = "", .name = "ReduceLogSumExp", .since = 1, .lower = lower_log_sum_exp}},
                                       sum_gradient, along<zero>);
constexpr Kernel kReduceSumKernel = arithmetic_kernel<SumKind>;
constexpr OpDef kReduceMean =
    reduction("ReduceMean", {{.domain = "", .name = "ReduceMean", .since = 1, .lower = lower_plain}}, mean_gradient, along_mean);
constexpr Kernel kReduceMeanKernel = arithmetic_kernel<MeanKind>;
constexpr OpDef kReduceMax =
    reduction("ReduceMax", {{.domain = "", .name = "ReduceMax", .since = 1, .lower = lower_plain}}, extreme_gradient, along<lowest>, {});
constexpr Kernel kReduceMaxKernel = extreme_kernel<MaxKind>;
constexpr OpDef kReduceMin =
    reduction("ReduceMin", {{.domain = "", .name = "ReduceMin", .since = 1, .lower = lower_plain}}, extreme_gradient, along<highest>, {});
constexpr Kernel kReduceMinKernel = extreme_kernel<MinKind>;
constexpr OpDef kReduceProd =
    reduction("ReduceProd", {{.domain = "", .name = "ReduceProd", .since = 1, .lower = lower_plain}}, prod_gradient, along<one>);
constexpr Kernel kReduceProdKernel = arithmetic_kernel<ProdKind>;
constexpr OpDef kReduceL2 = reduction("ReduceL2",
                                      {{.domain = "", .name = "ReduceL2", .since = 1, .lower = lower_norm},
                                       {.domain = "", .name = "LpNormalization", .since = 1, .lower = lower_lp_normalization}},
                                      l2_gradient, along<zero>);
constexpr Kernel kReduceL2Kernel = arithmetic_kernel<L2Kind>;
constexpr OpDef kReduceSumSquare = reduction(
    "ReduceSumSquare", {{.domain = "", .name = "ReduceSumSquare", .since = 1, .lower = lower_norm}}, sum_square_gradient, along<zero>);
constexpr Kernel kReduceSumSquareKernel = arithmetic_kernel<SumSquareKind>;

// dx = dy times the product of the other elements
constexpr OpDef kReduceProdGrad{
    .name = "ReduceProdGrad",
    .infer = infer_prod_grad,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kReduceProdGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = reduction_cost,
    .workspace = prod_grad_workspace,
    .prepare = prepare_prod_grad,
};

ORT_TRAIN_OPS_END
