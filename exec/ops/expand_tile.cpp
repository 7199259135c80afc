// Expand{shape} (ONNX Expand-8 and later) and Tile{repeats} (ONNX Tile-6 and later): copies of one tensor, side by side.
//
// Expand's attribute is the final shape. Both gradients add the copies up with ReduceSum.

#include "exec/ops/expand_tile.h"

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

void lower_expand(Lowering& l) {
  const ValueId x = l.input(0);
  const Shape shape = broadcast(l.shape(x), l.ints(1, "shape"));
  if (shape == l.shape(x)) return l.output(0, x);
  l.pass_on("Expand", {x}, {{"shape", shape}});
}

std::vector<TensorType> infer_expand(const InferContext& context) {
  const Shape shape = context.attributes.get("shape", Shape{});
  element_count(shape);
  if (broadcast(context.input(0).shape, shape) != shape) {
    throw error(ErrorCode::unsupported, "{} can't be expanded to {}", to_string(context.input(0).shape), to_string(shape));
  }
  return {{context.input(0).dtype, shape}};
}

void expand_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.reduce_to(g.output_gradient(0), g.shape(node.inputs[0])));
}

KernelRun prepare_expand(const KernelSpec& spec) {
  return [copy = StridedCopy(expand_layout(spec))](const KernelArgs& args) { copy.run(args.workers(), args.outputs[0], args.inputs[0]); };
}

void lower_tile(Lowering& l) {
  const std::vector<int64_t> repeats = l.ints(1, "repeats");
  if (std::all_of(repeats.begin(), repeats.end(), [](int64_t r) { return r == 1; })) return l.output(0, l.input(0));
  l.pass_on("Tile", {l.input(0)}, {{"repeats", repeats}});
}

std::vector<TensorType> infer_tile(const InferContext& context) {
  TensorType type = context.input(0);
  const std::vector<int64_t> repeats = context.attributes.get("repeats", std::vector<int64_t>{});
  bool valid = repeats.size() == type.shape.size();
  for (size_t i = 0; valid && i < repeats.size(); ++i)
    valid = repeats[i] >= 0 && !__builtin_mul_overflow(type.shape[i], repeats[i], &type.shape[i]);
  if (!valid) throw error(ErrorCode::unsupported, "the repeats {} don't fit {}", to_string(repeats), to_string(context.input(0).shape));
  element_count(type.shape);
  return {type};
}

void tile_gradient(const Node& node, GradientBuilder& g) {
  const Shape from = g.shape(node.inputs[0]);
  const std::vector<int64_t> repeats = node.attributes.get("repeats", std::vector<int64_t>{});
  std::vector<int64_t> axes;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] != 1) axes.push_back(static_cast<int64_t>(2 * i));
  }
  const ValueId copies = g.reshape(g.output_gradient(0), interleaved(from, repeats));
  const ValueId sum = axes.empty() ? copies : g.emit("ReduceSum", {copies}, {{"axes", axes}, {"keepdims", int64_t{0}}});
  g.input_gradient(0, g.reshape(sum, from));
}

KernelRun prepare_tile(const KernelSpec& spec) {
  return [copy = StridedCopy(tile_layout(spec))](const KernelArgs& args) { copy.run(args.workers(), args.outputs[0], args.inputs[0]); };
}

}  // namespace

constexpr OpDef kExpand{
    .name = "Expand",
    .onnx = {{.domain = "", .name = "Expand", .since = 8, .lower = lower_expand}},
    .infer = infer_expand,
    .gradient = expand_gradient,
    .traits = {.same_numbers = true, .along = along_elements},
};
constexpr Kernel kExpandKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_expand,
};

constexpr OpDef kTile{
    .name = "Tile",
    .onnx = {{.domain = "", .name = "Tile", .since = 6, .lower = lower_tile}},
    .infer = infer_tile,
    .gradient = tile_gradient,
};
constexpr Kernel kTileKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_tile,
};

ORT_TRAIN_OPS_END
