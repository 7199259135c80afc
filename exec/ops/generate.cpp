// What makes tensors from sizes, and what looks at positions: Range, ConstantOfShape{shape, value} (with Shape and Size, which lower to
// constants), OneHot{axis, depth}(indices, values), NonZero, Trilu{upper, k} (to which EyeLike lowers), CumSum{axis, exclusive, reverse}.
//
// Range and NonZero have shapes that depend on values, so their inputs must be constant; they are folded as soon as they are read.

#include "exec/ops/generate.h"

#include <cmath>
#include <cstring>

#include "exec/op_list.h"
#include "exec/ops/cumulative.h"
#include "exec/ops/fourier.h"
#include "exec/ops/ngrams.h"
#include "exec/ops/onnx_type.h"
#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// --- Range ----------------------------------------------------------------------------------------------------------------------------

void lower_range(Lowering& l) {
  for (size_t i = 0; i < 3; ++i) l.constant_input(i, i == 0 ? "the start" : i == 1 ? "the limit" : "the step");
  l.pass_on("Range", {});
}

// max(ceil((limit - start) / delta), 0) elements.
std::vector<TensorType> infer_range(const InferContext& context) {
  const DType dtype = context.input(0).dtype;
  for (size_t i = 0; i < 3; ++i) {
    const Tensor& tensor = context.constant(i);
    if (tensor.dtype != dtype || tensor.size() != 1)
      throw error(ErrorCode::unsupported, "start, limit and step must be one number each, of one type");
  }
  int64_t count = 0;
  for_type(Counted{}, dtype, [&]<typename T>() {
    const T start = context.constants[0]->data<T>()[0], limit = context.constants[1]->data<T>()[0],
            delta = context.constants[2]->data<T>()[0];
    if (delta == T(0)) throw error(ErrorCode::unsupported, "the step is zero");
    const double steps = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
    if (!(steps < 0x1p48)) throw error(ErrorCode::unsupported, "from {} to {} in steps of {} are too many elements", start, limit, delta);
    count = steps > 0 ? static_cast<int64_t>(steps) : 0;
  });
  return {{dtype, {count}}};
}

KernelRun prepare_range(const KernelSpec& spec) {
  const int64_t count = element_count(spec.outputs[0].shape);
  return for_type(Counted{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [count](const KernelArgs& args) {
      const T start = *args.in<T>(0), delta = *args.in<T>(2);
      for (int64_t i = 0; i < count; ++i) args.out<T>(0)[i] = in_steps(start, delta, i);
    };
  });
}

// --- ConstantOfShape, Shape, Size -----------------------------------------------------------------------------------------------------

void lower_constant_of_shape(Lowering& l) {
  l.pass_on("ConstantOfShape", {}, {{"shape", l.ints(0, "the shape")}, {"value", constant_of(l.node.attributes)}});
}

void lower_shape(Lowering& l) {
  const Shape shape = l.shape(l.input(0));
  const int64_t rank = static_cast<int64_t>(shape.size());
  const auto bound = [rank](int64_t axis) { return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
  const int64_t start = bound(l.node.attributes.get("start", 0)), end = std::max(start, bound(l.node.attributes.get("end", rank)));
  l.output(0, l.constant(make_tensor<int64_t>({end - start}, {shape.begin() + start, shape.begin() + end})));
}

void lower_size(Lowering& l) { l.output(0, l.constant(scalar_tensor<int64_t>(element_count(l.shape(l.input(0)))))); }

std::vector<TensorType> infer_constant_of_shape(const InferContext& context) {
  const Shape shape = context.attributes.get("shape", Shape{});
  element_count(shape);
  return {{constant_of(context.attributes).dtype, shape}};
}

KernelRun prepare_constant_of_shape(const KernelSpec& spec) {
  const Tensor value = constant_of(spec.attributes);
  return [value, count = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
    fill_parallel(args.workers(), args.outputs[0], count, value.bytes.data(), size_of(value.dtype));
  };
}

// --- OneHot ---------------------------------------------------------------------------------------------------------------------------

void lower_one_hot(Lowering& l) {
  ValueId indices = l.input(0);
  const double depth = l.number(1, "the depth");
  const int64_t rank = static_cast<int64_t>(l.shape(indices).size());
  const int64_t axis = normalize_axis(l.node.attributes.get("axis", -1), rank + 1, "axis"), classes = to_integer<int64_t>(depth);
  if (l.dtype(indices) != DType::int64 && l.dtype(indices) != DType::int32)
    indices = l.emit("Cast", {indices}, {{"to", static_cast<int64_t>(DType::int64)}});
  constexpr int kFromTheEnd = 11;  // the opset from which on negative indices count from the end
  if (l.node.opset < kFromTheEnd)
    indices = l.emit("Where", {l.emit("Less", {indices, l.scalar_like(indices, 0)}), l.scalar_like(indices, depth), indices});
  l.pass_on("OneHot", {indices, l.input(2)}, {{"axis", axis}, {"depth", classes}});
}

std::vector<TensorType> infer_one_hot(const InferContext& context) {
  require_indices(context, 0);
  Shape shape = context.input(0).shape;
  const int64_t axis = normalize_axis(context.attributes.get("axis", -1), static_cast<int64_t>(shape.size()) + 1, "axis");
  const int64_t depth = context.attributes.get("depth", 0);
  if (depth <= 0) throw error(ErrorCode::unsupported, "the depth is {}, but must be positive", depth);
  if (context.input(1).shape != Shape{2})
    throw error(ErrorCode::unsupported, "the values have the shape {}, not [2]", to_string(context.input(1).shape));
  shape.insert(shape.begin() + axis, depth);
  element_count(shape);
  return {{context.input(1).dtype, shape}};
}

KernelRun prepare_one_hot(const KernelSpec& spec) {
  const OneHotShape shape(spec);
  const int64_t outer = shape.outer, depth = shape.depth, inner = shape.inner;
  return for_word(size_of(spec.outputs[0].dtype), [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[0].dtype, [&]<typename Index>() -> KernelRun {
      return [=](const KernelArgs& args) {
        const Index* const indices = args.in<Index>(0);
        const T off = args.in<T>(1)[0], on = args.in<T>(1)[1];
        const int64_t slab = depth * inner;
        args.workers().parallel_blocks(outer, per_task(kTaskElements, slab), [&](int64_t begin, int64_t end) {
          for (int64_t o = begin; o < end; ++o) {
            T* const out = args.out<T>(0) + o * slab;
            std::fill_n(out, slab, off);
            for (int64_t i = 0; i < inner; ++i) {
              int64_t at = indices[o * inner + i];
              if (at < 0) at += depth;
              if (at >= 0 && at < depth) out[at * inner + i] = on;  // outside: all off, says ONNX
            }
          }
        });
      };
    });
  });
}

// The indices' axes, with the classes between.
AxisPath along_one_hot(const Graph& graph, const Node& node, size_t input, size_t axis) {
  if (input != 0) return {};
  const auto rank = static_cast<int64_t>(graph.value(node.outputs[0]).shape.size());
  const auto own = static_cast<size_t>(normalize_axis(node.attributes.get("axis", -1), rank, "axis"));
  return {.use = AxisPath::kept, .axis = axis < own ? axis : axis + 1};
}

// --- NonZero --------------------------------------------------------------------------------------------------------------------------

using Anything = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;

// body(flat index) for each element that is not zero, ascending.
template <typename Body> void each_nonzero(DType dtype, const void* data, int64_t count, Body&& body) {
  for_type(Anything{}, dtype, [&]<typename T>() {
    for (int64_t i = 0; i < count; ++i) {
      if (load(static_cast<const T*>(data)[i]) != Compute<T>{}) body(i);
    }
  });
}

void lower_nonzero(Lowering& l) {
  l.constant_input(0, "what NonZero looks at");
  l.pass_on("NonZero", {});
}

std::vector<TensorType> infer_nonzero(const InferContext& context) {
  const Tensor* const tensor = &context.constant(0);
  int64_t count = 0;
  each_nonzero(tensor->dtype, tensor->bytes.data(), tensor->size(), [&](int64_t) { ++count; });
  return {{DType::int64, {static_cast<int64_t>(tensor->shape.size()), count}}};
}

KernelRun prepare_nonzero(const KernelSpec& spec) {
  const TensorType& input = spec.inputs[0];
  return [dtype = input.dtype, shape = input.shape, size = element_count(input.shape),
          count = spec.outputs[0].shape[1]](const KernelArgs& args) {
    int64_t* const out = args.out<int64_t>(0);
    int64_t found = 0;
    each_nonzero(dtype, args.inputs[0], size, [&](int64_t at) {
      for (size_t axis = shape.size(); axis-- > 0; at /= shape[axis]) out[static_cast<int64_t>(axis) * count + found] = at % shape[axis];
      ++found;
    });
  };
}

// --- Trilu ----------------------------------------------------------------------------------------------------------------------------

void lower_trilu(Lowering& l) {
  const int64_t k = l.has(1) ? l.integer(1, "k") : 0;
  l.pass_on("Trilu", {l.input(0)}, {{"k", k}, {"upper", l.node.attributes.get("upper", 1)}});
}

// Ones, without what is above and below the k-th diagonal.
void lower_eye_like(Lowering& l) {
  const Shape shape = l.shape(l.input(0));
  if (shape.size() != 2) l.fail(fmt::format("{} is no matrix", to_string(shape)));
  const DType type =
      l.node.attributes.has("dtype") ? onnx_type(l, l.node.attributes.get("dtype", 0), "its result is of") : l.dtype(l.input(0));
  const int64_t k = l.node.attributes.get("k", 0);
  Tensor one(type, {1});
  fill_elements(one.bytes, type, 1);
  const ValueId ones = l.emit("ConstantOfShape", {}, {{"shape", shape}, {"value", std::move(one)}});
  const ValueId upper = l.emit("Trilu", {ones}, {{"k", k}, {"upper", int64_t{1}}});
  l.output(0, l.emit("Trilu", {upper}, {{"k", k}, {"upper", int64_t{0}}}));
}

std::vector<TensorType> infer_trilu(const InferContext& context) {
  if (context.input(0).shape.size() < 2) throw error(ErrorCode::unsupported, "{} is no matrix", to_string(context.input(0).shape));
  return {context.input(0)};
}

void trilu_gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, g.emit("Trilu", {g.output_gradient(0)}, node.attributes)); }

KernelRun prepare_trilu(const KernelSpec& spec) {
  const int64_t bytes = size_of(spec.inputs[0].dtype);
  return [bytes, t = Triangle(spec)](const KernelArgs& args) {
    if (t.columns == 0) return;
    args.workers().parallel_blocks(t.all, per_task(kTaskBytes, t.columns * bytes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t edge = t.edge(r);
        const int64_t keep = t.upper ? edge : 0, kept = t.upper ? t.columns - edge : edge, clear = t.upper ? 0 : edge;
        const std::byte* const in = args.in<std::byte>(0) + r * t.columns * bytes;
        std::byte* const out = args.out<std::byte>(0) + r * t.columns * bytes;
        if (in != out) std::memcpy(out + keep * bytes, in + keep * bytes, static_cast<size_t>(kept * bytes));
        std::memset(out + clear * bytes, 0, static_cast<size_t>((t.columns - kept) * bytes));
      }
    });
  };
}

// --- CumSum ---------------------------------------------------------------------------------------------------------------------------

void lower_cumsum(Lowering& l) {
  const int64_t axis = l.integer(1, "the axis");
  const Attributes& given = l.node.attributes;
  l.pass_on("CumSum", {l.input(0)},
            {{"axis", normalize_axis(axis, static_cast<int64_t>(l.shape(l.input(0)).size()), "axis")},
             {"exclusive", given.get("exclusive", 0)},
             {"reverse", given.get("reverse", 0)}});
}

std::vector<TensorType> infer_cumsum(const InferContext& context) {
  normalize_axis(context.attributes.get("axis", 0), static_cast<int64_t>(context.input(0).shape.size()), "axis");
  return {context.input(0)};
}

void cumsum_gradient(const Node& node, GradientBuilder& g) {
  Attributes attributes = node.attributes;
  attributes.set("reverse", int64_t{node.attributes.get("reverse", 0) == 0});
  g.input_gradient(0, g.emit("CumSum", {g.output_gradient(0)}, attributes));
}

// Sums of floats run in double.
template <typename T> KernelRun prepare_cumsum_of(const KernelSpec& spec) {
  using Sum = CumulatedIn<T>;
  constexpr int64_t kColumns = 128;
  const AxisLines lines(spec);
  const int64_t length = lines.length, inner = lines.inner;
  const int64_t columns = std::max<int64_t>(1, std::min(inner, kColumns)), blocks = (inner + columns - 1) / columns;
  return [=](const KernelArgs& args) {
    args.workers().parallel_blocks(lines.outer * blocks, per_task(kTaskElements, length * columns), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t left = task % blocks * columns, width = std::min(columns, inner - left), base = task / blocks * length * inner + left;
        Sum sums[kColumns] = {};
        for (int64_t k = 0; k < length; ++k) {
          const int64_t row = base + (lines.reverse ? length - 1 - k : k) * inner;
          const T* const x = args.in<T>(0) + row;
          T* const y = args.out<T>(0) + row;
          for (int64_t c = 0; c < width; ++c) {
            const Sum before = sums[c];
            sums[c] = AddTo::combine(before, static_cast<Sum>(x[c]));
            y[c] = static_cast<T>(lines.exclusive ? before : sums[c]);
          }
        }
      }
    });
  };
}

KernelRun prepare_cumsum(const KernelSpec& spec) {
  return for_type(Cumulated{}, spec.inputs[0].dtype, [&]<typename T>() { return prepare_cumsum_of<T>(spec); });
}

}  // namespace

constexpr OpDef kRange{
    .name = "Range",
    .onnx = {{.domain = "", .name = "Range", .since = 11, .lower = lower_range}},
    .infer = infer_range,
    .no_gradient = "its bounds are sizes",
    .host_inputs = {0, 1, 2},
    .standard = 11,
};
constexpr Kernel kRangeKernel{
    .types = dtypes_of(Counted{}),
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_range,
};

constexpr OpDef kConstantOfShape{
    .name = "ConstantOfShape",
    .onnx = {{.domain = "", .name = "ConstantOfShape", .since = 9, .lower = lower_constant_of_shape},
             {.domain = "", .name = "Shape", .since = 1, .lower = lower_shape},
             {.domain = "", .name = "Size", .since = 1, .lower = lower_size},
             {.domain = "", .name = "MelWeightMatrix", .since = 17, .lower = lower_mel_weight_matrix}},
    .infer = infer_constant_of_shape,
    .no_gradient = "it has no inputs",
};
constexpr Kernel kConstantOfShapeKernel{
    .types = kAnyType,
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_constant_of_shape,
};

constexpr OpDef kOneHot{
    .name = "OneHot",
    .onnx = {{.domain = "", .name = "OneHot", .since = 9, .lower = lower_one_hot},
             {.domain = "", .name = "TfIdfVectorizer", .since = 9, .lower = lower_tf_idf}},
    .infer = infer_one_hot,
    .no_gradient = "the two values that OneHot chooses between are not trained",
    .hint = "multiply its result instead",
    .traits = {.along = along_one_hot},
};
constexpr Kernel kOneHotKernel{
    .types = kAnyType,
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_one_hot,
};

constexpr OpDef kNonZero{
    .name = "NonZero",
    .onnx = {{.domain = "", .name = "NonZero", .since = 9, .lower = lower_nonzero}},
    .infer = infer_nonzero,
    .no_gradient = "it finds positions",
    .host_inputs = {0},
    .standard = 13,
};
constexpr Kernel kNonZeroKernel{
    .types = dtypes_of(Anything{}),
    .cost = movement_cost,
    .prepare = prepare_nonzero,
};

constexpr OpDef kTrilu{
    .name = "Trilu",
    .onnx = {{.domain = "", .name = "Trilu", .since = 14, .lower = lower_trilu},
             {.domain = "", .name = "EyeLike", .since = 9, .lower = lower_eye_like}},
    .infer = infer_trilu,
    .gradient = trilu_gradient,
};
constexpr Kernel kTriluKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_trilu,
};

constexpr OpDef kCumSum{
    .name = "CumSum",
    .onnx = {{.domain = "", .name = "CumSum", .since = 11, .lower = lower_cumsum}},
    .infer = infer_cumsum,
    .gradient = cumsum_gradient,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kCumSumKernel{
    .types = dtypes_of(Cumulated{}),
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = comparison_cost,
    .prepare = prepare_cumsum,
};

ORT_TRAIN_OPS_END
