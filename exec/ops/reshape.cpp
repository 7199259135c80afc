// Reshape{shape} (ONNX Reshape-5 and later): the same elements under another shape, a view of its input.
//
// Squeeze, Unsqueeze, Flatten and Identity lower to it. The attribute holds the final dimensions: ONNX's 0,
// -1 and allowzero are resolved at import. The planner gives output and input the same bytes; the kernel copies where it did not.

#include <numeric>

#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

namespace {

void lower_reshape(Lowering& l) {
  const Shape& from = l.shape(l.input(0));
  std::vector<int64_t> shape = l.ints_from("shape", 1, {});
  const bool zero_is_zero = l.node.attributes.get("allowzero", 0) != 0;
  const int64_t total = element_count(from);
  int64_t known = 1, unknown = -1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !zero_is_zero) {
      if (i >= from.size())
        l.fail(
            fmt::format("dimension {} of the shape {} copies one that the input, {}, doesn't have", i, to_string(shape), to_string(from)));
      shape[i] = from[i];
    }
    if (shape[i] == -1) {
      if (unknown >= 0) l.fail(fmt::format("the shape {} has more than one -1", to_string(shape)));
      unknown = static_cast<int64_t>(i);
    } else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known)) {
      l.fail(fmt::format("{} is no shape", to_string(shape)));
    }
  }
  if (unknown >= 0) {
    if (known == 0 || total % known != 0) l.fail(fmt::format("{} can't be reshaped to {}", to_string(from), to_string(shape)));
    shape[unknown] = total / known;
  }
  l.output(0, l.reshape(l.input(0), shape));
}

// The axes that Squeeze and Unsqueeze name, as flags; twice the same is an error.
std::vector<bool> flagged(Lowering& l, const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> flags(rank);
  for (int64_t axis : axes) {
    const size_t i = static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(rank), "axis"));
    if (flags[i]) l.fail(fmt::format("axis {} is named twice", axis));
    flags[i] = true;
  }
  return flags;
}

void lower_squeeze(Lowering& l) {
  const Shape& from = l.shape(l.input(0));
  const bool named = l.node.attributes.has("axes") || l.has(1);
  const std::vector<bool> drop = named ? flagged(l, l.ints_from("axes", 1, {}), from.size()) : std::vector<bool>(from.size(), true);
  Shape shape;
  for (size_t i = 0; i < from.size(); ++i) {
    if (drop[i] && from[i] == 1) continue;
    if (drop[i] && named) l.fail(fmt::format("axis {} of {} can't be squeezed: it has more than one element", i, to_string(from)));
    shape.push_back(from[i]);
  }
  l.output(0, l.reshape(l.input(0), shape));
}

void lower_unsqueeze(Lowering& l) {
  const Shape& from = l.shape(l.input(0));
  const std::vector<int64_t> axes = l.ints_from("axes", 1, {});
  const std::vector<bool> added = flagged(l, axes, from.size() + axes.size());
  Shape shape;
  for (size_t i = 0, next = 0; i < added.size(); ++i) shape.push_back(added[i] ? 1 : from[next++]);
  l.output(0, l.reshape(l.input(0), shape));
}

void lower_flatten(Lowering& l) {
  const Shape& from = l.shape(l.input(0));
  const int64_t rank = static_cast<int64_t>(from.size());
  int64_t axis = l.node.attributes.get("axis", 1);
  if (axis < -rank || axis > rank) l.fail(fmt::format("axis {} is outside a tensor of rank {}", axis, rank));
  if (axis < 0) axis += rank;
  const auto product = [&](int64_t begin, int64_t end) { return element_count(Shape(from.begin() + begin, from.begin() + end)); };
  l.output(0, l.reshape(l.input(0), {product(0, axis), product(axis, rank)}));
}

void lower_identity(Lowering& l) { l.output(0, l.input(0)); }

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType& from = context.input(0);
  const Shape shape = context.attributes.get("shape", Shape{});
  if (element_count(shape) != element_count(from.shape)) {
    throw error(ErrorCode::unsupported, "{} can't be reshaped to {}: the numbers of elements differ", to_string(from.shape),
                to_string(shape));
  }
  return {{from.dtype, shape}};
}

void gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, g.reshape(g.output_gradient(0), g.shape(node.inputs[0]))); }

Cost no_cost(const KernelSpec&) { return {}; }

KernelRun prepare(const KernelSpec& spec) {
  const int64_t bytes = spec.outputs[0].bytes();
  return [bytes](const KernelArgs& args) {
    if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers(), args.outputs[0], args.inputs[0], bytes);
  };
}

// An axis goes on, divided into several or as one with those behind it; not with those before it.
AxisPath along(const Graph& graph, const Node& node, size_t, size_t axis) {
  const Shape &from = graph.value(node.inputs[0]).shape, &to = graph.value(node.outputs[0]).shape;
  const int64_t before = element_count(from.before(axis)), size = from[axis];
  for (size_t i = 0; i < to.size() && size > 1; ++i) {
    if (to[i] <= 1 || element_count(to.before(i)) != before) continue;
    if (to[i] % size == 0) return {.use = AxisPath::kept, .axis = i, .times = to[i] / size};
    if (size % to[i] == 0) return {.use = AxisPath::kept, .axis = i, .divided = size / to[i]};
  }
  return {};
}

}  // namespace

constexpr OpDef kReshape{
    .name = "Reshape",
    .onnx = {{.domain = "", .name = "Reshape", .since = 1, .lower = lower_reshape},
             {.domain = "", .name = "Squeeze", .since = 1, .lower = lower_squeeze},
             {.domain = "", .name = "Unsqueeze", .since = 1, .lower = lower_unsqueeze},
             {.domain = "", .name = "Flatten", .since = 1, .lower = lower_flatten},
             {.domain = "", .name = "Identity", .since = 1, .lower = lower_identity}},
    .infer = infer,
    .gradient = gradient,
    .alias = {{.output = 0, .input = 0}},
    .traits = {.same_numbers = true, .along = along},
};
constexpr Kernel kReshapeKernel{
    .types = kAnyType,
    .cost = no_cost,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
