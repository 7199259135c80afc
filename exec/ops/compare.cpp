// Equal, Greater, GreaterOrEqual, Less, LessOrEqual, And, Or, Xor, Not -> bool, and Mod{fmod} (ONNX Equal-7, And-7, Not-1, Mod-10 and
// later).
//
// All broadcast as NumPy does. Booleans carry no gradient; comparisons with NaN are false. Mod takes the sign of the divisor for integers
// (Python's %), of the dividend with fmod = 1 (C's fmod); an integer divisor of zero gives zero, as NumPy does and Div here.

#include <cmath>

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

using Comparable = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;
using Integers = Types<int64_t, int32_t, int16_t, int8_t, uint8_t>;

struct EqualTo {
  template <typename T> HOST_DEVICE bool value(T a, T b) const { return a == b; }
};
struct GreaterThan {
  template <typename T> HOST_DEVICE bool value(T a, T b) const { return a > b; }
};
struct AtLeast {
  template <typename T> HOST_DEVICE bool value(T a, T b) const { return a >= b; }
};
struct LessThan {
  template <typename T> HOST_DEVICE bool value(T a, T b) const { return a < b; }
};
struct AtMost {
  template <typename T> HOST_DEVICE bool value(T a, T b) const { return a <= b; }
};
struct Both {
  HOST_DEVICE bool value(bool a, bool b) const { return a & b; }
};
struct Either {
  HOST_DEVICE bool value(bool a, bool b) const { return a | b; }
};
struct OneOf {
  HOST_DEVICE bool value(bool a, bool b) const { return a != b; }
};
struct Negated {
  HOST_DEVICE bool value(bool a) const { return !a; }
};

std::vector<TensorType> infer_logical(const InferContext& context) {
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (context.input(i).dtype != DType::boolean)
      throw error(ErrorCode::unsupported, "input {} is {}, not bool", i, to_string(context.input(i).dtype));
  }
  return infer_broadcast(context);
}

// --- Mod ------------------------------------------------------------------------------------------------------------------------------

struct FloatRemainder {
  template <typename T> HOST_DEVICE T value(T a, T b) const { return ::fmod(a, b); }
  HOST_DEVICE float value(float a, float b) const { return ::fmodf(a, b); }
};
// The same with the sign of the divisor, zeros too (from opset 28 on).
struct FloatModulus {
  template <typename T> HOST_DEVICE T value(T a, T b) const {
    const T remainder = FloatRemainder().value(a, b);
    if (remainder == 0) return std::copysign(remainder, b);
    return (remainder < 0) != (b < 0) ? remainder + b : remainder;
  }
};

template <bool kSignOfDivisor> struct IntegerRemainder {
  template <typename T> HOST_DEVICE T value(T a, T b) const {
    if (b == 0) return 0;
    if (b == static_cast<T>(-1)) return static_cast<T>(std::is_signed_v<T> ? 0 : a % b);  // the least integer % -1 traps
    const T remainder = static_cast<T>(a % b);
    return kSignOfDivisor && remainder != 0 && (remainder < 0) != (b < 0) ? static_cast<T>(remainder + b) : remainder;
  }
};

bool is_fmod(const Attributes& attributes) { return attributes.get("fmod", 0) != 0; }

// y = a - n b, n = trunc(a / b), or floor(a / b): dy/da = 1, dy/db = -n = -(a - y) / b.
void mod_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0), a = node.inputs[0], b = node.inputs[1];
  if (g.wants(0)) g.input_gradient(0, g.reduce_to(dy, g.shape(a)));
  if (g.wants(1)) {
    const ValueId quotient = g.emit("Div", {g.emit("Sub", {node.outputs[0], a}), b});
    g.input_gradient(1, g.reduce_to(g.emit("Mul", {dy, quotient}), g.shape(b)));
  }
}

KernelRun prepare_mod(const KernelSpec& spec) {
  if (is_floating(spec.inputs[0].dtype)) return is_fmod(spec.attributes) ? binary<FloatRemainder>(spec) : binary<FloatModulus>(spec);
  return is_fmod(spec.attributes) ? binary<IntegerRemainder<false>, Integers>(spec) : binary<IntegerRemainder<true>, Integers>(spec);
}

// --- OpDefs ---------------------------------------------------------------------------------------------------------------------------

constexpr OpDef comparison(std::string_view name, int since, int standard) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = since}},
          .infer = infer_broadcast_bool,
          .no_gradient = "comparisons have no gradient",
          .traits = {.along = along_elements},
          .standard = standard};
}
constexpr Kernel comparison_kernel(Prepare prepare) {
  return {.types = dtypes_of(Comparable{}), .cost = elementwise_cost<1>, .prepare = prepare};
}

constexpr OpDef logical(std::string_view name) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = 7}},
          .infer = infer_logical,
          .no_gradient = "booleans have no gradient",
          .traits = {.along = along_elements},
          .standard = 7};
}
constexpr Kernel logical_kernel(Prepare prepare) {
  return {.types = {DType::boolean}, .in_place = kOverEither, .cost = elementwise_cost<1>, .prepare = prepare};
}

}  // namespace

constexpr OpDef kEqual = comparison("Equal", 7, 11);
constexpr Kernel kEqualKernel = comparison_kernel(binary<EqualTo, Comparable>);
constexpr OpDef kGreater = comparison("Greater", 7, 9);
constexpr Kernel kGreaterKernel = comparison_kernel(binary<GreaterThan, Comparable>);
constexpr OpDef kGreaterOrEqual = comparison("GreaterOrEqual", 12, 12);
constexpr Kernel kGreaterOrEqualKernel = comparison_kernel(binary<AtLeast, Comparable>);
constexpr OpDef kLess = comparison("Less", 7, 9);
constexpr Kernel kLessKernel = comparison_kernel(binary<LessThan, Comparable>);
constexpr OpDef kLessOrEqual = comparison("LessOrEqual", 12, 12);
constexpr Kernel kLessOrEqualKernel = comparison_kernel(binary<AtMost, Comparable>);
constexpr OpDef kAnd = logical("And");
constexpr Kernel kAndKernel = logical_kernel(binary<Both, Types<bool>>);
constexpr OpDef kOr = logical("Or");
constexpr Kernel kOrKernel = logical_kernel(binary<Either, Types<bool>>);
constexpr OpDef kXor = logical("Xor");
constexpr Kernel kXorKernel = logical_kernel(binary<OneOf, Types<bool>>);

constexpr OpDef kNot{
    .name = "Not",
    .onnx = {{.domain = "", .name = "Not", .since = 1}},
    .infer = infer_logical,
    .no_gradient = "booleans have no gradient",
    .traits = {.along = along_elements},
    .standard = 1,
};
constexpr Kernel kNotKernel{
    .types = {DType::boolean},
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<1>,
    .prepare = unary<Negated, Types<bool>>,
};

constexpr OpDef kMod{
    .name = "Mod",
    .onnx = {{.domain = "", .name = "Mod", .since = 10}},
    .infer = infer_broadcast,
    .gradient = mod_gradient,
    .traits = {.along = along_elements},
    .standard = 13,
};
constexpr Kernel kModKernel{
    .types = kFloating | dtypes_of(Integers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<10>,
    .prepare = prepare_mod,
};

ORT_TRAIN_OPS_END
