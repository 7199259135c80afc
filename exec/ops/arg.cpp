// ArgMax and ArgMin{axis, keepdims, select_last_index} -> int64, TopK{axis, k, largest, sorted}(x) -> values, indices (ONNX 1 and later of
// each).
//
// Hardmax lowers to ArgMax and OneHot. Of equal elements the first wins (the last with select_last_index); NaN wins over every number. TopK
// is always sorted; its gradient goes back to where the values came from.

#include "exec/ops/arg.h"

#include <limits>

#include "exec/op_list.h"
#include "exec/reduce.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// --- ArgMax, ArgMin -------------------------------------------------------------------------------------------------------------------

void lower_arg(Lowering& l) {
  const Attributes& given = l.node.attributes;
  l.pass_on(l.node.op_type, {{"axis", line_axis(given, l.shape(l.input(0)), 0)},
                             {"keepdims", given.get("keepdims", 1)},
                             {"select_last_index", given.get("select_last_index", 0)}});
}

// One where the first of the largest stands, else zero. Before opset 13 all axes from `axis` on are one.
void lower_hardmax(Lowering& l) {
  constexpr int kOneAxis = 13;
  ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const bool one_axis = l.node.opset >= kOneAxis;
  int64_t axis = normalize_axis(l.node.attributes.get("axis", one_axis ? -1 : 1), static_cast<int64_t>(shape.size()), "axis");
  if (!one_axis) {
    x = l.reshape(x, {element_count(shape.before(static_cast<size_t>(axis))), element_count(shape.from(static_cast<size_t>(axis)))});
    axis = 1;
  }
  const int64_t length = l.shape(x)[axis];
  const ValueId largest = l.emit("ArgMax", {x}, {{"axis", axis}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}});
  const ValueId values =
      l.emit("Concat", {l.reshape(l.scalar_like(x, 0), {1}), l.reshape(l.scalar_like(x, 1), {1})}, {{"axis", int64_t{0}}});
  l.output(0, l.reshape(l.emit("OneHot", {largest, values}, {{"axis", axis}, {"depth", length}}), shape));
}

std::vector<TensorType> infer_arg(const InferContext& context) {
  Shape shape = context.input(0).shape;
  const int64_t axis = line_axis(context.attributes, shape, 0);
  if (shape[axis] == 0) throw error(ErrorCode::unsupported, "axis {} of {} is empty", axis, to_string(shape));
  if (context.attributes.get("keepdims", 1) != 0)
    shape[axis] = 1;
  else
    shape.erase(shape.begin() + axis);
  return {{DType::int64, shape}};
}

// Contiguous lines: the extreme in vectors, then where it is.
template <bool kLargest, bool kLast, typename T> void run_arg_rows(const KernelArgs& args, const Lines& lines) {
  using Kind = std::conditional_t<kLargest, MaxKind<T>, MinKind<T>>;
  args.workers().parallel_blocks(lines.outer, per_task(kTaskElements, lines.length), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const T* const x = args.in<T>(0) + o * lines.length;
      const T best = reduce_run<Kind>(x, lines.length);
      const auto is_best = [best](T here) { return here == best || (here != here && best != best); };
      int64_t at = kLast ? lines.length - 1 : 0;
      while (!is_best(x[at])) at += kLast ? -1 : 1;
      args.out<int64_t>(0)[o] = at;
    }
  });
}

template <bool kLargest, bool kLast, typename T> void run_arg(const KernelArgs& args, const Lines& lines) {
  if (lines.inner == 1) return run_arg_rows<kLargest, kLast, T>(args, lines);
  constexpr int64_t kColumns = 128;
  const int64_t columns = std::max<int64_t>(1, std::min(lines.inner, kColumns)), blocks = (lines.inner + columns - 1) / columns;
  args.workers().parallel_blocks(lines.outer * blocks, per_task(kTaskElements, lines.length * columns), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t left = task % blocks * columns, width = std::min(columns, lines.inner - left), o = task / blocks;
      const T* const x = args.in<T>(0) + o * lines.length * lines.inner + left;
      T best[kColumns];
      int64_t at[kColumns] = {};
      std::copy_n(x, width, best);
      for (int64_t k = 1; k < lines.length; ++k) {
        for (int64_t c = 0; c < width; ++c) {
          const T here = x[k * lines.inner + c];
          if (beats<kLargest>(here, best[c]) || (kLast && !beats<kLargest>(best[c], here))) {
            best[c] = here;
            at[c] = k;
          }
        }
      }
      std::copy_n(at, width, args.out<int64_t>(0) + o * lines.inner + left);
    }
  });
}

template <bool kLargest> KernelRun prepare_arg(const KernelSpec& spec) {
  const Lines lines(spec.inputs[0].shape, line_axis(spec.attributes, spec.inputs[0].shape, 0));
  return for_type(Ordered{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    if (spec.attributes.get("select_last_index", 0) != 0)
      return [lines](const KernelArgs& args) { run_arg<kLargest, true, T>(args, lines); };
    return [lines](const KernelArgs& args) { run_arg<kLargest, false, T>(args, lines); };
  });
}

AxisPath along_arg(const Graph& graph, const Node& node, size_t, size_t axis) {
  const bool keeps = node.attributes.get("keepdims", 1) != 0;
  const auto own = static_cast<size_t>(
      normalize_axis(node.attributes.get("axis", 0), static_cast<int64_t>(graph.value(node.inputs[0]).shape.size()), "axis"));
  if (axis == own) return {};
  return {.use = AxisPath::kept, .axis = axis > own && !keeps ? axis - 1 : axis};
}

constexpr OpDef arg_op(std::string_view name, List<OnnxForm, 6> forms) {
  return {.name = name,
          .onnx = forms,
          .infer = infer_arg,
          .no_gradient = "positions have no gradient",
          .traits = {.along = along_arg},
          .standard = 13};
}
constexpr Kernel arg_kernel(Prepare prepare) {
  return {.types = dtypes_of(Ordered{}), .halves_by_float32 = true, .cost = arg_cost, .prepare = prepare};
}

// --- TopK -----------------------------------------------------------------------------------------------------------------------------

void lower_topk(Lowering& l) {
  const Attributes& given = l.node.attributes;
  const int64_t k = given.has("k") ? given.get("k", 0) : l.integer(1, "k");
  const std::vector<ValueId> results = l.emit_many("TopK", {l.input(0)},
                                                   {{"axis", line_axis(given, l.shape(l.input(0)), -1)},
                                                    {"k", k},
                                                    {"largest", given.get("largest", 1)},
                                                    {"sorted", given.get("sorted", 1)}},
                                                   2);
  l.output_all(results);
}

std::vector<TensorType> infer_topk(const InferContext& context) {
  TensorType type = context.input(0);
  const int64_t axis = line_axis(context.attributes, type.shape, -1), k = context.attributes.get("k", 0);
  if (k < 0 || k > type.shape[axis]) throw error(ErrorCode::unsupported, "the top {} of an axis of {} elements", k, type.shape[axis]);
  type.shape[axis] = k;
  return {type, {DType::int64, type.shape}};
}

void topk_gradient(const Node& node, GradientBuilder& g) {
  const Shape shape = g.shape(node.inputs[0]);
  const ValueId zeros = g.zeros(shape, g.dtype(node.inputs[0]));
  g.input_gradient(
      0, g.emit("ScatterElements", {zeros, node.outputs[1], g.output_gradient(0)}, {{"axis", line_axis(node.attributes, shape, -1)}}));
}

Workspace topk_workspace(const KernelSpec& spec) {
  return {.each = spec.inputs[0].shape[line_axis(spec.attributes, spec.inputs[0].shape, -1)] * static_cast<int64_t>(sizeof(int64_t))};
}

template <bool kLargest, typename T> void run_topk(const KernelArgs& args, const Lines& lines, int64_t k) {
  constexpr int64_t kTogether = 16;
  const int64_t all = lines.outer * lines.inner;
  args.workers().parallel_for((all + kTogether - 1) / kTogether, [&](int64_t task, int worker) {
    int64_t* const order = reinterpret_cast<int64_t*>(args.workspace) + worker * lines.length;
    for (int64_t line = task * kTogether; line < std::min(all, (task + 1) * kTogether); ++line) {
      const int64_t o = line / lines.inner, i = line % lines.inner;
      const T* const x = args.in<T>(0) + o * lines.length * lines.inner + i;
      for (int64_t n = 0; n < lines.length; ++n) order[n] = n;
      std::partial_sort(order, order + k, order + lines.length, [&](int64_t a, int64_t b) {
        const T at_a = x[a * lines.inner], at_b = x[b * lines.inner];
        if (beats<kLargest>(at_a, at_b)) return true;
        return !beats<kLargest>(at_b, at_a) && a < b;
      });
      for (int64_t n = 0; n < k; ++n) {
        const int64_t to = (o * k + n) * lines.inner + i;
        if (args.outputs[0]) args.out<T>(0)[to] = x[order[n] * lines.inner];
        if (args.outputs[1]) args.out<int64_t>(1)[to] = order[n];
      }
    }
  });
}

KernelRun prepare_topk(const KernelSpec& spec) {
  const Lines lines(spec.inputs[0].shape, line_axis(spec.attributes, spec.inputs[0].shape, -1));
  const int64_t k = spec.attributes.get("k", 0);
  return for_type(Ordered{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    if (spec.attributes.get("largest", 1) != 0) return [lines, k](const KernelArgs& args) { run_topk<true, T>(args, lines, k); };
    return [lines, k](const KernelArgs& args) { run_topk<false, T>(args, lines, k); };
  });
}

Cost topk_cost(const KernelSpec& spec) {
  Cost cost = arg_cost(spec);
  cost.flops *= 10;
  return cost;
}

}  // namespace

constexpr OpDef kArgMax = arg_op("ArgMax", {{.domain = "", .name = "ArgMax", .since = 1, .lower = lower_arg},
                                            {.domain = "", .name = "Hardmax", .since = 1, .lower = lower_hardmax}});
constexpr OpDef kArgMin = arg_op("ArgMin", {{.domain = "", .name = "ArgMin", .since = 1, .lower = lower_arg}});
constexpr Kernel kArgMaxKernel = arg_kernel(prepare_arg<true>);
constexpr Kernel kArgMinKernel = arg_kernel(prepare_arg<false>);

constexpr OpDef kTopK{
    .name = "TopK",
    .onnx = {{.domain = "", .name = "TopK", .since = 1, .lower = lower_topk}},
    .infer = infer_topk,
    .gradient = topk_gradient,
    .traits = {.along = along_other_axes},
};
constexpr Kernel kTopKKernel{
    .types = dtypes_of(Ordered{}),
    .halves_by_float32 = true,
    .cost = topk_cost,
    .workspace = topk_workspace,
    .prepare = prepare_topk,
};

ORT_TRAIN_OPS_END
