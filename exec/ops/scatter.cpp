// ScatterElements{axis, reduction} and ScatterND{reduction} (ONNX Scatter-9, ScatterElements-11, ScatterND-11 and later): writing by index.
// TensorScatter lowers to ScatterElements.
//
// y = data with updates put at the indices: reduction none, add, max or min. Reduction mul has ops of its own, ScatterElementsReduce and
// ScatterNDReduce, since it has no gradient. Updates that meet (which ONNX forbids for none) are combined in their order. Where several are
// the largest (or smallest) of an element, or the data are, too, they share its gradient equally.

#include "exec/ops/scatter.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

bool chooses(const std::string& reduction) { return reduction == "max" || reduction == "min"; }
bool is_differentiable(const std::string& reduction) { return reduction == "none" || reduction == "add" || chooses(reduction); }

template <bool kReducing> void check_reduction(const Attributes& attributes) {
  const std::string reduction = reduction_of(attributes);
  const bool known = kReducing ? reduction == "mul" : is_differentiable(reduction);
  if (!known) throw error(ErrorCode::unsupported, "the reduction '{}' is unknown", reduction);
}

ValueId zeros_like(GradientBuilder& g, ValueId value) { return g.zeros(g.shape(value), g.dtype(value)); }

// Of max and min. scatter and gather: the op itself, and what reads what it writes.
void chosen_gradient(const Node& node, GradientBuilder& g, std::string_view scatter, std::string_view gather, Attributes place) {
  const ValueId data = node.inputs[0], indices = node.inputs[1], updates = node.inputs[2], y = node.outputs[0];
  const auto are_equal = [&](ValueId a, ValueId b) { return g.cast(g.emit("Equal", {a, b}), g.dtype(y)); };
  const ValueId of_data = are_equal(data, y), of_updates = are_equal(updates, g.emit(gather, {y, indices}, place));
  Attributes adding = place;
  adding.set("reduction", std::string("add"));
  const ValueId shared = g.emit("Div", {g.output_gradient(0), g.emit(scatter, {of_data, indices, of_updates}, adding)});
  if (g.wants(0)) g.input_gradient(0, g.emit("Mul", {shared, of_data}));
  if (g.wants(2)) g.input_gradient(2, g.emit("Mul", {g.emit(gather, {shared, indices}, place), of_updates}));
}

using Combined = Types<float, double, int64_t, int32_t>;

// --- ScatterElements ------------------------------------------------------------------------------------------------------------------

void lower_scatter_elements(Lowering& l) {
  const std::string reduction = reduction_of(l.node.attributes);
  l.pass_on(is_differentiable(reduction) ? "ScatterElements" : "ScatterElementsReduce",
            {{"axis", indexed_axis(l.node.attributes, l.shape(l.input(0)))}, {"reduction", reduction}});
}

// A cache, in which each sample of the batch gets its update from its own position of `axis` on; circular: modulo the axis.
void lower_tensor_scatter(Lowering& l) {
  const ValueId cache = l.input(0), update = l.input(1);
  const Shape shape = l.shape(cache), part = l.shape(update);
  const int64_t rank = static_cast<int64_t>(shape.size()), axis = normalize_axis(l.node.attributes.get("axis", -2), rank, "axis");
  const std::string mode = l.node.attributes.get("mode", "linear");
  if (mode != "linear" && mode != "circular") l.fail(fmt::format("the mode '{}' is unknown", mode));
  if (axis == 0 || part.size() != shape.size())
    l.fail(fmt::format("an update {} along axis {} doesn't fit {}", to_string(part), axis, to_string(shape)));
  std::vector<int64_t> counted(static_cast<size_t>(part[axis]));
  std::iota(counted.begin(), counted.end(), 0);
  Shape along(shape.size(), 1), batch(shape.size(), 1);
  along[axis] = part[axis];
  batch[0] = shape[0];
  ValueId at = l.constant(make_tensor<int64_t>(along, counted));
  if (l.has(2)) at = l.emit("Add", {l.reshape(l.cast(l.input(2), DType::int64), batch), at});
  if (mode == "circular") at = l.emit("Mod", {at, l.constant(scalar_tensor<int64_t>(std::max<int64_t>(shape[axis], 1)))});
  if (l.shape(at) != part) at = l.emit("Expand", {at}, {{"shape", part}});
  l.output(0, l.emit("ScatterElements", {cache, at, update}, {{"axis", axis}, {"reduction", std::string("none")}}));
}

template <bool kReducing> std::vector<TensorType> infer_scatter_elements(const InferContext& context) {
  const TensorType &data = context.input(0), &indices = context.input(1), &updates = context.input(2);
  check_reduction<kReducing>(context.attributes);
  require_indices(context, 1);
  const int64_t axis = indexed_axis(context.attributes, data.shape);
  bool valid = indices.shape.size() == data.shape.size() && updates.shape == indices.shape && updates.dtype == data.dtype;
  for (int64_t i = 0; valid && i < static_cast<int64_t>(data.shape.size()); ++i) valid = i == axis || indices.shape[i] <= data.shape[i];
  if (!valid)
    throw error(ErrorCode::unsupported, "indices {} and updates {} don't fit data {}", to_string(indices), to_string(updates),
                to_string(data));
  return {data};
}

void scatter_elements_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0), indices = node.inputs[1];
  const Attributes axis{{"axis", node.attributes.get("axis", 0)}};
  if (chooses(reduction_of(node.attributes))) return chosen_gradient(node, g, "ScatterElements", "GatherElements", axis);
  if (g.wants(0)) {
    const bool adds = reduction_of(node.attributes) == "add";
    g.input_gradient(0, adds ? dy : g.emit("ScatterElements", {dy, indices, zeros_like(g, node.inputs[2])}, axis));
  }
  if (g.wants(2)) g.input_gradient(2, g.emit("GatherElements", {dy, indices}, axis));
}

template <typename Combine, typename T, typename Index> void scatter_elements(const KernelArgs& args, const ScatterLines& lines) {
  // A task owns some lines along the axis; in it, position by position along the axis, so that memory is read in order.
  const StridedLoop<2>& loop = lines.loop;
  T* const out = args.out<T>(0);
  const T* const updates = args.in<T>(2);
  const Index* const indices = args.in<Index>(1);
  args.workers().parallel_blocks(loop.count, std::max<int64_t>(16, kTaskElements / std::max<int64_t>(lines.length, 1)),
                                 [&](int64_t begin, int64_t end) {
                                   for (int64_t k = 0; k < lines.length; ++k) {
                                     walk(loop, begin, end, [&](const std::array<int64_t, 2>& offsets, int64_t, int64_t run) {
                                       for (int64_t i = 0; i < run; ++i) {
                                         const int64_t from = offsets[0] + i * loop.inner_stride(0) + k * lines.index_step;
                                         const int64_t at = checked_index(indices[from], lines.size, from, args);
                                         if (at < 0) continue;
                                         T& to = out[offsets[1] + i * loop.inner_stride(1) + at * lines.step];
                                         to = Combine::combine(to, updates[from]);
                                       }
                                     });
                                   }
                                 });
}

KernelRun prepare_scatter_elements(const KernelSpec& spec) {
  const int64_t bytes = spec.outputs[0].bytes();
  return with_combine<Combined>(reduction_of(spec.attributes), spec.inputs[0].dtype, [&]<typename Combine, typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [lines = ScatterLines(spec), bytes](const KernelArgs& args) {
        if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers(), args.outputs[0], args.inputs[0], bytes);
        scatter_elements<Combine, T, Index>(args, lines);
      };
    });
  });
}

// --- ScatterND ------------------------------------------------------------------------------------------------------------------------

void lower_scatter_nd(Lowering& l) {
  const std::string reduction = reduction_of(l.node.attributes);
  l.pass_on(is_differentiable(reduction) ? "ScatterND" : "ScatterNDReduce", {{"reduction", reduction}});
}

template <bool kReducing> std::vector<TensorType> infer_scatter_nd(const InferContext& context) {
  const TensorType &data = context.input(0), &updates = context.input(2);
  check_reduction<kReducing>(context.attributes);
  require_indices(context, 1);
  const Shape expected = tuples_shape(data.shape, context.input(1).shape, 0);
  if (updates.dtype != data.dtype || updates.shape != expected) {
    throw error(ErrorCode::unsupported, "the updates are {}, but must be {} {}", to_string(updates), to_string(data.dtype),
                to_string(expected));
  }
  return {data};
}

void scatter_nd_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0), indices = node.inputs[1];
  if (chooses(reduction_of(node.attributes))) return chosen_gradient(node, g, "ScatterND", "GatherND", {});
  if (g.wants(0)) {
    const bool adds = reduction_of(node.attributes) == "add";
    g.input_gradient(0, adds ? dy : g.emit("ScatterND", {dy, indices, zeros_like(g, node.inputs[2])}));
  }
  if (g.wants(2)) g.input_gradient(2, g.emit("GatherND", {dy, indices}));
}

// The positions, then what the scatter wants.
Workspace scatter_nd_workspace(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, 0);
  return {.shared = tuples.positions_bytes() + scatter_of(spec, tuples).workspace()};
}

KernelRun prepare_scatter_nd(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, 0);
  const RowScatter scatter = scatter_of(spec, tuples);
  const DType index_dtype = spec.inputs[1].dtype;
  const int64_t bytes = spec.outputs[0].bytes();
  return with_combine<Combined>(reduction_of(spec.attributes), spec.inputs[0].dtype, [&]<typename Combine, typename T>() {
    return for_type(Indices{}, index_dtype, [&]<typename Index>() -> KernelRun {
      return [=](const KernelArgs& args) {
        int64_t* const positions = reinterpret_cast<int64_t*>(args.workspace);
        tuples.positions<Index>(args, 1, positions);
        if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers(), args.outputs[0], args.inputs[0], bytes);
        scatter.run<Combine>(args.workers(), args.out<T>(0), args.in<T>(2), args.workspace + tuples.positions_bytes(),
                             [&](int64_t, int64_t i) { return positions[i]; });
      };
    });
  });
}

// What the padding of updates must be for a reduction to leave the data as they are.
AxisPath unwritten(const std::string& reduction, std::string_view reader) {
  if (reduction == "none") return {.use = AxisPath::repeated, .reader = reader};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {.use = AxisPath::filled, .fill = reduction == "mul" ? 1 : reduction == "max" ? -kInfinity : reduction == "min" ? kInfinity : 0};
}

// Indices may be anything inside the data where the updates change nothing.
AxisPath along_scatter_elements(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const auto own = static_cast<size_t>(indexed_axis(node.attributes, graph.value(node.inputs[0]).shape));
  if (axis != own) return {.use = AxisPath::kept, .axis = axis};
  if (input == 0) return {};
  const AxisPath path = unwritten(reduction_of(node.attributes), "GatherElements");
  return input == 2 || path.use == AxisPath::repeated ? path : AxisPath{.use = AxisPath::kept};
}

AxisPath along_scatter_nd(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const Shape& indices = graph.value(node.inputs[1]).shape;
  if (input == 0 || axis + 1 >= indices.size()) return {};
  const AxisPath path = unwritten(reduction_of(node.attributes), "GatherND");
  return input == 2 || path.use == AxisPath::repeated ? path : AxisPath{.use = AxisPath::kept};
}

constexpr std::string_view kReducedHint = "export with reduction add, max or min, or freeze what comes before it";

}  // namespace

constexpr OpDef kScatterElements{
    .name = "ScatterElements",
    .onnx = {{.domain = "", .name = "ScatterElements", .since = 11, .lower = lower_scatter_elements},
             {.domain = "", .name = "Scatter", .since = 9, .lower = lower_scatter_elements},
             {.domain = "", .name = "TensorScatter", .since = 24, .lower = lower_tensor_scatter}},
    .infer = infer_scatter_elements<false>,
    .gradient = scatter_elements_gradient,
    .traits = {.along = along_scatter_elements},
    .standard = 18,
};
constexpr Kernel kScatterElementsKernel{
    .types = kNotHalf,
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_scatter_elements,
};

constexpr OpDef kScatterElementsReduce{
    .name = "ScatterElementsReduce",
    .infer = infer_scatter_elements<true>,
    .no_gradient = "scattering with reduction mul has no gradient",
    .hint = kReducedHint,
    .traits = {.along = along_scatter_elements},
};
constexpr Kernel kScatterElementsReduceKernel{
    .types = dtypes_of(Combined{}),
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_scatter_elements,
};

constexpr OpDef kScatterND{
    .name = "ScatterND",
    .onnx = {{.domain = "", .name = "ScatterND", .since = 11, .lower = lower_scatter_nd}},
    .infer = infer_scatter_nd<false>,
    .gradient = scatter_nd_gradient,
    .traits = {.along = along_scatter_nd},
    .standard = 18,
};
constexpr Kernel kScatterNDKernel{
    .types = kNotHalf,
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .workspace = scatter_nd_workspace,
    .prepare = prepare_scatter_nd,
};

constexpr OpDef kScatterNDReduce{
    .name = "ScatterNDReduce",
    .infer = infer_scatter_nd<true>,
    .no_gradient = "scattering with reduction mul has no gradient",
    .hint = kReducedHint,
    .traits = {.along = along_scatter_nd},
};
constexpr Kernel kScatterNDReduceKernel{
    .types = dtypes_of(Combined{}),
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .workspace = scatter_nd_workspace,
    .prepare = prepare_scatter_nd,
};

ORT_TRAIN_OPS_END
