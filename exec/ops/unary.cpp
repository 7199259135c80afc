// Functions of one number: Neg, Abs, Sign, Sqrt, Reciprocal, Exp, Log, Erf, Floor, Ceil, Round, IsNaN, IsInf.
//
// Gradients read whichever of x and y spares the other. Floor, Ceil, Round and Sign are steps: nothing can be learnt through them.

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/wrapping.h"

ORT_TRAIN_OPS_BEGIN
namespace {

struct NegOf {
  template <typename T> HOST_DEVICE static T value(T x) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(Wrapping<T>(0) - static_cast<Wrapping<T>>(x));
    else
      return -x;
  }
};
struct AbsOf {
  template <typename T> HOST_DEVICE static T value(T x) {
    if constexpr (std::is_integral_v<T>)
      return x < 0 ? NegOf::value(x) : x;
    else
      return math::abs(x);
  }
};
struct SignOf {  // NaN stays
  template <typename T> HOST_DEVICE static T value(T x) { return x > T(0) ? T(1) : (x < T(0) ? T(-1) : x == T(0) ? T(0) : x); }
};
struct SqrtOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::sqrt(x); }
  template <typename T> HOST_DEVICE static T slope(T y) { return T(0.5) / y; }  // of the output
};
struct ReciprocalOf {
  template <typename T> HOST_DEVICE static T value(T x) { return T(1) / x; }
  template <typename T> HOST_DEVICE static T slope(T y) { return -y * y; }  // of the output
};
struct ExpOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::exp(x); }
};
struct LogOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::log(x); }
};
struct ErfOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::erf(x); }
  template <typename T> HOST_DEVICE static T slope(T x) { return T(math::kTwoOverSqrtPi) * math::exp(-x * x); }
};
struct FloorOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::floor(x); }
};
struct CeilOf {
  template <typename T> HOST_DEVICE static T value(T x) { return math::ceil(x); }
};
struct RoundOf {  // half to even
  template <typename T> HOST_DEVICE static T value(T x) { return math::round_to_even(x); }
};
struct IsNaNOf {
  template <typename T> HOST_DEVICE static bool value(T x) { return x != x; }
};
struct IsInfOf {
  double highest, lowest;  // NaN where that infinity doesn't count
  explicit IsInfOf(const Attributes& attributes)
      : highest(attributes.get("detect_positive", 1) ? HUGE_VAL : NAN), lowest(attributes.get("detect_negative", 1) ? -HUGE_VAL : NAN) {}
  template <typename T> HOST_DEVICE bool value(T x) const { return x == T(highest) || x == T(lowest); }
};

void neg_gradient(const Node&, GradientBuilder& g) { g.input_gradient(0, g.emit("Neg", {g.output_gradient(0)})); }
void abs_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("Mul", {g.output_gradient(0), g.emit("Sign", {node.inputs[0]})}));
}
void exp_gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, g.emit("Mul", {g.output_gradient(0), node.outputs[0]})); }
void log_gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, g.emit("Div", {g.output_gradient(0), node.inputs[0]})); }

constexpr std::string_view kStep = "is a step function: its derivative is zero";
constexpr std::string_view kStepHint = "freeze the parameters before it with `freeze`, or train without this branch";

constexpr OpDef predicate(std::string_view name, int since, int standard) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = since}},
          .infer =
              [](const InferContext& context) {
                return std::vector<TensorType>{{DType::boolean, context.input(0).shape}};
              },
          .no_gradient = "the result is boolean",
          .traits = {.along = along_elements},
          .standard = standard};
}
constexpr Kernel predicate_kernel(Prepare prepare) { return {.types = kFloating, .cost = elementwise_cost<1>, .prepare = prepare}; }

constexpr OpDef step(std::string_view name, int since) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = since}},
          .infer = infer_same_as_input,
          .no_gradient = kStep,
          .hint = kStepHint,
          .traits = {.is_step = true, .along = along_elements},
          .standard = 13};
}

constexpr OpDef function(std::string_view name, void (*gradient)(const Node&, GradientBuilder&), PrecisionTraits precision = {}) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = 6}},
          .infer = infer_same_as_input,
          .gradient = gradient,
          .traits = {.precision = precision, .along = along_elements},
          .standard = 13};
}

}  // namespace

constexpr OpDef kNeg = function("Neg", neg_gradient);
constexpr Kernel kNegKernel = unary_functor_kernel<NegOf, Numbers>(elementwise_cost<1>, kNumbers);
constexpr OpDef kAbs = function("Abs", abs_gradient);
constexpr Kernel kAbsKernel = unary_functor_kernel<AbsOf, Numbers>(elementwise_cost<1>, kNumbers);
constexpr OpDef kSqrt = function("Sqrt", gradient_from_output);
constexpr Kernel kSqrtKernel = unary_functor_kernel<SqrtOf>(elementwise_cost<1>);
constexpr OpDef kSqrtGrad = slope_op("SqrtGrad");
constexpr Kernel kSqrtGradKernel = slope_kernel_of<SqrtOf>(elementwise_cost<2>);
constexpr OpDef kReciprocal = function("Reciprocal", gradient_from_output, kInFloat32);
constexpr Kernel kReciprocalKernel = unary_functor_kernel<ReciprocalOf>(elementwise_cost<1>);
constexpr OpDef kReciprocalGrad = slope_op("ReciprocalGrad");
constexpr Kernel kReciprocalGradKernel = slope_kernel_of<ReciprocalOf>(elementwise_cost<3>);
constexpr OpDef kExp = function("Exp", exp_gradient, kInFloat32);
constexpr Kernel kExpKernel = unary_functor_kernel<ExpOf>(elementwise_cost<20>);
constexpr OpDef kLog = function("Log", log_gradient, kInFloat32);
constexpr Kernel kLogKernel = unary_functor_kernel<LogOf>(elementwise_cost<20>);
constexpr OpDef kErf = function("Erf", gradient_from_input);  // since 9
constexpr Kernel kErfKernel = unary_functor_kernel<ErfOf>(elementwise_cost<40>);
constexpr OpDef kErfGrad = slope_op("ErfGrad");
constexpr Kernel kErfGradKernel = slope_kernel_of<ErfOf>(elementwise_cost<22>);
constexpr OpDef kSign = step("Sign", 9);
constexpr Kernel kSignKernel = unary_functor_kernel<SignOf, Numbers>(elementwise_cost<1>, kNumbers);
constexpr OpDef kFloor = step("Floor", 6);
constexpr Kernel kFloorKernel = unary_functor_kernel<FloorOf>(elementwise_cost<1>);
constexpr OpDef kCeil = step("Ceil", 6);
constexpr Kernel kCeilKernel = unary_functor_kernel<CeilOf>(elementwise_cost<1>);
constexpr OpDef kRound = step("Round", 11);
constexpr Kernel kRoundKernel = unary_functor_kernel<RoundOf>(elementwise_cost<1>);
constexpr OpDef kIsNaN = predicate("IsNaN", 9, 13);
constexpr Kernel kIsNaNKernel = predicate_kernel(unary<IsNaNOf>);
constexpr OpDef kIsInf = predicate("IsInf", 10, 10);
constexpr Kernel kIsInfKernel = predicate_kernel(unary<IsInfOf>);

ORT_TRAIN_OPS_END
