// Sin, Cos, Tan, their inverses and their hyperbolic kin. Gradients in primitives.

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

#define ORT_TRAIN_FUNCTION(name, function)                                              \
  struct name {                                                                         \
    template <typename T> HOST_DEVICE static T value(T x) { return math::function(x); } \
  }
ORT_TRAIN_FUNCTION(SinOf, sin);
ORT_TRAIN_FUNCTION(CosOf, cos);
ORT_TRAIN_FUNCTION(TanOf, tan);
ORT_TRAIN_FUNCTION(AsinOf, asin);
ORT_TRAIN_FUNCTION(AcosOf, acos);
ORT_TRAIN_FUNCTION(AtanOf, atan);
ORT_TRAIN_FUNCTION(SinhOf, sinh);
ORT_TRAIN_FUNCTION(CoshOf, cosh);
ORT_TRAIN_FUNCTION(AsinhOf, asinh);
ORT_TRAIN_FUNCTION(AcoshOf, acosh);
ORT_TRAIN_FUNCTION(AtanhOf, atanh);
#undef ORT_TRAIN_FUNCTION

ValueId product(GradientBuilder& g, ValueId a, ValueId b) { return g.emit("Mul", {a, b}); }
// sign * x^2 + constant
ValueId square_plus(GradientBuilder& g, ValueId x, double sign, double constant) {
  return g.emit(sign > 0 ? "Add" : "Sub", {g.scalar_like(x, constant), product(g, x, x)});
}

void sin_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, product(g, g.output_gradient(0), g.emit("Cos", {node.inputs[0]})));
}
void cos_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("Neg", {product(g, g.output_gradient(0), g.emit("Sin", {node.inputs[0]}))}));
}
void tan_gradient(const Node& node, GradientBuilder& g) {  // 1 + y^2
  g.input_gradient(0, product(g, g.output_gradient(0), square_plus(g, node.outputs[0], 1, 1)));
}
void asin_gradient(const Node& node, GradientBuilder& g) {  // 1 / sqrt(1 - x^2)
  g.input_gradient(0, g.emit("Div", {g.output_gradient(0), g.emit("Sqrt", {square_plus(g, node.inputs[0], -1, 1)})}));
}
void acos_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("Neg", {g.emit("Div", {g.output_gradient(0), g.emit("Sqrt", {square_plus(g, node.inputs[0], -1, 1)})})}));
}
void atan_gradient(const Node& node, GradientBuilder& g) {  // 1 / (1 + x^2)
  g.input_gradient(0, g.emit("Div", {g.output_gradient(0), square_plus(g, node.inputs[0], 1, 1)}));
}
void sinh_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, product(g, g.output_gradient(0), g.emit("Cosh", {node.inputs[0]})));
}
void cosh_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, product(g, g.output_gradient(0), g.emit("Sinh", {node.inputs[0]})));
}
void asinh_gradient(const Node& node, GradientBuilder& g) {  // 1 / sqrt(x^2 + 1)
  g.input_gradient(0, g.emit("Div", {g.output_gradient(0), g.emit("Sqrt", {square_plus(g, node.inputs[0], 1, 1)})}));
}
void acosh_gradient(const Node& node, GradientBuilder& g) {  // 1 / sqrt(x^2 - 1)
  g.input_gradient(0, g.emit("Div", {g.output_gradient(0), g.emit("Sqrt", {square_plus(g, node.inputs[0], 1, -1)})}));
}
void atanh_gradient(const Node& node, GradientBuilder& g) {  // 1 / (1 - x^2)
  g.input_gradient(0, g.emit("Div", {g.output_gradient(0), square_plus(g, node.inputs[0], -1, 1)}));
}

constexpr OpDef function(std::string_view name, int standard, void (*gradient)(const Node&, GradientBuilder&),
                         PrecisionTraits precision = {}) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = standard}},
          .infer = infer_same_as_input,
          .gradient = gradient,
          .traits = {.precision = precision, .along = along_elements},
          .standard = standard};
}

}  // namespace

constexpr OpDef kSin = function("Sin", 7, sin_gradient, kInFloat32);
constexpr Kernel kSinKernel = unary_functor_kernel<SinOf>(elementwise_cost<30>);
constexpr OpDef kCos = function("Cos", 7, cos_gradient, kInFloat32);
constexpr Kernel kCosKernel = unary_functor_kernel<CosOf>(elementwise_cost<30>);
constexpr OpDef kTan = function("Tan", 7, tan_gradient, kInFloat32);
constexpr Kernel kTanKernel = unary_functor_kernel<TanOf>(elementwise_cost<30>);
constexpr OpDef kAsin = function("Asin", 7, asin_gradient, kInFloat32);
constexpr Kernel kAsinKernel = unary_functor_kernel<AsinOf>(elementwise_cost<30>);
constexpr OpDef kAcos = function("Acos", 7, acos_gradient, kInFloat32);
constexpr Kernel kAcosKernel = unary_functor_kernel<AcosOf>(elementwise_cost<30>);
constexpr OpDef kAtan = function("Atan", 7, atan_gradient);
constexpr Kernel kAtanKernel = unary_functor_kernel<AtanOf>(elementwise_cost<30>);
constexpr OpDef kSinh = function("Sinh", 9, sinh_gradient, kInFloat32);
constexpr Kernel kSinhKernel = unary_functor_kernel<SinhOf>(elementwise_cost<30>);
constexpr OpDef kCosh = function("Cosh", 9, cosh_gradient, kInFloat32);
constexpr Kernel kCoshKernel = unary_functor_kernel<CoshOf>(elementwise_cost<30>);
constexpr OpDef kAsinh = function("Asinh", 9, asinh_gradient);
constexpr Kernel kAsinhKernel = unary_functor_kernel<AsinhOf>(elementwise_cost<30>);
constexpr OpDef kAcosh = function("Acosh", 9, acosh_gradient, kInFloat32);
constexpr Kernel kAcoshKernel = unary_functor_kernel<AcoshOf>(elementwise_cost<30>);
constexpr OpDef kAtanh = function("Atanh", 9, atanh_gradient, kInFloat32);
constexpr Kernel kAtanhKernel = unary_functor_kernel<AtanhOf>(elementwise_cost<30>);

ORT_TRAIN_OPS_END
