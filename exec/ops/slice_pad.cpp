// Slice{starts, ends, axes, steps} (ONNX Slice-1 and later) and Pad{pads, mode}(x, value?) (ONNX Pad-2 and later), with what their
// gradients need.
//
// Slice's attributes are normalised: they name the axes that are cut, each once; 0 <= start, end <= dim, or end = -1 for a negative step
// that reaches element 0 (-1 is not "counted from the end" here). Pad has a number before and after each axis; negative ones crop. So the
// gradient of a constant Pad is a Pad with the opposite signs; the other modes have PadGrad{pads, mode, shape}, which adds up what an
// element was copied to, in the order of the output. SliceGrad{starts, ends, axes, steps, shape} puts the slice's gradient back among
// zeros.

#include "exec/ops/slice_pad.h"

#include <numeric>

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// --- Slice ----------------------------------------------------------------------------------------------------------------------------

void lower_slice(Lowering& l) {
  const Shape from = l.shape(l.input(0));
  const int64_t rank = static_cast<int64_t>(from.size());
  const std::vector<int64_t> starts = l.ints_from("starts", 1, {}), ends = l.ints_from("ends", 2, {});
  std::vector<int64_t> all(starts.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> axes = l.ints_from("axes", 3, all), steps = l.ints_from("steps", 4, std::vector<int64_t>(starts.size(), 1));
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    l.fail("starts, ends, axes and steps differ in length");
  }
  std::vector<int64_t> cut_starts, cut_ends, cut_axes, cut_steps;
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t axis = normalize_axis(axes[i], rank, "axis"), dim = from[axis], step = steps[i];
    if (step == 0) l.fail("a step is zero");
    if (dim == 0) continue;
    const auto bound = [&](int64_t at, int64_t low, int64_t high) { return std::clamp(at < 0 ? at + dim : at, low, high); };
    const int64_t start = step > 0 ? bound(starts[i], 0, dim) : bound(starts[i], 0, std::max<int64_t>(dim - 1, 0));
    const int64_t end = step > 0 ? bound(ends[i], 0, dim) : bound(ends[i], -1, dim - 1);
    if (start == 0 && end == dim && step == 1) continue;
    cut_starts.push_back(start);
    cut_ends.push_back(end);
    cut_axes.push_back(axis);
    cut_steps.push_back(step);
  }
  if (cut_axes.empty()) return l.output(0, l.input(0));
  l.pass_on("Slice", {l.input(0)}, {{"starts", cut_starts}, {"ends", cut_ends}, {"axes", cut_axes}, {"steps", cut_steps}});
}

std::vector<TensorType> infer_slice(const InferContext& context) {
  TensorType type = context.input(0);
  const std::vector<AxisSlice> slices = slices_of(context.attributes, type.shape);
  for (size_t i = 0; i < slices.size(); ++i) type.shape[i] = slices[i].count;
  return {type};
}

void slice_gradient(const Node& node, GradientBuilder& g) {
  Attributes attributes = node.attributes;
  attributes.set("shape", g.shape(node.inputs[0]));
  g.input_gradient(0, g.emit("SliceGrad", {g.output_gradient(0)}, attributes));
}

KernelRun prepare_slice(const KernelSpec& spec) {
  return [copy = StridedCopy(slice_layout(spec))](const KernelArgs& args) { copy.run(args.workers(), args.outputs[0], args.inputs[0]); };
}

std::vector<TensorType> infer_slice_grad(const InferContext& context) {
  const Shape shape = context.attributes.get("shape", Shape{});
  const std::vector<AxisSlice> slices = slices_of(context.attributes, shape);
  Shape part;
  for (const AxisSlice& slice : slices) part.push_back(slice.count);
  if (part != context.input(0).shape)
    throw error(ErrorCode::unsupported, "the slice has the shape {}, not {}", to_string(part), to_string(context.input(0).shape));
  return {{context.input(0).dtype, shape}};
}

KernelRun prepare_slice_grad(const KernelSpec& spec) {
  const int64_t bytes = size_of(spec.outputs[0].dtype), count = element_count(spec.outputs[0].shape);
  if (const std::optional<Margins> margins = slice_margins(spec)) {
    return [copy = FramedCopy(bytes, spec.inputs[0].shape, margins->before, margins->after)](const KernelArgs& args) {
      copy.run(args.workers(), args.outputs[0], args.inputs[0], nullptr);
    };
  }
  return [bytes, count, copy = StridedCopy(slice_grad_layout(spec))](const KernelArgs& args) {
    fill_parallel(args.workers(), args.outputs[0], count, nullptr, bytes);
    copy.run(args.workers(), args.outputs[0], args.inputs[0]);
  };
}

// --- Pad ------------------------------------------------------------------------------------------------------------------------------

void lower_pad(Lowering& l) {
  const ValueId x = l.input(0);
  const size_t rank = l.shape(x).size();
  const Attributes& attributes = l.node.attributes;
  const std::vector<int64_t> given =
      attributes.has("paddings") ? attributes.get("paddings", std::vector<int64_t>{}) : l.ints_from("pads", 1, {});
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (l.has(3)) axes = l.ints(3, "axes");
  if (given.size() != 2 * axes.size()) l.fail(fmt::format("{} pads are given for {} axes", given.size(), axes.size()));
  std::vector<int64_t> pads(2 * rank);
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = static_cast<size_t>(normalize_axis(axes[i], static_cast<int64_t>(rank), "axis"));
    pads[axis] = given[i];
    pads[rank + axis] = given[axes.size() + i];
  }
  if (std::all_of(pads.begin(), pads.end(), [](int64_t pad) { return pad == 0; })) return l.output(0, x);
  const std::string mode = attributes.get("mode", "constant");
  std::vector<ValueId> inputs{x};
  if (mode == "constant") {
    if (l.has(2))
      inputs.push_back(l.input(2));
    else if (attributes.get("value", 0.0f) != 0.0f)
      inputs.push_back(l.scalar_like(x, attributes.get("value", 0.0f)));
  }
  l.pass_on("Pad", inputs, {{"pads", pads}, {"mode", mode}});
}

std::vector<TensorType> infer_pad(const InferContext& context) {
  const TensorType& from = context.input(0);
  if (context.has(1) && (context.input(1).dtype != from.dtype || element_count(context.input(1).shape) != 1)) {
    throw error(ErrorCode::unsupported, "the value, {}, is not one element of {}", to_string(context.input(1)), to_string(from.dtype));
  }
  const Shape shape = padded_shape(context.attributes, from.shape);
  element_count(shape);
  return {{from.dtype, shape}};
}

void pad_gradient(const Node& node, GradientBuilder& g) {
  std::vector<int64_t> pads = node.attributes.get("pads", std::vector<int64_t>{});
  if (node.attributes.get("mode", "constant") == "constant") {
    const auto padded = [&](ValueId value, const std::vector<int64_t>& by) {
      return g.emit("Pad", {value}, {{"pads", by}, {"mode", std::string("constant")}});
    };
    std::vector<int64_t> back = pads;
    for (int64_t& pad : back) pad = -pad;
    const ValueId dy = g.output_gradient(0), dx = padded(dy, back);
    if (g.wants(0)) g.input_gradient(0, dx);
    if (node.inputs.size() < 2 || !g.wants(1)) return;
    const ValueId of_padding = g.emit("Sub", {dy, padded(dx, pads)});  // zeros but there
    g.input_gradient(1, g.reshape(g.reduce_to(of_padding, {}), g.shape(node.inputs[1])));
    return;
  }
  if (!g.wants(0)) return;
  Attributes attributes = node.attributes;
  attributes.set("shape", g.shape(node.inputs[0]));
  g.input_gradient(0, g.emit("PadGrad", {g.output_gradient(0)}, attributes));
}

// For each axis, which element of the input an element of the padded output is a copy of; for the modes other than constant.
std::vector<std::vector<int64_t>> sources_of(const Attributes& attributes, const Shape& from) {
  std::vector<std::vector<int64_t>> sources;
  for (const PadAxis& axis : pad_axes(attributes, from)) {
    std::vector<int64_t>& of = sources.emplace_back();
    for (int64_t i = 0; i < axis.out; ++i) of.push_back(axis.source(i));
  }
  return sources;
}

// Axes 0 .. outer - 1 are not padded: their elements, `slabs` in all, are padded one like the other, each on its own.
struct Slabs {
  int64_t slabs = 1, in = 1, out = 1, row = 0;  // elements of a slab, of an output row
  std::vector<std::vector<int64_t>> outer;      // offsets in the slab of the input, by index in each axis but the last
  std::vector<int64_t> last;                    // the same for the last axis

  Slabs(const Attributes& attributes, const Shape& from) {
    const std::vector<std::vector<int64_t>> sources = sources_of(attributes, from);
    const std::vector<int64_t> pads = attributes.get("pads", std::vector<int64_t>{}), strides = strides_of(from);
    size_t first = 0;
    while (first + 1 < from.size() && pads[first] == 0 && pads[from.size() + first] == 0) slabs *= from[first++];
    for (size_t axis = first; axis < from.size(); ++axis) {
      in *= from[axis];
      out *= static_cast<int64_t>(sources[axis].size());
      outer.push_back(sources[axis]);
      for (int64_t& offset : outer.back()) offset *= strides[axis];
    }
    if (from.empty()) outer.push_back({0});
    last = std::move(outer.back());
    outer.pop_back();
    row = static_cast<int64_t>(last.size());
  }

  template <typename Body> void each(Workers& workers, Body&& body) const {
    workers.parallel_blocks(slabs, per_task(kTaskElements, out), [&](int64_t begin, int64_t end) {
      for (int64_t slab = begin; slab < end; ++slab) body(slab);
    });
  }

  // body(output offset, input offset) for each row of a slab, offsets within the slab.
  template <typename Body> void rows(Body&& body) const {
    if (out == 0) return;
    for (int64_t r = 0; r < out / row; ++r) {
      int64_t offset = 0, rest = r;
      for (size_t axis = outer.size(); axis-- > 0;) {
        const int64_t dim = static_cast<int64_t>(outer[axis].size());
        offset += outer[axis][rest % dim];
        rest /= dim;
      }
      body(r * row, offset);
    }
  }
};

KernelRun prepare_pad(const KernelSpec& spec) {
  const Shape& from = spec.inputs[0].shape;
  const int64_t bytes = size_of(spec.inputs[0].dtype);
  const bool has_value = spec.has(1);
  if (spec.attributes.get("mode", "constant") == "constant") {
    const Margins margins = pad_margins(spec);
    return [copy = FramedCopy(bytes, from, margins.before, margins.after), has_value](const KernelArgs& args) {
      copy.run(args.workers(), args.outputs[0], args.inputs[0], has_value ? args.inputs[1] : nullptr);
    };
  }
  return for_word(bytes, [&]<typename T>() -> KernelRun {
    return [slabs = Slabs(spec.attributes, from)](const KernelArgs& args) {
      slabs.each(args.workers(), [&](int64_t slab) {
        const T* const in = args.in<T>(0) + slab * slabs.in;
        T* const out = args.out<T>(0) + slab * slabs.out;
        slabs.rows([&](int64_t to, int64_t from_row) {
          for (int64_t i = 0; i < slabs.row; ++i) out[to + i] = in[from_row + slabs.last[i]];
        });
      });
    };
  });
}

std::vector<TensorType> infer_pad_grad(const InferContext& context) {
  const Shape shape = context.attributes.get("shape", Shape{});
  if (padded_shape(context.attributes, shape) != context.input(0).shape) {
    throw error(ErrorCode::unsupported, "{} is not {} padded", to_string(context.input(0).shape), to_string(shape));
  }
  return {{context.input(0).dtype, shape}};
}

template <typename T> KernelRun prepare_pad_grad_of(const KernelSpec& spec) {
  return [slabs = Slabs(spec.attributes, spec.outputs[0].shape)](const KernelArgs& args) {
    slabs.each(args.workers(), [&](int64_t slab) {
      const T* const dy = args.in<T>(0) + slab * slabs.out;
      T* const dx = args.out<T>(0) + slab * slabs.in;
      std::fill_n(dx, slabs.in, T(0));
      slabs.rows([&](int64_t from, int64_t to_row) {
        for (int64_t i = 0; i < slabs.row; ++i) dx[to_row + slabs.last[i]] += dy[from + i];
      });
    });
  };
}

KernelRun prepare_pad_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename T>() { return prepare_pad_grad_of<T>(spec); });
}

AxisPath along_slice(const Graph& graph, const Node& node, size_t, size_t axis) {
  const Shape& shape = graph.value(node.inputs[0]).shape;
  const AxisSlice slice = slices_of(node.attributes, shape)[axis];
  if (slice.count != shape[axis] || slice.step != 1) return {};
  return {.use = AxisPath::kept, .axis = axis};
}

}  // namespace

constexpr OpDef kSlice{
    .name = "Slice",
    .onnx = {{.domain = "", .name = "Slice", .since = 1, .lower = lower_slice}},
    .infer = infer_slice,
    .gradient = slice_gradient,
    .traits = {.along = along_slice},
};
constexpr Kernel kSliceKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_slice,
};

constexpr OpDef kSliceGrad{
    .name = "SliceGrad",
    .infer = infer_slice_grad,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kSliceGradKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_slice_grad,
};

constexpr OpDef kPad{
    .name = "Pad",
    .onnx = {{.domain = "", .name = "Pad", .since = 1, .lower = lower_pad}},
    .infer = infer_pad,
    .gradient = pad_gradient,
};
constexpr Kernel kPadKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_pad,
};

constexpr OpDef kPadGrad{
    .name = "PadGrad",
    .infer = infer_pad_grad,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kPadGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = movement_cost,
    .prepare = prepare_pad_grad,
};

ORT_TRAIN_OPS_END
