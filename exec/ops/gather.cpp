// Gather{axis}, GatherElements{axis}, GatherND{batch_dims} (ONNX Gather-1, GatherElements-11, GatherND-11 and later): reading by index.
// Compress lowers to Gather, ReverseSequence to GatherND, Resize and Upsample to Gather or a product (resize.cpp).
//
// Negative indices count from the end; one outside is an Error(data). Gradients add what was read back into zeros, in the order of the
// indices: GatherGrad{axis, shape}(dy, indices), GatherNDGrad{batch_dims, shape}(dy, indices); GatherElements' is ScatterElements.
//
// Where a table is in parts, each a range of its rows (passes/split_weights.h), GatherPart{first, total}(part, indices, base?) puts the
// rows that lie in it into the base, in place; without one, what other parts hold is left to the nodes that fill it next.
// GatherGrad{axis, shape, first, rows} makes the gradient of rows [first, first + rows) of a table of that shape: how it adds is chosen by
// the whole table. GatherGrad(dy, indices, base) adds to the base, what other uses of a table leave, in place instead of to zeros, and
// AccumulateGatherGrad(dy, indices, sum), with its attributes, to a sum of gradients.
//
// Rows of a table that is stored in blocks (graph/weight_blocks.h) are decoded as they are read, to float32.
//
// GatherGrad serves embeddings: (2048 indices) x [50257, 768] is a matter of writing 154 MB of zeros, so each task clears a block of rows
// and adds to it while it is in the cache.

#include "exec/ops/gather.h"

#include <cstring>
#include <numeric>

#include "exec/block_decode.h"
#include "exec/op_list.h"
#include "exec/ops/resize.h"
#include "exec/ops/sampling.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// --- Gather ---------------------------------------------------------------------------------------------------------------------------

void lower_gather(Lowering& l) { l.pass_on("Gather", {{"axis", indexed_axis(l.node.attributes, l.shape(l.input(0)))}}); }

// Of the axis (of the flat tensor, where there is none) what the condition says: a shorter one says no more than that.
void lower_compress(Lowering& l) {
  ValueId x = l.input(0);
  const Tensor& condition = l.constant_input(1, "which elements Compress keeps");
  if (condition.dtype != DType::boolean || condition.shape.size() != 1)
    l.fail(fmt::format("its condition is {}, not a list of booleans", to_string(condition.type())));
  int64_t axis = 0;
  if (l.node.attributes.has("axis"))
    axis = indexed_axis(l.node.attributes, l.shape(x));
  else
    x = l.reshape(x, {element_count(l.shape(x))});
  const std::vector<int64_t> keeps = condition.to_int64();
  if (static_cast<int64_t>(keeps.size()) > l.shape(x)[axis])
    l.fail(fmt::format("its condition has {} elements for an axis of {}", keeps.size(), l.shape(x)[axis]));
  std::vector<int64_t> kept;
  for (size_t i = 0; i < keeps.size(); ++i) {
    if (keeps[i] != 0) kept.push_back(static_cast<int64_t>(i));
  }
  const ValueId indices = l.constant(make_tensor<int64_t>({static_cast<int64_t>(kept.size())}, kept));
  l.output(0, l.emit("Gather", {x, indices}, {{"axis", axis}}));
}

// The type of a table's rows: those of blocks come as float32.
DType looked_up(DType table) { return is_weight_blocks(table) ? DType::float32 : table; }

std::vector<TensorType> infer_gather(const InferContext& context) {
  const TensorType& data = context.input(0);
  require_indices(context, 1);
  if (is_weight_blocks(data.dtype) && indexed_axis(context.attributes, data.shape) != 0)
    throw error(ErrorCode::unsupported, "of {} only rows are looked up", to_string(data));
  return {{looked_up(data.dtype), gathered_shape(data.shape, context.input(1).shape, indexed_axis(context.attributes, data.shape))}};
}

void gather_gradient(const Node& node, GradientBuilder& g) {
  const Shape shape = g.shape(node.inputs[0]);
  if (g.wants(0)) {
    g.input_gradient(0, g.emit("GatherGrad", {g.output_gradient(0), node.inputs[1]},
                               {{"axis", indexed_axis(node.attributes, shape)}, {"shape", shape}}));
  }
}

// Rows of a table that is stored in blocks, as float32: each is decoded where it goes.
template <typename Index> void gather_decoded(const KernelArgs& args, DType dtype, int64_t count, int64_t row, const TablePart& part) {
  const Index* const indices = args.in<Index>(1);
  auto* const out = args.out<float>(0);
  args.workers().parallel_blocks(count, per_task(kTaskBytes, std::max<int64_t>(row * int64_t{sizeof(float)}, 16)),
                                 [&](int64_t begin, int64_t end) {
                                   for (int64_t i = begin; i < end; ++i) {
                                     const int64_t index = checked_index(indices[i], part.total, i, args);
                                     const int64_t at = index < 0 ? -1 : part.position(index);
                                     if (at >= 0) weight_blocks::decode(dtype, args.in<std::byte>(0), at * row, row, out + i * row);
                                   }
                                 });
}

template <typename Index> void gather_rows(const KernelArgs& args, const GatherSizes& sizes, int64_t element_bytes) {
  const std::byte* const data = args.in<std::byte>(0);
  const Index* const indices = args.in<Index>(1);
  std::byte* const out = args.out<std::byte>(0);
  const int64_t bytes = sizes.inner * element_bytes;
  if (bytes == 0) return;
  args.workers().parallel_blocks(sizes.outer * sizes.indices, per_task(kTaskBytes, std::max<int64_t>(bytes, 16)),
                                 [&](int64_t begin, int64_t end) {
                                   int64_t o = begin / sizes.indices, i = begin % sizes.indices;
                                   for (int64_t r = begin; r < end; ++r) {
                                     const int64_t at = checked_index(indices[i], sizes.size, i, args);
                                     if (at >= 0)
                                       std::memcpy(out + r * bytes, data + (o * sizes.size + at) * bytes, static_cast<size_t>(bytes));
                                     if (++i == sizes.indices) {
                                       i = 0;
                                       ++o;
                                     }
                                   }
                                 });
}

KernelRun prepare_gather(const KernelSpec& spec) {
  const Shape& data = spec.inputs[0].shape;
  const GatherSizes sizes(data, spec.inputs[1].shape, indexed_axis(spec.attributes, data));
  return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
    if (const DType dtype = spec.inputs[0].dtype; is_weight_blocks(dtype)) {
      return [sizes, dtype](const KernelArgs& args) {
        gather_decoded<Index>(args, dtype, sizes.indices, sizes.inner, {.first = 0, .rows = sizes.size, .total = sizes.size});
      };
    }
    return [sizes, bytes = size_of(spec.inputs[0].dtype)](const KernelArgs& args) { gather_rows<Index>(args, sizes, bytes); };
  });
}

// --- parts of tables ------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_gather_part(const InferContext& context) {
  const TensorType& data = context.input(0);
  require_indices(context, 1);
  if (data.shape.empty()) throw error(ErrorCode::unsupported, "a scalar has no rows");
  part_of(context.attributes, data.shape[0]);
  const TensorType y{looked_up(data.dtype), gathered_shape(data.shape, context.input(1).shape, 0)};
  if (context.has(2) && context.input(2) != y)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(2)), to_string(y));
  return {y};
}

// Lookups of rows: each finds its row in one of the parts, wherever that begins.
int64_t rows_of_parts(const Graph& graph, const Node& node, size_t input) {
  return input == 0 && indexed_axis(node.attributes, graph.value(node.inputs[0]).shape) == 0 ? 1 : 0;
}

PartNode share(const Graph&, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  return {"GatherPart", {part, node.inputs[1], before}, {{"first", rows.first}, {"total", rows.total}}};
}

int64_t index_limit(const Graph& graph, const Node& node, size_t input) {
  const Value& table = graph.value(node.inputs[0]);
  if (input != 1 || table.kind != ValueKind::parameter) return 0;
  return table.shape[static_cast<size_t>(indexed_axis(node.attributes, table.shape))];
}
int64_t index_limit_of_part(const Graph&, const Node& node, size_t input) {
  return input == 1 ? node.attributes.get("total", int64_t{0}) : 0;
}

KernelRun prepare_gather_part(const KernelSpec& spec) {
  const Shape& data = spec.inputs[0].shape;
  const int64_t count = element_count(spec.inputs[1].shape), bytes = data[0] == 0 ? 0 : spec.inputs[0].bytes() / data[0];
  return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
    if (const DType dtype = spec.inputs[0].dtype; is_weight_blocks(dtype)) {
      return [part = part_of(spec.attributes, data[0]), count, dtype, row = element_count(data.from(1)),
              all = spec.outputs[0].bytes()](const KernelArgs& args) {
        const auto* const base = args.inputs.size() > 2 ? args.in<std::byte>(2) : nullptr;
        if (base && base != args.outputs[0]) copy_parallel(args.workers(), args.outputs[0], base, all);
        gather_decoded<Index>(args, dtype, count, row, part);
      };
    }
    return [part = part_of(spec.attributes, data[0]), count, bytes](const KernelArgs& args) {
      const auto* const base = args.inputs.size() > 2 ? args.in<std::byte>(2) : nullptr;
      std::byte* const out = args.out<std::byte>(0);
      if (base && base != out) copy_parallel(args.workers(), out, base, count * bytes);
      const Index* const indices = args.in<Index>(1);
      args.workers().parallel_blocks(count, per_task(kTaskBytes, std::max<int64_t>(bytes, 16)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = checked_index(indices[i], part.total, i, args), at = row < 0 ? -1 : part.position(row);
          if (at >= 0) std::memcpy(out + i * bytes, args.in<std::byte>(0) + at * bytes, static_cast<size_t>(bytes));
        }
      });
    };
  });
}

// --- its gradient ---------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_gather_grad(const InferContext& context) {
  Shape shape = table_of(context.attributes);
  require_indices(context, 1);
  const int64_t axis = indexed_axis(context.attributes, shape);
  if (gathered_shape(shape, context.input(1).shape, axis) != context.input(0).shape) {
    throw error(ErrorCode::unsupported, "{} isn't what indices {} gather from {}", to_string(context.input(0).shape),
                to_string(context.input(1).shape), to_string(shape));
  }
  shape[static_cast<size_t>(axis)] = made_part(context.attributes).rows;
  const TensorType result{context.input(0).dtype, shape};
  if (context.has(2) && context.input(2) != result)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(2)), to_string(result));
  return {result};
}

std::vector<TensorType> infer_accumulated(const InferContext& context) {
  if (!context.has(2)) throw error(ErrorCode::unsupported, "rows are added to no sum");
  return infer_gather_grad(context);
}

// `shape` stays that of the whole table.
std::optional<PartNode> gradient_rows(const Graph&, const Node& node, const RowRange& rows) {
  if (indexed_axis(node.attributes, table_of(node.attributes)) != 0) return std::nullopt;
  Attributes attributes = node.attributes;
  attributes.set("first", rows.first);
  attributes.set("rows", rows.count);
  return PartNode{"GatherGrad", node.inputs, attributes};
}

std::optional<PartNode> accumulated(const Graph& graph, const Node& node, ValueId sum) {
  const bool in_rows = indexed_axis(node.attributes, table_of(node.attributes)) == 0;  // or parts couldn't be made by themselves
  if (!in_rows || node.inputs.size() != 2 || graph.value(node.inputs[0]).dtype != graph.value(sum).dtype) return std::nullopt;
  return PartNode{"AccumulateGatherGrad", {node.inputs[0], node.inputs[1], sum}, node.attributes};
}

Workspace gather_grad_workspace(const KernelSpec& spec) { return {.shared = gather_grad_scatter(spec).workspace()}; }

template <typename T, typename Index>
void gather_grad(const KernelArgs& args, const RowScatter& scatter, const TablePart& part, int64_t bytes) {
  const Index* const indices = args.in<Index>(1);
  const void* const base = args.inputs.size() > 2 ? args.inputs[2] : nullptr;
  if (base && base != args.outputs[0]) copy_parallel(args.workers(), args.outputs[0], base, bytes);
  for (int64_t i = 0; i < scatter.updates(); ++i) checked_index(indices[i], part.total, i, args);
  scatter.run<AddTo>(
      args.workers(), args.out<T>(0), args.in<T>(0), args.workspace, [&](int64_t, int64_t i) { return part.position(indices[i]); },
      base != nullptr);
}

KernelRun prepare_gather_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [scatter = gather_grad_scatter(spec), part = made_part(spec.attributes),
              bytes = spec.outputs[0].bytes()](const KernelArgs& args) { gather_grad<T, Index>(args, scatter, part, bytes); };
    });
  });
}

// --- GatherElements -------------------------------------------------------------------------------------------------------------------

void lower_gather_elements(Lowering& l) { l.pass_on("GatherElements", {{"axis", indexed_axis(l.node.attributes, l.shape(l.input(0)))}}); }

std::vector<TensorType> infer_gather_elements(const InferContext& context) {
  const TensorType &data = context.input(0), &indices = context.input(1);
  require_indices(context, 1);
  const int64_t axis = indexed_axis(context.attributes, data.shape);
  bool valid = indices.shape.size() == data.shape.size();
  for (int64_t i = 0; valid && i < static_cast<int64_t>(data.shape.size()); ++i) valid = i == axis || indices.shape[i] <= data.shape[i];
  if (!valid) {
    throw error(ErrorCode::unsupported, "indices of the shape {} don't fit data of the shape {}", to_string(indices.shape),
                to_string(data.shape));
  }
  return {{data.dtype, indices.shape}};
}

void gather_elements_gradient(const Node& node, GradientBuilder& g) {
  if (!g.wants(0)) return;
  const Shape shape = g.shape(node.inputs[0]);
  const ValueId zeros = g.zeros(shape, g.dtype(node.inputs[0]));
  g.input_gradient(0, g.emit("ScatterElements", {zeros, node.inputs[1], g.output_gradient(0)},
                             {{"axis", indexed_axis(node.attributes, shape)}, {"reduction", std::string("add")}}));
}

KernelRun prepare_gather_elements(const KernelSpec& spec) {
  const ElementLines lines(spec);
  return for_word(size_of(spec.inputs[0].dtype), [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [=](const KernelArgs& args) {
        const Index* const indices = args.in<Index>(1);
        const T* const in = args.in<T>(0);
        T* const out = args.out<T>(0);
        args.workers().parallel_blocks(lines.loop.count, kTaskElements, [&](int64_t begin, int64_t end) {
          walk(lines.loop, begin, end, [&](const std::array<int64_t, 1>& offsets, int64_t first, int64_t run) {
            for (int64_t i = 0; i < run; ++i) {
              const int64_t at = checked_index(indices[first + i], lines.size, first + i, args);
              if (at >= 0) out[first + i] = in[offsets[0] + i * lines.loop.inner_stride(0) + at * lines.step];
            }
          });
        });
      };
    });
  });
}

// --- GatherND -------------------------------------------------------------------------------------------------------------------------

// The first `length` steps of each sample, from the last to the first; what is behind them stays.
void lower_reverse_sequence(Lowering& l) {
  ValueId x = l.input(0);
  const Shape shape = l.shape(x);
  const int64_t batch_axis = l.node.attributes.get("batch_axis", 1), time_axis = l.node.attributes.get("time_axis", 0);
  if (shape.size() < 2 || batch_axis < 0 || batch_axis > 1 || time_axis != 1 - batch_axis)
    l.fail(fmt::format("batch_axis {} and time_axis {} of {} are not its first two axes", batch_axis, time_axis, to_string(shape)));
  const int64_t batch = shape[batch_axis], steps = shape[time_axis];
  if (l.shape(l.input(1)) != Shape{batch})
    l.fail(fmt::format("sequence_lens has the shape {} instead of [{}]", to_string(l.shape(l.input(1))), batch));
  std::vector<int64_t> counted(static_cast<size_t>(steps));
  std::iota(counted.begin(), counted.end(), 0);
  std::vector<int64_t> swap(shape.size());
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[0], swap[1]);
  if (batch_axis == 1) x = l.transpose(x, swap);
  const ValueId time = l.constant(make_tensor<int64_t>({1, steps}, counted));
  const ValueId length = l.reshape(l.cast(l.input(1), DType::int64), {batch, 1});
  const ValueId mirrored = l.emit("Sub", {l.emit("Sub", {length, l.scalar_like(length, 1)}), time});
  const ValueId from = l.emit("Where", {l.emit("Less", {time, length}), mirrored, time});
  x = l.emit("GatherND", {x, l.reshape(from, {batch, steps, 1})}, {{"batch_dims", int64_t{1}}});
  l.output(0, batch_axis == 1 ? l.transpose(x, swap) : x);
}

std::vector<TensorType> infer_gather_nd(const InferContext& context) {
  require_indices(context, 1);
  return {{context.input(0).dtype, tuples_shape(context.input(0).shape, context.input(1).shape, context.attributes.get("batch_dims", 0))}};
}

void gather_nd_gradient(const Node& node, GradientBuilder& g) {
  if (!g.wants(0)) return;
  g.input_gradient(0, g.emit("GatherNDGrad", {g.output_gradient(0), node.inputs[1]},
                             {{"batch_dims", node.attributes.get("batch_dims", 0)}, {"shape", g.shape(node.inputs[0])}}));
}

KernelRun prepare_gather_nd(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, spec.attributes.get("batch_dims", 0));
  return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
    return [tuples, bytes = tuples.row * size_of(spec.inputs[0].dtype)](const KernelArgs& args) {
      if (bytes == 0) return;
      args.workers().parallel_blocks(
          tuples.batches * tuples.tuples, per_task(kTaskBytes, std::max<int64_t>(bytes, 16)), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t row = tuples.position(args.in<Index>(1), i, args), at = i / tuples.tuples * tuples.rows + row;
              if (row >= 0) std::memcpy(args.out<std::byte>(0) + i * bytes, args.in<std::byte>(0) + at * bytes, static_cast<size_t>(bytes));
            }
          });
    };
  });
}

std::vector<TensorType> infer_gather_nd_grad(const InferContext& context) {
  const Shape shape = context.attributes.get("shape", Shape{});
  require_indices(context, 1);
  if (tuples_shape(shape, context.input(1).shape, context.attributes.get("batch_dims", 0)) != context.input(0).shape) {
    throw error(ErrorCode::unsupported, "{} isn't what indices {} gather from {}", to_string(context.input(0).shape),
                to_string(context.input(1).shape), to_string(shape));
  }
  return {{context.input(0).dtype, shape}};
}

// The positions, then what the scatter wants.
Workspace gather_nd_grad_workspace(const KernelSpec& spec) {
  return {.shared = gather_nd_grad_tuples(spec).positions_bytes() + gather_nd_grad_scatter(spec).workspace()};
}

KernelRun prepare_gather_nd_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [tuples = gather_nd_grad_tuples(spec), scatter = gather_nd_grad_scatter(spec)](const KernelArgs& args) {
        int64_t* const positions = reinterpret_cast<int64_t*>(args.workspace);
        tuples.positions<Index>(args, 1, positions);
        scatter.run<AddTo>(args.workers(), args.out<T>(0), args.in<T>(0), args.workspace + tuples.positions_bytes(),
                           [&](int64_t o, int64_t i) { return positions[o * tuples.tuples + i]; });
      };
    });
  });
}

AxisPath along_gather(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const auto own = static_cast<size_t>(indexed_axis(node.attributes, graph.value(node.inputs[0]).shape));
  if (input == 1) return {.use = AxisPath::kept, .axis = own + axis};
  if (axis == own) return {};
  return {.use = AxisPath::kept, .axis = axis < own ? axis : axis - 1 + graph.value(node.inputs[1]).shape.size()};
}

AxisPath along_gather_elements(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const auto own = static_cast<size_t>(indexed_axis(node.attributes, graph.value(node.inputs[0]).shape));
  if (input == 0 && axis == own) return {};
  return {.use = AxisPath::kept, .axis = axis};
}

AxisPath along_gather_nd(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const Shape& indices = graph.value(node.inputs[1]).shape;
  const auto batch = static_cast<size_t>(node.attributes.get("batch_dims", 0)), places = static_cast<size_t>(indices.back());
  if (input == 1 ? axis + 1 < indices.size() : axis < batch) return {.use = AxisPath::kept, .axis = axis};
  if (input == 1 || axis < batch + places) return {};
  return {.use = AxisPath::kept, .axis = indices.size() - 1 + axis - batch - places};
}

}  // namespace

constexpr OpDef kGather{
    .name = "Gather",
    .onnx = {{.domain = "", .name = "Gather", .since = 1, .lower = lower_gather},
             {.domain = "", .name = "Compress", .since = 9, .lower = lower_compress},
             {.domain = "", .name = "Resize", .since = 10, .lower = lower_resize},
             {.domain = "", .name = "Upsample", .since = 7, .lower = lower_upsample},
             {.domain = "", .name = "GridSample", .since = 16, .lower = lower_grid_sample},
             {.domain = "", .name = "RoiAlign", .since = 10, .lower = lower_roi_align}},
    .infer = infer_gather,
    .gradient = gather_gradient,
    .traits = {.index_limit = index_limit, .division = {.rows = rows_of_parts, .share = share}, .along = along_gather},
    .standard = 13,
};
constexpr Kernel kGatherKernel{
    .types = kAnyType,
    .typed = kResult,
    .reads_blocks = true,
    .cost = gather_cost,
    .prepare = prepare_gather,
};

constexpr OpDef kGatherPart{
    .name = "GatherPart",
    .infer = infer_gather_part,
    .no_gradient = "tables are divided behind the gradients",
    .traits = {.index_limit = index_limit_of_part},
};
constexpr Kernel kGatherPartKernel{
    .types = kAnyType,
    .typed = kResult,
    .reads_blocks = true,
    .in_place = {{.output = 0, .input = 2}},
    .cost = gather_part_cost,
    .prepare = prepare_gather_part,
};

constexpr OpDef kGatherGrad{
    .name = "GatherGrad",
    .infer = infer_gather_grad,
    .no_gradient = kNoSecondDerivative,
    .traits = {.division = {.gradient = gradient_rows}, .accumulated = accumulated},
};
constexpr Kernel kGatherGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 2}},
    .cost = gather_grad_cost,
    .workspace = gather_grad_workspace,
    .prepare = prepare_gather_grad,
};

constexpr OpDef kAccumulateGatherGrad{
    .name = "AccumulateGatherGrad",
    .infer = infer_accumulated,
    .no_gradient = kNoSecondDerivative,
    .writes = {{.output = 0, .input = 2}},
};
constexpr Kernel kAccumulateGatherGradKernel{
    .types = kWide,
    .cost = gather_grad_cost,
    .workspace = gather_grad_workspace,
    .prepare = prepare_gather_grad,
};

constexpr OpDef kGatherElements{
    .name = "GatherElements",
    .onnx = {{.domain = "", .name = "GatherElements", .since = 11, .lower = lower_gather_elements}},
    .infer = infer_gather_elements,
    .gradient = gather_elements_gradient,
    .traits = {.along = along_gather_elements},
    .standard = 13,
};
constexpr Kernel kGatherElementsKernel{
    .types = kAnyType,
    .cost = gather_cost,
    .prepare = prepare_gather_elements,
};

constexpr OpDef kGatherND{
    .name = "GatherND",
    .onnx = {{.domain = "", .name = "GatherND", .since = 11},
             {.domain = "", .name = "ReverseSequence", .since = 10, .lower = lower_reverse_sequence}},
    .infer = infer_gather_nd,
    .gradient = gather_nd_gradient,
    .traits = {.along = along_gather_nd},
    .standard = 13,
};
constexpr Kernel kGatherNDKernel{
    .types = kAnyType,
    .cost = gather_cost,
    .prepare = prepare_gather_nd,
};

constexpr OpDef kGatherNDGrad{
    .name = "GatherNDGrad",
    .infer = infer_gather_nd_grad,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kGatherNDGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = comparison_cost,
    .workspace = gather_nd_grad_workspace,
    .prepare = prepare_gather_nd_grad,
};

ORT_TRAIN_OPS_END
