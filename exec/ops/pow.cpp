// Pow (ONNX Pow-7..15): y = a^b, broadcast; the result has a's type. The exponents 2, 3, 1/2, 1, 0, -1 and -1/2 that fill a whole tensor
// are products, square roots and quotients: quick, and rounded like libm's pow or better.
//
//   d/da = b * a^(b-1), which is 0 where b is 0 whatever a is; d/db = a^b * log(a), which is 0 where a is 0 and b isn't negative.

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/wrapping.h"

ORT_TRAIN_OPS_BEGIN
namespace {

struct PowOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {  // by squaring, wrapping around; a negative exponent truncates
      if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 ? -1 : 1) : 0);
      using U = Wrapping<T>;
      U result = 1, square = static_cast<U>(a);
      for (; b > 0; b >>= 1, square *= square) {
        if (b & 1) result *= square;
      }
      return static_cast<T>(result);
    } else {
      return math::pow(a, b);
    }
  }
};
struct PowSlopeOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return b == T(0) ? T(0) : b * math::pow(a, b - T(1)); }
};
struct PowExponentSlopeOf {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return a == T(0) && b >= T(0) ? T(0) : math::pow(a, b) * math::log(a); }
};

struct Square {
  template <typename T> HOST_DEVICE static T value(T x) { return x * x; }
  template <typename T> HOST_DEVICE static T slope(T x) { return T(2) * x; }
};
struct Cube {  // in double: rounded once
  template <typename T> HOST_DEVICE static T value(T x) { return static_cast<T>(static_cast<double>(x) * x * x); }
  template <typename T> HOST_DEVICE static T slope(T x) { return static_cast<T>(3.0 * x * x); }
};
struct Root {  // as pow: +0 of -0, infinity of -infinity
  template <typename T> HOST_DEVICE static T value(T x) { return x == -T(HUGE_VAL) ? -x : math::sqrt(x + T(0)); }
  template <typename T> HOST_DEVICE static T slope(T x) { return T(0.5) / value(x); }
};
struct Identity {
  template <typename T> HOST_DEVICE static T value(T x) { return x; }
  template <typename T> HOST_DEVICE static T slope(T) { return T(1); }
};
struct One {
  template <typename T> HOST_DEVICE static T value(T) { return T(1); }
  template <typename T> HOST_DEVICE static T slope(T) { return T(0); }
};
struct Inverse {
  template <typename T> HOST_DEVICE static T value(T x) { return T(1) / x; }
  template <typename T> HOST_DEVICE static T slope(T x) { return T(-1) / (x * x); }
};
struct InverseRoot {  // in double: rounded once
  template <typename T> HOST_DEVICE static T value(T x) { return static_cast<T>(1.0 / Root::value(static_cast<double>(x))); }
  template <typename T> HOST_DEVICE static T slope(T x) {
    const double wide = x;
    return static_cast<T>(-0.5 / (wide * math::sqrt(wide)));
  }
};

template <typename F> struct SlopeOf {
  template <typename T> HOST_DEVICE static T value(T x) { return F::slope(x); }
};
template <typename F> struct ValueOf : F {};

// body(f): f is the functor for a^b with this b; false where there is none.
template <typename T, typename Body> HOST_DEVICE inline bool with_exponent(T b, Body&& body) {
  if (b == T(2))
    body(Square{});
  else if (b == T(3))
    body(Cube{});
  else if (b == T(0.5))
    body(Root{});
  else if (b == T(1))
    body(Identity{});
  else if (b == T(0))
    body(One{});
  else if (b == T(-1))
    body(Inverse{});
  else if (b == T(-0.5))
    body(InverseRoot{});
  else
    return false;
  return true;
}

// The same where each element looks at the exponent.
template <typename General, template <typename> typename Part> struct ByExponent {
  template <typename T> HOST_DEVICE static T value(T a, T b) {
    T y{};
    return with_exponent(b, [&]<typename F>(F) { y = Part<F>::value(a); }) ? y : General::value(a, b);
  }
};

// General is binary; Part<F> is what a special exponent computes of its functor F.
template <typename General, template <typename> typename Part> KernelRun power(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Shape& y = spec.outputs[0].shape;
    const bool special = element_count(spec.inputs[1].shape) == 1 && element_count(spec.inputs[0].shape) == element_count(y);
    return [special, n = element_count(y), loop = broadcast_loop(spec.inputs[0].shape, spec.inputs[1].shape, y)](const KernelArgs& args) {
      const T* x = args.in<T>(0);
      T* out = args.out<T>(0);
#ifdef ORT_TRAIN_BLOCKS  // only the device can read the exponent
      if (special) return run_binary(ByExponent<General, Part>{}, loop, x, args.in<T>(1), out, args);
#else
      const auto run = [&]<typename F>(F) { run_unary(Part<F>{}, x, out, n, args); };
      if (special && with_exponent(load(*args.in<T>(1)), run)) return;
#endif
      run_binary(General{}, loop, x, args.in<T>(1), out, args);
    };
  });
}

KernelRun pow_kernel(const KernelSpec& spec) {
  if (is_floating(spec.inputs[0].dtype)) return power<PowOf, ValueOf>(spec);
  return binary<PowOf, Types<int64_t, int32_t>>(spec);
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId a = node.inputs[0], b = node.inputs[1], dy = g.output_gradient(0);
  if (g.wants(0)) g.input_gradient(0, g.reduce_to(g.emit("Mul", {dy, g.emit("PowSlope", {a, b})}), g.shape(a)));
  if (g.wants(1)) g.input_gradient(1, g.reduce_to(g.emit("Mul", {dy, g.emit("PowExponentSlope", {a, b})}), g.shape(b)));
}

// From Pow-12 on the exponent may have another type than the base, whose type the result has.
void lower(Lowering& l) {
  const ValueId a = l.input(0), b = l.input(1);
  const auto cast = [&](ValueId value, DType to) {
    return l.dtype(value) == to ? value : l.emit("Cast", {value}, {{"to", static_cast<int64_t>(to)}});
  };
  if (is_floating(l.dtype(a)) || !is_floating(l.dtype(b))) return l.output(0, l.emit("Pow", {a, cast(b, l.dtype(a))}));
  l.output(0, cast(l.emit("Pow", {cast(a, l.dtype(b)), b}), l.dtype(a)));
}

constexpr OpDef slope_helper(std::string_view name) { return {.name = name, .infer = infer_broadcast, .no_gradient = kNoSecondDerivative}; }
constexpr Kernel slope_helper_kernel(Prepare prepare) {
  return {.types = kFloating, .in_place = kOverEither, .cost = elementwise_cost<20>, .prepare = prepare};
}

}  // namespace

constexpr OpDef kPow{
    .name = "Pow",
    .onnx = {{.domain = "", .name = "Pow", .since = 7, .lower = lower}},
    .infer = infer_broadcast,
    .gradient = gradient,
    .traits = {.precision = kInFloat32, .along = along_elements},
    .standard = 15,
};
constexpr Kernel kPowKernel{
    .types = kNumbers,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<20>,
    .prepare = pow_kernel,
};

// da^b/da and da^b/db
constexpr OpDef kPowSlope = slope_helper("PowSlope");
constexpr OpDef kPowExponentSlope = slope_helper("PowExponentSlope");
constexpr Kernel kPowSlopeKernel = slope_helper_kernel(power<PowSlopeOf, SlopeOf>);
constexpr Kernel kPowExponentSlopeKernel = slope_helper_kernel(binary<PowExponentSlopeOf>);

ORT_TRAIN_OPS_END
