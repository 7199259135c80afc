// Add, Sub, Mul, Div, Min, Max with NumPy broadcasting, their variadic forms (Sum, Mean, Min, Max) as chains, for floating-point numbers
// and integers (shape arithmetic is folded through these). Integers wrap; their division truncates, and by zero gives zero.
//
// Min and Max hand on NaN. Where both sides are equal, each gets half the gradient.

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/wrapping.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using AllNumbers = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t>;

struct AddOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct SubOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
  }
};
struct MulOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
struct DivOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      return b == T(-1) && std::is_signed_v<T> ? SubOf::value(T(0), a)
                                               : static_cast<T>(a / b);  // the smallest number has no negative, and traps
    } else {
      return a / b;
    }
  }
};
struct MinOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return a < b || a != a ? a : b; }
};
struct MaxOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return a > b || a != a ? a : b; }
};
// d max(a, b) / da
struct MaxSlopeOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return a < b ? T(0) : (a == b ? T(0.5) : T(1)); }
};
struct MulUnlessZeroOf {
  template <typename T> HOST_DEVICE static T value(T x, T factor) { return factor == T(0) ? T(0) : x * factor; }
};

// --- gradients ------------------------------------------------------------------------------------------------------------------------

void add_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0);
  for (size_t i = 0; i < 2; ++i) {
    if (g.wants(i)) g.input_gradient(i, g.reduce_to(dy, g.shape(node.inputs[i])));
  }
}

void sub_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0);
  if (g.wants(0)) g.input_gradient(0, g.reduce_to(dy, g.shape(node.inputs[0])));
  if (g.wants(1)) g.input_gradient(1, g.emit("Neg", {g.reduce_to(dy, g.shape(node.inputs[1]))}));
}

void mul_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0);
  for (size_t i = 0; i < 2; ++i) {
    if (g.wants(i)) g.input_gradient(i, g.reduce_to(g.emit("Mul", {dy, node.inputs[1 - i]}), g.shape(node.inputs[i])));
  }
}

// d/da = dy / b; d/db = -dy * a / b^2 = -(dy / b) * y
void div_gradient(const Node& node, GradientBuilder& g) {
  const ValueId a = node.inputs[0], b = node.inputs[1];
  const ValueId quotient = g.emit("Div", {g.output_gradient(0), b});
  if (g.wants(0)) g.input_gradient(0, g.reduce_to(quotient, g.shape(a)));
  if (g.wants(1)) g.input_gradient(1, g.emit("Neg", {g.reduce_to(g.emit("Mul", {quotient, node.outputs[0]}), g.shape(b))}));
}

// sign = 0: Max, 1: Min, whose slope is that of Max with its sides exchanged
template <size_t sign> void extremum_gradient(const Node& node, GradientBuilder& g) {
  for (size_t i = 0; i < 2; ++i) {
    if (!g.wants(i)) continue;
    const ValueId own = node.inputs[i], other = node.inputs[1 - i];
    const ValueId slope = sign == 0 ? g.emit("MaxSlope", {own, other}) : g.emit("MaxSlope", {other, own});
    g.input_gradient(i, g.reduce_to(g.emit("MulUnlessZero", {g.output_gradient(0), slope}), g.shape(own)));
  }
}

// --- ONNX forms -----------------------------------------------------------------------------------------------------------------------

ValueId chain(Lowering& l, std::string_view op) {
  ValueId total = l.input(0);
  for (size_t i = 1; i < l.node.inputs.size(); ++i) total = l.emit(op, {total, l.input(i)});
  return total;
}
void lower_sum(Lowering& l) { l.output(0, chain(l, "Add")); }
void lower_min(Lowering& l) { l.output(0, chain(l, "Min")); }
void lower_max(Lowering& l) { l.output(0, chain(l, "Max")); }
void lower_mean(Lowering& l) {
  const ValueId sum = chain(l, "Add");
  l.output(0, l.node.inputs.size() == 1 ? sum : l.emit("Div", {sum, l.scalar_like(sum, double(l.node.inputs.size()))}));
}

// ai.onnx.ml Scaler-1: (x - offset) * scale, in float32; of each column, or of all.
void lower_scaler(Lowering& l) {
  const ValueId x = l.cast(l.input(0), DType::float32);
  const auto numbers = [&](const char* name) {
    const Attribute* const attribute = l.node.attributes.find(name);
    const auto* const list = attribute == nullptr ? nullptr : std::get_if<std::vector<float>>(attribute);
    if (list == nullptr || list->empty()) l.fail(fmt::format("its attribute '{}' has no numbers", name));
    return l.constant(make_tensor<float>({static_cast<int64_t>(list->size())}, *list));
  };
  l.output(0, l.emit("Mul", {l.emit("Sub", {x, numbers("offset")}), numbers("scale")}));
}

std::vector<TensorType> infer_pair(const InferContext& context) {
  if (context.inputs.size() != 2) throw error(ErrorCode::unsupported, "has {} inputs, not 2", context.inputs.size());
  return infer_broadcast(context);
}

}  // namespace

constexpr OpDef kAdd{
    .name = "Add",
    .onnx = {{.domain = "", .name = "Add", .since = 7},
             {.domain = "", .name = "Sum", .since = 6, .lower = lower_sum},
             {.domain = "", .name = "Mean", .since = 6, .lower = lower_mean}},
    .infer = infer_pair,
    .gradient = add_gradient,
    .traits = {.precision = {.single = SingleNumber::added}, .along = along_elements},
    .standard = 14,
};
constexpr Kernel kAddKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<AddOf, AllNumbers>,
    .elements = binary_elements<AddOf, AllNumbers>,
};

constexpr OpDef kSub{
    .name = "Sub",
    .onnx = {{.domain = "", .name = "Sub", .since = 7}},
    .infer = infer_pair,
    .gradient = sub_gradient,
    .traits = {.precision = {.single = SingleNumber::added}, .along = along_elements},
    .standard = 14,
};
constexpr Kernel kSubKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<SubOf, AllNumbers>,
    .elements = binary_elements<SubOf, AllNumbers>,
};

constexpr OpDef kMul{
    .name = "Mul",
    .onnx = {{.domain = "", .name = "Mul", .since = 7}, {.domain = "ai.onnx.ml", .name = "Scaler", .lower = lower_scaler, .inputs = 1}},
    .infer = infer_pair,
    .gradient = mul_gradient,
    .traits = {.precision = {.single = SingleNumber::multiplied}, .along = along_elements},
    .standard = 14,
};
constexpr Kernel kMulKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<MulOf, AllNumbers>,
    .elements = binary_elements<MulOf, AllNumbers>,
};

constexpr OpDef kDiv{
    .name = "Div",
    .onnx = {{.domain = "", .name = "Div", .since = 7}},
    .infer = infer_pair,
    .gradient = div_gradient,
    .traits = {.precision = {.single = SingleNumber::multiplied}, .along = along_elements},
    .standard = 14,
};
constexpr Kernel kDivKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<DivOf, AllNumbers>,
    .elements = binary_elements<DivOf, AllNumbers>,
};

constexpr OpDef kMin{
    .name = "Min",
    .onnx = {{.domain = "", .name = "Min", .since = 6, .lower = lower_min}},
    .infer = infer_pair,
    .gradient = extremum_gradient<1>,
    .traits = {.along = along_elements},
    .standard = 13,
};
constexpr Kernel kMinKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<MinOf, AllNumbers>,
    .elements = binary_elements<MinOf, AllNumbers>,
};

constexpr OpDef kMax{
    .name = "Max",
    .onnx = {{.domain = "", .name = "Max", .since = 6, .lower = lower_max}},
    .infer = infer_pair,
    .gradient = extremum_gradient<0>,
    .traits = {.along = along_elements},
    .standard = 13,
};
constexpr Kernel kMaxKernel{
    .types = dtypes_of(AllNumbers{}),
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<MaxOf, AllNumbers>,
    .elements = binary_elements<MaxOf, AllNumbers>,
};

// 0 where a < b, 1/2 where they are equal, else 1
constexpr OpDef kMaxSlope{
    .name = "MaxSlope",
    .infer = infer_pair,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kMaxSlopeKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<2>,
    .prepare = binary<MaxSlopeOf>,
    .elements = binary_elements<MaxSlopeOf>,
};

// (x, factor) -> x * factor, and 0 where the factor is 0, whatever x is
constexpr OpDef kMulUnlessZero{
    .name = "MulUnlessZero",
    .infer = infer_pair,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kMulUnlessZeroKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<1>,
    .prepare = binary<MulUnlessZeroOf>,
    .elements = binary_elements<MulUnlessZeroOf>,
};

ORT_TRAIN_OPS_END
