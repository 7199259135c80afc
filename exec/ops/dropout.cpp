// Dropout (ONNX Dropout-7..22): y = x / (1 - ratio) where a random number is at least ratio, else 0. In evaluation mode it is x itself.
//
// Inputs x and kRandomInput (exec/random.h). No mask is kept: the gradient, Dropout of dy, draws it again, and so does a recomputed copy.
// Attributes: ratio; ordinal, the node's number in the user's file; shared, 1 where x depends on no input of the model and so is the same
// in every micro-batch. An element's address counts samples along the first axis, as exporters lay batches out. ONNX's own attribute `seed`
// is left aside: the run's seed is the user's.

#include "exec/ops/dropout.h"

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/ops/random_input.h"

ORT_TRAIN_OPS_BEGIN
namespace {

void lower(Lowering& l) {
  const ValueId x = l.input(0);
  const bool training = l.has(2) && l.integer(2, "training_mode") != 0;
  const float ratio = !training ? 0 : l.has(1) ? static_cast<float>(l.number(1, "ratio")) : kUsualRatio;
  if (!(ratio >= 0 && ratio < 1)) l.fail(fmt::format("its ratio is {}, but must lie in [0, 1)", ratio));
  const bool with_mask = l.node.outputs > 1;
  const auto ones = [&](ValueId one) { return l.emit("Expand", {one}, {{"shape", l.shape(x)}}); };
  if (ratio == 0) {
    l.output(0, x);
    if (with_mask) l.output(1, ones(l.node.opset < 10 ? l.scalar_like(x, 1) : l.constant(scalar_tensor(true))));
    return;
  }
  const Attributes attributes{{"ratio", ratio}, {"ordinal", int64_t{l.ordinal()}}, {"shared", int64_t{!depends_on_samples(l.graph(), x)}}};
  const ValueId random = random_input(l.graph());
  l.output(0, l.emit("Dropout", {x, random}, attributes));
  if (!with_mask) return;
  const ValueId drawn = l.emit("Dropout", {ones(l.scalar_like(x, 1)), random}, attributes);
  l.output(1, l.emit("Greater", {drawn, l.scalar_like(x, 0)}));
}

void gradient(const Node& node, GradientBuilder& g) {
  if (g.wants(0)) g.input_gradient(0, g.emit("Dropout", {g.output_gradient(0), node.inputs[1]}, node.attributes));
}

// Nothing is dropped: a view of x under its own shape.
void outside_training(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  node.op = &op_named("Reshape");
  node.inputs = {node.inputs[0]};
  node.attributes = {{"shape", graph.value(node.outputs[0]).shape}};
}

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const DropoutDraw draw(spec.attributes);
    return [draw, scale = draw.scale<Compute<T>>(), n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      const T* const x = args.in<T>(0);
      const int64_t* const random = args.in<int64_t>(1);
      T* const y = args.out<T>(0);
      const int64_t before = draw.before(random, n);
      args.workers().parallel_blocks(n, kElementBlock, [&](int64_t begin, int64_t end) {
        // [=]: by reference, GCC 12 makes no vectors of 16-bit elements.
        each_drawn(draw, random, before, begin, end, [=](int64_t at, int64_t count, const uint32_t* numbers, int64_t skip) {
          for (int64_t i = 0; i < count; ++i) y[at + i] = store<T>(draw.value(load(x[at + i]), numbers[skip + i], scale));
        });
      });
    };
  });
}

}  // namespace

constexpr OpDef kDropout{
    .name = "Dropout",
    .onnx = {{.domain = "", .name = "Dropout", .since = 7, .lower = lower}},
    .infer = infer_same_as_input,
    .gradient = gradient,
    .random = true,
    .traits = {.outside_training = outside_training, .along = along_elements},
};
constexpr Kernel kDropoutKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<12>,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
