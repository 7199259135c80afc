// Tanh, Sigmoid, Relu, LeakyRelu, Elu, Softplus, HardSigmoid, HardSwish, Swish (SiLU), and what is made of them: Selu, Celu, Mish,
// Softsign, ThresholdedRelu, Shrink, PRelu, QuickGelu. Gelu has a file of its own.
//
// Each has one fused gradient node, which reads y where that suffices (Tanh, Sigmoid, Relu, HardSigmoid, LeakyRelu with alpha >= 0): then
// the forward result may overwrite x. At a kink the gradient is that of the flatter side. NaN stays NaN.

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

struct TanhOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::tanh(x); }
  template <typename T> HOST_DEVICE static T slope(T y) { return T(1) - y * y; }  // of the output
};

struct SigmoidOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::sigmoid(x); }
  template <typename T> HOST_DEVICE static T slope(T y) { return y * (T(1) - y); }  // of the output
};

struct ReluOf {
  template <typename T> HOST_DEVICE static T value(T x) { return x < T(0) ? T(0) : x; }
  template <typename T> HOST_DEVICE static T gradient(T dy, T y) { return y <= T(0) ? T(0) : dy; }  // by the output
};

struct LeakyReluOf {
  float alpha;
  explicit LeakyReluOf(const Attributes& attributes) : alpha(attributes.get("alpha", 0.01f)) {}
  template <typename T> HOST_DEVICE T value(T x) const { return x < T(0) ? T(alpha) * x : x; }
  template <typename T> HOST_DEVICE T slope(T x) const { return x > T(0) ? T(1) : T(alpha); }  // of the input, or of an output of its sign
};

struct EluOf {
  float alpha;
  explicit EluOf(const Attributes& attributes) : alpha(attributes.get("alpha", 1.0f)) {}
  template <typename T> HOST_DEVICE T value(T x) const { return x > T(0) ? x : T(alpha) * math::expm1(x > T(0) ? T(0) : x); }
  template <typename T> HOST_DEVICE T slope(T x) const { return x > T(0) ? T(1) : T(alpha) * math::exp(x); }
};

struct SoftplusOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::softplus(x); }
  template <typename T> HOST_DEVICE static T slope(T x) { return math::sigmoid(x); }
};

struct HardSigmoidOf {
  float alpha, beta;
  explicit HardSigmoidOf(const Attributes& attributes) : alpha(attributes.get("alpha", 0.2f)), beta(attributes.get("beta", 0.5f)) {}
  template <typename T> HOST_DEVICE T value(T x) const {
    const T y = T(alpha) * x + T(beta);
    return y < T(0) ? T(0) : (y > T(1) ? T(1) : y);
  }
  template <typename T> HOST_DEVICE T gradient(T dy, T y) const { return y <= T(0) || y >= T(1) ? T(0) : dy * T(alpha); }  // by the output
};

struct HardSwishOf {  // x * hard_sigmoid(x, 1/6, 1/2)
  template <typename T> HOST_DEVICE static T value(T x) {
    const T gate = x / T(6) + T(0.5);
    return x * (gate < T(0) ? T(0) : (gate > T(1) ? T(1) : gate));
  }
  template <typename T> HOST_DEVICE static T gradient(T dy, T x) { return x <= T(-3) ? T(0) : (x >= T(3) ? dy : dy * (x / T(3) + T(0.5))); }
};

struct SwishOf {  // x * sigmoid(alpha * x)
  float alpha;
  explicit SwishOf(const Attributes& attributes) : alpha(attributes.get("alpha", 1.0f)) {}
  template <typename T> HOST_DEVICE T value(T x) const { return x * math::sigmoid(T(alpha) * x); }
  template <typename T> HOST_DEVICE T slope(T x) const {
    const T s = math::sigmoid(T(alpha) * x);
    return s + T(alpha) * x * s * (T(1) - s);
  }
};

void leaky_relu_gradient(const Node& node, GradientBuilder& g) {
  // The output tells the input's sign, unless alpha turns it round.
  if (node.attributes.get("alpha", 0.01f) >= 0)
    gradient_from_output(node, g);
  else
    gradient_from_input(node, g);
}

// --- ONNX forms -----------------------------------------------------------------------------------------------------------------------

void lower_selu(Lowering& l) {
  const ValueId elu = l.emit("Elu", {l.input(0)}, {{"alpha", l.node.attributes.get("alpha", 1.67326319217681884765625f)}});
  l.output(0, l.emit("Mul", {elu, l.scalar_like(elu, l.node.attributes.get("gamma", 1.05070102214813232421875f))}));
}
void lower_celu(Lowering& l) {  // alpha * elu(x / alpha)
  const ValueId x = l.input(0), alpha = l.scalar_like(x, l.node.attributes.get("alpha", 1.0f));
  l.output(0, l.emit("Mul", {l.emit("Elu", {l.emit("Div", {x, alpha})}), alpha}));
}
// x -+ bias where |x| is above lambd, else 0.
void lower_shrink(Lowering& l) {
  const ValueId x = l.input(0);
  const auto number = [&](float value) { return l.scalar_like(x, value); };
  const float bias = l.node.attributes.get("bias", 0.0f), lambd = l.node.attributes.get("lambd", 0.5f);
  const ValueId above = l.emit("Where", {l.emit("Greater", {x, number(lambd)}), l.emit("Sub", {x, number(bias)}), number(0)});
  l.output(0, l.emit("Where", {l.emit("Less", {x, number(-lambd)}), l.emit("Add", {x, number(bias)}), above}));
}
void lower_mish(Lowering& l) { l.output(0, l.emit("Mul", {l.input(0), l.emit("Tanh", {l.emit("Softplus", {l.input(0)})})})); }
void lower_softsign(Lowering& l) {
  const ValueId x = l.input(0);
  l.output(0, l.emit("Div", {x, l.emit("Add", {l.emit("Abs", {x}), l.scalar_like(x, 1)})}));
}
void lower_thresholded_relu(Lowering& l) {
  const ValueId x = l.input(0);
  const ValueId above = l.emit("Greater", {x, l.scalar_like(x, l.node.attributes.get("alpha", 1.0f))});
  l.output(0, l.emit("Where", {above, x, l.scalar_like(x, 0)}));
}
void lower_prelu(Lowering& l) {  // the slope broadcasts to x, and is the gradient's at 0
  const ValueId x = l.input(0), zero = l.scalar_like(x, 0), above = l.emit("Greater", {x, zero});
  const ValueId below = l.emit("Where", {above, zero, x});  // infinity times the gradient 0 would be NaN
  l.output(0, l.emit("Where", {above, x, l.emit("Mul", {below, l.input(1)})}));
}
void lower_quick_gelu(Lowering& l) { l.pass_on("Swish", {{"alpha", l.node.attributes.get("alpha", 1.702f)}}); }

constexpr OpDef activation(std::string_view name, int standard, void (*gradient)(const Node&, GradientBuilder&), List<OnnxForm, 6> forms,
                           PrecisionTraits precision = {}) {
  return {.name = name,
          .onnx = forms,
          .infer = infer_same_as_input,
          .gradient = gradient,
          .traits = {.precision = precision, .along = along_elements},
          .standard = standard};
}

}  // namespace

constexpr OpDef kTanh = activation("Tanh", 13, gradient_from_output, {{.domain = "", .name = "Tanh", .since = 6}});
constexpr Kernel kTanhKernel = unary_functor_kernel<TanhOf>(elementwise_cost<20>);
constexpr OpDef kTanhGrad = slope_op("TanhGrad");
constexpr Kernel kTanhGradKernel = slope_kernel_of<TanhOf>(elementwise_cost<3>);

constexpr OpDef kSigmoid = activation("Sigmoid", 13, gradient_from_output, {{.domain = "", .name = "Sigmoid", .since = 6}});
constexpr Kernel kSigmoidKernel = unary_functor_kernel<SigmoidOf>(elementwise_cost<22>);
constexpr OpDef kSigmoidGrad = slope_op("SigmoidGrad");
constexpr Kernel kSigmoidGradKernel = slope_kernel_of<SigmoidOf>(elementwise_cost<3>);

constexpr OpDef kRelu =
    activation("Relu", 14, gradient_from_output,
               {{.domain = "", .name = "Relu", .since = 6}, {.domain = "", .name = "PRelu", .since = 7, .lower = lower_prelu}});
constexpr Kernel kReluKernel = unary_functor_kernel<ReluOf, Numbers>(elementwise_cost<1>, kNumbers);
constexpr OpDef kReluGrad = slope_op("ReluGrad");
constexpr Kernel kReluGradKernel = slope_kernel_of<ReluOf>(elementwise_cost<2>);

constexpr OpDef kLeakyRelu = activation("LeakyRelu", 16, leaky_relu_gradient, {{.domain = "", .name = "LeakyRelu", .since = 6}});
constexpr Kernel kLeakyReluKernel = unary_functor_kernel<LeakyReluOf>(elementwise_cost<2>);
constexpr OpDef kLeakyReluGrad = slope_op("LeakyReluGrad");
constexpr Kernel kLeakyReluGradKernel = slope_kernel_of<LeakyReluOf>(elementwise_cost<2>);

constexpr OpDef kElu = activation("Elu", 22, gradient_from_input,
                                  {{.domain = "", .name = "Elu", .since = 6},
                                   {.domain = "", .name = "Selu", .since = 6, .lower = lower_selu},
                                   {.domain = "", .name = "Celu", .since = 12, .lower = lower_celu}});
constexpr Kernel kEluKernel = unary_functor_kernel<EluOf>(elementwise_cost<20>);
constexpr OpDef kEluGrad = slope_op("EluGrad");
constexpr Kernel kEluGradKernel = slope_kernel_of<EluOf>(elementwise_cost<20>);

constexpr OpDef kSoftplus = activation("Softplus", 22, gradient_from_input,
                                       {{.domain = "", .name = "Softplus", .since = 1},
                                        {.domain = "", .name = "Mish", .since = 18, .lower = lower_mish},
                                        {.domain = "", .name = "Softsign", .since = 1, .lower = lower_softsign},
                                        {.domain = "", .name = "ThresholdedRelu", .since = 10, .lower = lower_thresholded_relu},
                                        {.domain = "", .name = "Shrink", .since = 9, .lower = lower_shrink}},
                                       kInFloat32);
constexpr Kernel kSoftplusKernel = unary_functor_kernel<SoftplusOf>(elementwise_cost<45>);
constexpr OpDef kSoftplusGrad = slope_op("SoftplusGrad");
constexpr Kernel kSoftplusGradKernel = slope_kernel_of<SoftplusOf>(elementwise_cost<23>);

constexpr OpDef kHardSigmoid = activation("HardSigmoid", 22, gradient_from_output, {{.domain = "", .name = "HardSigmoid", .since = 6}});
constexpr Kernel kHardSigmoidKernel = unary_functor_kernel<HardSigmoidOf>(elementwise_cost<4>);
constexpr OpDef kHardSigmoidGrad = slope_op("HardSigmoidGrad");
constexpr Kernel kHardSigmoidGradKernel = slope_kernel_of<HardSigmoidOf>(elementwise_cost<3>);

constexpr OpDef kHardSwish = activation("HardSwish", 22, gradient_from_input, {{.domain = "", .name = "HardSwish", .since = 14}});
constexpr Kernel kHardSwishKernel = unary_functor_kernel<HardSwishOf>(elementwise_cost<5>);
constexpr OpDef kHardSwishGrad = slope_op("HardSwishGrad");
constexpr Kernel kHardSwishGradKernel = slope_kernel_of<HardSwishOf>(elementwise_cost<5>);

constexpr OpDef kSwish =
    activation("Swish", 24, gradient_from_input,
               {{.domain = "", .name = "Swish", .since = 24},
                {.domain = "com.microsoft", .name = "QuickGelu", .lower = lower_quick_gelu, .inputs = 1, .outputs = 1}});
constexpr Kernel kSwishKernel = unary_functor_kernel<SwishOf>(elementwise_cost<24>);
constexpr OpDef kSwishGrad = slope_op("SwishGrad");
constexpr Kernel kSwishGradKernel = slope_kernel_of<SwishOf>(elementwise_cost<28>);

ORT_TRAIN_OPS_END
