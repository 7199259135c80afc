// Gelu (ONNX Gelu-20; Hendrycks & Gimpel, arXiv 1606.08415): y = x * Phi(x), Phi the standard normal distribution function.
// approximate="tanh", which GPT-2 was trained with: y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
//
// Saves x, nothing else. Shapes: any; y has x's shape and type.

#include "exec/elementwise.h"
#include "exec/math.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// P(-a) of a distribution function P with P(-a) = 1 - P(a), and its density P'(a).
template <typename T> struct Tail { T below, density; };

// P = Phi. For a >= 0, Phi(-a) / e^(-a^2/2) is a polynomial in u = 1 / (1 + a/4), to a relative error of 2^-25. From kEnd on all is 0.
struct Normal {
  template <typename T> static constexpr T kEnd = std::is_same_v<T, float> ? 13.25 : 40;
  HOST_DEVICE static Tail<float> at(float a) {
    const float u = 1.0f / math::fma(a, 0.25f, 1.0f);
    float r = 0x1.11d310p-5f;
    r = math::fma(r, u, -0x1.8c0aa4p-3f);
    r = math::fma(r, u, 0x1.8dd0fap-2f);
    r = math::fma(r, u, -0x1.4cabc8p-2f);
    r = math::fma(r, u, 0x1.308964p-2f);
    r = math::fma(r, u, -0x1.100e3cp-6f);
    r = math::fma(r, u, 0x1.ec9cf8p-4f);
    r = math::fma(r, u, 0x1.85865cp-4f);
    r = math::fma(r, u, 0x1.9a6672p-4f);
    r = math::fma(r, u, -0x1.4d1ad4p-16f);
    const float bell = math::exp2_of_product(a * a, float(-0.5 * math::kLog2E));
    return {r * bell, float(math::kInvSqrt2Pi) * bell};
  }
  HOST_DEVICE static Tail<double> at(double a) { return {0.5 * ::erfc(a * math::kInvSqrt2), math::kInvSqrt2Pi * ::exp(-0.5 * a * a)}; }
};

// P(x) = (1 + tanh(w/2)) / 2 = 1 / (1 + e^-w) with w = 2 sqrt(2/pi) * (x + 0.044715 x^3).
struct NearlyNormal {
  template <typename T> static constexpr T kEnd = std::is_same_v<T, float> ? 10.03 : 25;
  template <typename T> HOST_DEVICE static Tail<T> at(T a) {
    constexpr double k = 2 * math::kSqrt2OverPi, kCubic = 0.044715 * k;
    const T square = a * a;
    const T e = math::exp2_of_product(a, math::fma(square, T(-kCubic * math::kLog2E), T(-k * math::kLog2E)));
    const T above = T(1) / (T(1) + e), below = e * above;
    return {below, below * above * math::fma(square, T(3 * kCubic), T(k))};
  }
};

// x * P(x) = max(x, 0) - a * P(-a) with a = |x|: accurate where P(x) is small, and as fast on either side.
template <typename P> struct GeluBy {
  template <typename T> HOST_DEVICE static T bounded(T x) {
    constexpr T kEnd = P::template kEnd<T>;
    const T a = math::abs(x);
    return a > kEnd ? kEnd : a;  // NaN stays
  }
  template <typename T> HOST_DEVICE static T value(T x) {
    const T a = bounded(x);
    return math::fma(-a, P::at(a).below, x > T(0) ? x : T(0));
  }
  template <typename T> HOST_DEVICE static T slope(T x) {  // P(x) + x * P'(x)
    const T a = bounded(x);
    const Tail<T> at = P::at(a);
    const T left = math::fma(-a, at.density, at.below);
    return x < T(0) ? left : T(1) - left;
  }
};
using GeluErf = GeluBy<Normal>;
using GeluTanh = GeluBy<NearlyNormal>;

bool tanh_form(const Attributes& attributes) { return attributes.get("approximate", "none") == "tanh"; }

std::vector<TensorType> infer(const InferContext& context) {
  const std::string form = context.attributes.get("approximate", "none");
  if (form != "none" && form != "tanh") throw error(ErrorCode::unsupported, "approximate is '{}', but must be 'none' or 'tanh'", form);
  return infer_same_as_input(context);
}

// tanh takes four fifths of the time of erf.
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
    .cost = cost<12, 9>,
    .prepare = pick<tanh_form, unary<GeluTanh>, unary<GeluErf>>,
    .elements = pick_elements<tanh_form, unary_elements<GeluTanh>, unary_elements<GeluErf>>,
};

// dx = dy * gelu'(x)
constexpr OpDef kGeluGrad = slope_op("GeluGrad");
constexpr Kernel kGeluGradKernel{
    .types = kFloating,
    .in_place = kOverEither,
    .cost = cost<15, 13>,
    .prepare = pick<tanh_form, unary_slope<GeluTanh>, unary_slope<GeluErf>>,
    .elements = pick_elements<tanh_form, slope_elements<GeluTanh>, slope_elements<GeluErf>>,
};

ORT_TRAIN_OPS_END
