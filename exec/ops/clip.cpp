// Clip (ONNX Clip-6..13): y = min(max(x, min), max), with bounds that are known at compile time and float32 holds exactly. NaN stays.
// Other bounds of floating-point numbers are lowered to Where, integers to Max and Min.
//
// The gradient passes unless x < min or x > max; then a computed bound gets it. Saves x.

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

struct ClipTo {
  float low, high;
  explicit ClipTo(const Attributes& attributes) : low(attributes.get("min", -HUGE_VALF)), high(attributes.get("max", HUGE_VALF)) {}
  template <typename T> HOST_DEVICE T value(T x) const {
    const T above = x < T(low) ? T(low) : x;
    return above > T(high) ? T(high) : above;
  }
  template <typename T> HOST_DEVICE T gradient(T dy, T x) const { return x < T(low) || x > T(high) ? T(0) : dy; }
};

bool is_float32(double number) { return static_cast<double>(static_cast<float>(number)) == number || std::isnan(number); }

void lower(Lowering& l) {
  const ValueId x = l.input(0);
  ValueId bounds[2];  // inputs from opset 11 on, attributes before
  Attributes attributes;
  bool known = is_floating(l.dtype(x));
  for (size_t i : {0, 1}) {
    const char* name = i == 0 ? "min" : "max";
    bounds[i] = l.has(i + 1) ? l.input(i + 1) : l.node.attributes.has(name) ? l.scalar_like(x, l.node.attributes.get(name, 0.0f)) : kNone;
    if (bounds[i] == kNone) continue;
    if (element_count(l.shape(bounds[i])) != 1)
      l.fail(fmt::format("{} is {}, but must be one number", name, to_string(l.value(bounds[i]).type())));
    const Tensor* constant = l.graph().constant(bounds[i]);
    known = known && constant != nullptr && is_float32(constant->to_double()[0]);
    if (known) attributes.set(name, static_cast<float>(constant->to_double()[0]));
  }
  if (known) return l.output(0, l.emit("Clip", {x}, attributes));
  if (is_floating(l.dtype(x))) {
    ValueId y = x;
    if (bounds[0] != kNone) y = l.emit("Where", {l.emit("Less", {y, bounds[0]}), bounds[0], y});
    if (bounds[1] != kNone) y = l.emit("Where", {l.emit("Greater", {y, bounds[1]}), bounds[1], y});
    return l.output(0, y);
  }
  const ValueId above = bounds[0] == kNone ? x : l.emit("Max", {x, bounds[0]});
  l.output(0, bounds[1] == kNone ? above : l.emit("Min", {above, bounds[1]}));
}

}  // namespace

constexpr OpDef kClip{
    .name = "Clip",
    .onnx = {{.domain = "", .name = "Clip", .since = 6, .lower = lower}},
    .infer = infer_same_as_input,
    .gradient = gradient_from_input,
    .traits = {.along = along_elements},
    .standard = 6,
};
constexpr Kernel kClipKernel = unary_functor_kernel<ClipTo>(elementwise_cost<2>);
constexpr OpDef kClipGrad = slope_op("ClipGrad");
constexpr Kernel kClipGradKernel = slope_kernel_of<ClipTo>(elementwise_cost<3>);

ORT_TRAIN_OPS_END
