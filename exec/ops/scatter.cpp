// ScatterElements{axis, reduction} and ScatterND{reduction} (ONNX Scatter-9, ScatterElements-11, ScatterND-11 and later): writing by index.
//
// y = data with updates put at the indices: reduction none or add. What reduces by mul, max or min are ops of their own,
// ScatterElementsReduce and ScatterNDReduce, since they have no gradient. Updates that meet (which ONNX forbids for none) are combined in
// their order.

#include "exec/scatter.h"

#include <cstring>

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

std::string reduction_of(const Attributes& attributes) { return attributes.get("reduction", "none"); }

bool is_differentiable(const std::string& reduction) { return reduction == "none" || reduction == "add"; }

template <bool kReducing> void check_reduction(const Attributes& attributes) {
  const std::string reduction = reduction_of(attributes);
  const bool known = kReducing ? reduction == "mul" || reduction == "max" || reduction == "min" : is_differentiable(reduction);
  if (!known) throw error(ErrorCode::unsupported, "the reduction '{}' is unknown", reduction);
}

ValueId zeros_like(GradientBuilder& g, ValueId value) {
  return g.emit("ConstantOfShape", {}, {{"shape", g.shape(value)}, {"value", Tensor(g.dtype(value), {1})}});
}

// Calls body(Combine{}, null pointer to the element type): replacing works on bits, the others on numbers.
template <typename Body> void with_combine(const std::string& reduction, DType dtype, std::string_view op, Body&& body) {
  if (reduction == "none") return with_element_size(size_of(dtype), [&](auto* type) { body(Replace{}, type); });
  const auto typed = [&](auto* type) {
    if (reduction == "add")
      body(AddTo{}, type);
    else if (reduction == "mul")
      body(MultiplyBy{}, type);
    else if (reduction == "max")
      body(MaximumOf{}, type);
    else
      body(MinimumOf{}, type);
  };
  switch (dtype) {
    case DType::float32:
      return typed(static_cast<float*>(nullptr));
    case DType::float64:
      return typed(static_cast<double*>(nullptr));
    case DType::int64:
      return typed(static_cast<int64_t*>(nullptr));
    case DType::int32:
      return typed(static_cast<int32_t*>(nullptr));
    default:
      no_kernel(op, dtype);
  }
}

// --- ScatterElements ------------------------------------------------------------------------------------------------------------------

int64_t axis_of(const Attributes& attributes, const Shape& shape) {
  return normalize_axis(attributes.get("axis", 0), static_cast<int64_t>(shape.size()), "axis");
}

void lower_scatter_elements(Lowering& l) {
  const std::string reduction = reduction_of(l.node.attributes);
  l.pass_on(is_differentiable(reduction) ? "ScatterElements" : "ScatterElementsReduce",
            {{"axis", axis_of(l.node.attributes, l.shape(l.input(0)))}, {"reduction", reduction}});
}

template <bool kReducing> std::vector<TensorType> infer_scatter_elements(const InferContext& context) {
  const TensorType &data = context.input(0), &indices = context.input(1), &updates = context.input(2);
  check_reduction<kReducing>(context.attributes);
  require_indices(context, 1);
  const int64_t axis = axis_of(context.attributes, data.shape);
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
  if (g.wants(0)) {
    const bool adds = reduction_of(node.attributes) == "add";
    g.input_gradient(0, adds ? dy : g.emit("ScatterElements", {dy, indices, zeros_like(g, node.inputs[2])}, axis));
  }
  if (g.wants(2)) g.input_gradient(2, g.emit("GatherElements", {dy, indices}, axis));
}

template <typename Combine, typename T, typename Index>
void scatter_elements(const KernelArgs& args, const StridedLoop<2>& loop, int64_t length, int64_t size, int64_t index_step, int64_t step) {
  // A task owns some lines along the axis; in it, position by position along the axis, so that memory is read in order.
  T* const out = args.out<T>(0);
  const T* const updates = args.in<T>(2);
  const Index* const indices = args.in<Index>(1);
  args.workers.parallel_blocks(
      loop.count, std::max<int64_t>(16, kTaskElements / std::max<int64_t>(length, 1)), [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < length; ++k) {
          walk(loop, begin, end, [&](const std::array<int64_t, 2>& offsets, int64_t, int64_t run) {
            for (int64_t i = 0; i < run; ++i) {
              const int64_t from = offsets[0] + i * loop.inner_stride(0) + k * index_step;
              T& to = out[offsets[1] + i * loop.inner_stride(1) + checked_index(indices[from], size, "ScatterElements") * step];
              to = Combine::combine(to, updates[from]);
            }
          });
        }
      });
}

KernelRun prepare_scatter_elements(const KernelSpec& spec) {
  const Shape &data = spec.inputs[0].shape, &indices = spec.inputs[1].shape;
  const DType dtype = spec.inputs[0].dtype, index_dtype = spec.inputs[1].dtype;
  const int64_t axis = axis_of(spec.attributes, data), bytes = spec.outputs[0].bytes();
  const std::vector<int64_t> data_strides = strides_of(data), index_strides = strides_of(indices);
  Shape lines = indices;
  lines[axis] = indices[axis] == 0 ? 0 : 1;
  const StridedLoop<2> loop(lines, {index_strides, data_strides});
  const int64_t length = indices[axis], size = data[axis], index_step = index_strides[axis], step = data_strides[axis];
  const std::string reduction = reduction_of(spec.attributes);
  KernelRun run;
  with_combine(reduction, dtype, "ScatterElements", [&](auto combine, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Combine = decltype(combine);
    run = [=](const KernelArgs& args) {
      if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers, args.outputs[0], args.inputs[0], bytes);
      with_index(index_dtype, [&](auto* index) {
        scatter_elements<Combine, T, std::remove_pointer_t<decltype(index)>>(args, loop, length, size, index_step, step);
      });
    };
  });
  return run;
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
  if (g.wants(0)) {
    const bool adds = reduction_of(node.attributes) == "add";
    g.input_gradient(0, adds ? dy : g.emit("ScatterND", {dy, indices, zeros_like(g, node.inputs[2])}));
  }
  if (g.wants(2)) g.input_gradient(2, g.emit("GatherND", {dy, indices}));
}

RowScatter scatter_of(const KernelSpec& spec, const IndexTuples& tuples) {
  return RowScatter({.outer = 1, .rows = tuples.rows, .row = tuples.row, .updates = tuples.tuples, .zeros_first = false},
                    size_of(spec.outputs[0].dtype));
}

// The positions, then what the scatter wants.
int64_t scatter_nd_workspace(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, 0);
  return tuples.positions_bytes() + scatter_of(spec, tuples).workspace();
}

KernelRun prepare_scatter_nd(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, 0);
  const RowScatter scatter = scatter_of(spec, tuples);
  const DType index_dtype = spec.inputs[1].dtype;
  const int64_t bytes = spec.outputs[0].bytes();
  KernelRun run;
  with_combine(reduction_of(spec.attributes), spec.inputs[0].dtype, "ScatterND", [&](auto combine, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Combine = decltype(combine);
    run = [=](const KernelArgs& args) {
      int64_t* const positions = reinterpret_cast<int64_t*>(args.workspace);
      with_index(index_dtype, [&](auto* index) {
        tuples.positions(args.workers, args.in<std::remove_pointer_t<decltype(index)>>(1), positions, "ScatterND");
      });
      if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers, args.outputs[0], args.inputs[0], bytes);
      scatter.run<Combine>(args.workers, args.out<T>(0), args.in<T>(2), args.workspace + tuples.positions_bytes(),
                           [&](int64_t, int64_t i) { return positions[i]; });
    };
  });
  return run;
}

constexpr std::string_view kReducedHint = "export with reduction=add, or freeze what comes before it";

}  // namespace

const OpDef kScatterElements{
    .name = "ScatterElements",
    .onnx = {{.domain = "", .name = "ScatterElements", .since = 11, .lower = lower_scatter_elements},
             {.domain = "", .name = "Scatter", .since = 9, .lower = lower_scatter_elements}},
    .infer = infer_scatter_elements<false>,
    .gradient = scatter_elements_gradient,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .kernel = {.cpu = prepare_scatter_elements},
    .standard = 18,
};

const OpDef kScatterElementsReduce{
    .name = "ScatterElementsReduce",
    .infer = infer_scatter_elements<true>,
    .no_gradient = "scattering with reduction mul, max or min has no gradient",
    .hint = kReducedHint,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .kernel = {.cpu = prepare_scatter_elements},
};

const OpDef kScatterND{
    .name = "ScatterND",
    .onnx = {{.domain = "", .name = "ScatterND", .since = 11, .lower = lower_scatter_nd}},
    .infer = infer_scatter_nd<false>,
    .gradient = scatter_nd_gradient,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .kernel = {.cpu = prepare_scatter_nd, .workspace = scatter_nd_workspace},
    .standard = 18,
};

const OpDef kScatterNDReduce{
    .name = "ScatterNDReduce",
    .infer = infer_scatter_nd<true>,
    .no_gradient = "scattering with reduction mul, max or min has no gradient",
    .hint = kReducedHint,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .kernel = {.cpu = prepare_scatter_nd, .workspace = scatter_nd_workspace},
};

ORT_TRAIN_OPS_END
