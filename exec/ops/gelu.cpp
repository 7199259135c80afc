// Gelu (ONNX Gelu-20; Hendrycks & Gimpel, arXiv 1606.08415): y = x * Phi(x), Phi the standard normal distribution function.
// approximate="tanh", which GPT-2 was trained with: y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
//
// Saves x, nothing else. Shapes: any; y has x's shape and type.

#include "exec/elementwise.h"
#include "exec/math.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

struct GeluErf {
  template <typename T> HOST_DEVICE static T value(T x) { return T(0.5) * x * (T(1) + math::erf(x * T(math::kInvSqrt2))); }
  template <typename T> HOST_DEVICE static T slope(T x) {  // Phi(x) + x * phi(x)
    return T(0.5) * (T(1) + math::erf(x * T(math::kInvSqrt2))) + x * T(math::kInvSqrt2Pi) * math::exp(T(-0.5) * x * x);
  }
};

struct GeluTanh {
  template <typename T> HOST_DEVICE static T inner(T x) { return math::tanh(T(math::kSqrt2OverPi) * (x + T(0.044715) * x * x * x)); }
  template <typename T> HOST_DEVICE static T value(T x) { return T(0.5) * x * (T(1) + inner(x)); }
  template <typename T> HOST_DEVICE static T slope(T x) {
    const T t = inner(x);
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(math::kSqrt2OverPi) * (T(1) + T(3 * 0.044715) * x * x);
  }
};

bool tanh_form(const Attributes& attributes) { return attributes.get("approximate", "none") == "tanh"; }

std::vector<TensorType> infer(const InferContext& context) {
  const std::string form = context.attributes.get("approximate", "none");
  if (form != "none" && form != "tanh") throw error(ErrorCode::unsupported, "approximate is '{}', but must be 'none' or 'tanh'", form);
  return infer_same_as_input(context);
}

// tanh takes two thirds of the time of erf.
template <int erf, int tanh> Cost cost(const KernelSpec& spec) {
  return tanh_form(spec.attributes) ? elementwise_cost<tanh>(spec) : elementwise_cost<erf>(spec);
}

void lower_with_bias(Lowering& l, const char* approximate) {
  const ValueId x = l.has(1) ? l.emit("Add", {l.input(0), l.input(1)}) : l.input(0);
  l.output(0, l.emit("Gelu", {x}, {{"approximate", approximate}}));
}
void lower_bias_gelu(Lowering& l) { lower_with_bias(l, "none"); }
void lower_fast_gelu(Lowering& l) { lower_with_bias(l, "tanh"); }

}  // namespace

constexpr OpDef kGelu{
    .name = "Gelu",
    .onnx = {{.domain = "", .name = "Gelu", .since = 20},
             {.domain = "com.microsoft", .name = "Gelu", .inputs = 1, .outputs = 1},
             {.domain = "com.microsoft", .name = "BiasGelu", .lower = lower_bias_gelu, .inputs = 2, .outputs = 1},
             {.domain = "com.microsoft", .name = "FastGelu", .lower = lower_fast_gelu, .inputs = 2, .outputs = 1}},  // the bias is optional
    .infer = infer,
    .gradient = gradient_from_input,  // one fused node: in primitives the backward pass would keep five tensors instead of x
    .traits = {.along = along_elements},
    .standard = 20,
};
constexpr Kernel kGeluKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = cost<30, 20>,
    .prepare = pick<tanh_form, unary<GeluTanh>, unary<GeluErf>>,
    .elements = pick_elements<tanh_form, unary_elements<GeluTanh>, unary_elements<GeluErf>>,
};

// dx = dy * gelu'(x)
constexpr OpDef kGeluGrad = slope_op("GeluGrad");
constexpr Kernel kGeluGradKernel = slope_kernel(pick<tanh_form, unary_slope<GeluTanh>, unary_slope<GeluErf>>, cost<45, 27>);

ORT_TRAIN_OPS_END
