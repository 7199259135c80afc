// Transpose{perm} (ONNX Transpose-1 and later): output axis i is input axis perm[i].
//
// The kernel is a StridedCopy: rows by memcpy where the last axis stays last (attention's [B, T, H, D] <-> [B, H, T, D]), blocked
// transposes of matrices where another axis becomes last. One that only moves axes of one element is a Reshape, a view. DepthToSpace and
// SpaceToDepth lower to Reshape - Transpose - Reshape.

#include "exec/ops/transpose.h"

#include <algorithm>
#include <numeric>

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// A Transpose, or the Reshape that does the same.
ValueId transposed(Builder& builder, ValueId value, const std::vector<int64_t>& perm) {
  const Shape from = builder.shape(value);
  Shape to;
  int64_t previous = -1;
  bool moves = false;
  for (int64_t axis : perm) {
    to.push_back(from[axis]);
    if (from[axis] == 1) continue;
    moves = moves || axis < previous;
    previous = axis;
  }
  return moves ? builder.transpose(value, perm) : builder.reshape(value, to);
}

void lower_transpose(Lowering& l) {
  const ValueId x = l.input(0);
  l.output(0, transposed(l, x, permutation_of(l.node.attributes, l.shape(x).size())));
}

// Depth first, in blocks: [N, b * b * C, H, W] -> [N, C, H * b, W * b].
int64_t block_of(const Lowering& l) { return l.node.attributes.between("blocksize", 1, int64_t{1} << 24, 0); }

void lower_depth_to_space(Lowering& l) {
  const ValueId x = l.input(0);
  const Shape from = l.shape(x);
  const int64_t b = block_of(l);
  if (from.size() != 4 || from[1] % (b * b) != 0) l.fail(fmt::format("blocks of {} don't fit {}", b, to_string(from)));
  const int64_t n = from[0], c = from[1] / (b * b), h = from[2], w = from[3];
  const bool columns_first = l.node.attributes.get("mode", "DCR") == "CRD";
  const ValueId split = l.reshape(x, columns_first ? Shape{n, c, b, b, h, w} : Shape{n, b, b, c, h, w});
  const std::vector<int64_t> perm = columns_first ? std::vector<int64_t>{0, 1, 4, 2, 5, 3} : std::vector<int64_t>{0, 3, 4, 1, 5, 2};
  l.output(0, l.reshape(transposed(l, split, perm), {n, c, checked_product({h, b}), checked_product({w, b})}));
}

void lower_space_to_depth(Lowering& l) {
  const ValueId x = l.input(0);
  const Shape from = l.shape(x);
  const int64_t b = block_of(l);
  if (from.size() != 4 || from[2] % b != 0 || from[3] % b != 0) l.fail(fmt::format("blocks of {} don't fit {}", b, to_string(from)));
  const int64_t n = from[0], c = from[1], h = from[2] / b, w = from[3] / b;
  const ValueId split = l.reshape(x, {n, c, h, b, w, b});
  const bool columns_first = l.node.attributes.get("mode", "DCR") == "CRD";  // from opset 28 on
  const std::vector<int64_t> perm = columns_first ? std::vector<int64_t>{0, 1, 3, 5, 2, 4} : std::vector<int64_t>{0, 3, 5, 1, 2, 4};
  l.output(0, l.reshape(transposed(l, split, perm), {n, checked_product({c, b, b}), h, w}));
}

std::vector<TensorType> infer(const InferContext& context) {
  TensorType type = context.input(0);
  const Shape from = type.shape;
  const std::vector<int64_t> perm = permutation_of(context.attributes, from.size());
  for (size_t i = 0; i < perm.size(); ++i) type.shape[i] = from[perm[i]];
  return {type};
}

void gradient(const Node& node, GradientBuilder& g) {
  const std::vector<int64_t> perm = permutation_of(node.attributes, g.shape(node.inputs[0]).size());
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[perm[i]] = static_cast<int64_t>(i);
  g.input_gradient(0, transposed(g, g.output_gradient(0), inverse));
}

KernelRun prepare(const KernelSpec& spec) {
  return
      [copy = StridedCopy(transpose_layout(spec))](const KernelArgs& args) { copy.run(args.workers(), args.outputs[0], args.inputs[0]); };
}

AxisPath along(const Graph& graph, const Node& node, size_t, size_t axis) {
  const std::vector<int64_t> permutation = permutation_of(node.attributes, graph.value(node.inputs[0]).shape.size());
  const auto at = std::find(permutation.begin(), permutation.end(), static_cast<int64_t>(axis));
  return {.use = AxisPath::kept, .axis = static_cast<size_t>(at - permutation.begin())};
}

}  // namespace

constexpr OpDef kTranspose{
    .name = "Transpose",
    .onnx = {{.domain = "", .name = "Transpose", .since = 1, .lower = lower_transpose},
             {.domain = "", .name = "DepthToSpace", .since = 1, .lower = lower_depth_to_space},
             {.domain = "", .name = "SpaceToDepth", .since = 1, .lower = lower_space_to_depth}},
    .infer = infer,
    .gradient = gradient,
    .traits = {.along = along},
    .standard = 13,
};
constexpr Kernel kTransposeKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
