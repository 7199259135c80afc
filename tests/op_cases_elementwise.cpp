// Cases of the op test table: arithmetic, functions of one number, activations.

#include <cmath>

#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

// What can go wrong in any function of one number: a length that is no multiple of a vector, more than a task's elements, one element,
// none.
struct Unary {
  const char* op;
  double low, high;
  Attributes attributes = {};
  double tolerance = 1e-6;
};

void unary_cases(std::vector<OpCase>& cases) {
  const std::vector<Unary> functions{
      {"Neg", -3, 3},
      {"Abs", -3, 3},
      {"Sqrt", 0.1, 9},
      {"Reciprocal", 0.2, 5},
      {"Exp", -5, 5},
      {"Log", 0.01, 20},
      {"Erf", -4, 4},
      {"Sin", -20, 20},
      {"Cos", -20, 20},
      {"Tan", -1.4, 1.4},
      {"Asin", -0.95, 0.95},
      {"Acos", -0.95, 0.95},
      {"Atan", -9, 9},
      {"Sinh", -4, 4},
      {"Cosh", -4, 4},
      {"Asinh", -9, 9},
      {"Acosh", 1.1, 9},
      {"Atanh", -0.95, 0.95},
      {"Tanh", -5, 5},
      {"Sigmoid", -9, 9},
      {"Relu", -3, 3},
      {"LeakyRelu", -3, 3},
      {"Elu", -4, 4},
      {"Softplus", -9, 9},
      {"HardSigmoid", -4, 4},
      {"HardSwish", -5, 5},
      {"Swish", -8, 8},
      {"Gelu", -5, 5},
      {"Clip", -3, 3, {{"min", -1.5f}, {"max", 2.0f}}},
  };
  for (const Unary& f : functions) {
    const auto add = [&](const char* name, Shape shape) {
      cases.push_back({.name = name,
                       .op = f.op,
                       .attributes = f.attributes,
                       .inputs = {random(std::move(shape), f.low, f.high)},
                       .tolerance = f.tolerance});
    };
    add("tails", {7, 29});
    add("one", {});
    add("none", {3, 0});
    add("tasks", {3, 11003});
  }
  const auto with = [&](const char* name, const char* op, Attributes attributes, double low, double high) {
    cases.push_back({.name = name, .op = op, .attributes = std::move(attributes), .inputs = {random({5, 13}, low, high)}});
  };
  with("alpha", "LeakyRelu", {{"alpha", 0.3f}}, -3, 3);
  with("alpha_negative", "LeakyRelu", {{"alpha", -0.3f}}, -3, 3);
  with("alpha", "Elu", {{"alpha", 0.7f}}, -4, 4);
  with("alpha_beta", "HardSigmoid", {{"alpha", 0.3f}, {"beta", 0.4f}}, -4, 4);
  with("alpha", "Swish", {{"alpha", 1.702f}}, -8, 8);
  with("tanh", "Gelu", {{"approximate", std::string("tanh")}}, -5, 5);
  with("below", "Clip", {{"max", 0.5f}}, -2, 2);
  with("open", "Clip", {}, -2, 2);

  for (const char* op : {"Floor", "Ceil", "Round"}) cases.push_back({.name = "tails", .op = op, .inputs = {random({7, 29}, -9, 9)}});
  const auto exact = [&](const char* name, const char* op, std::vector<double> x, std::vector<double> y, Attributes attributes = {}) {
    const int64_t n = static_cast<int64_t>(x.size());
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = {floats({n}, std::move(x))},
                     .gradient = false,
                     .expected = {std::move(y)}});
  };
  exact("halves", "Floor", {-1.5, -0.5, 0.5, 1.5, 2}, {-2, -1, 0, 1, 2});
  exact("halves", "Ceil", {-1.5, -0.5, 0.5, 1.5, 2}, {-1, -0.0, 1, 2, 2});
  exact("halves_to_even", "Round", {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4999999701976776, 8388609}, {-2, -2, -0.0, 0, 2, 2, 0, 8388609});
  exact("values", "Sign", {-3, -0.0, 0, 4e-40, kInfinity, kNaN}, {-1, 0, 0, 1, 1, kNaN});
  exact("values", "IsNaN", {kNaN, 0, -kInfinity, 1}, {1, 0, 0, 0});
  exact("both", "IsInf", {kInfinity, -kInfinity, kNaN, 3e38}, {1, 1, 0, 0});
  exact("positive", "IsInf", {kInfinity, -kInfinity, kNaN, 3e38}, {1, 0, 0, 0}, {{"detect_negative", int64_t{0}}});
  exact("negative", "IsInf", {kInfinity, -kInfinity, kNaN, 3e38}, {0, 1, 0, 0}, {{"detect_positive", int64_t{0}}});
  // NaN and the infinities pass as they should.
  exact("special", "Exp", {kInfinity, -kInfinity, kNaN, 0, 200, -200}, {kInfinity, 0, kNaN, 1, kInfinity, 0});
  exact("special", "Log", {kInfinity, -1, kNaN, 0, 1}, {kInfinity, kNaN, kNaN, -kInfinity, 0});
  exact("special", "Tanh", {kInfinity, -kInfinity, kNaN, -0.0, 30}, {1, -1, kNaN, -0.0, 1});
  exact("special", "Erf", {kInfinity, -kInfinity, kNaN, -0.0, 9}, {1, -1, kNaN, -0.0, 1});
  exact("special", "Sigmoid", {kInfinity, -kInfinity, kNaN, 0}, {1, 0, kNaN, 0.5});
  exact("special", "Softplus", {kInfinity, -kInfinity, kNaN, 100}, {kInfinity, 0, kNaN, 100});
  exact("special", "Relu", {kInfinity, -kInfinity, kNaN, 0}, {kInfinity, 0, kNaN, 0});
  exact("special", "LeakyRelu", {kInfinity, -kInfinity, kNaN, 0}, {kInfinity, -kInfinity, kNaN, 0});
  exact("special", "Elu", {kInfinity, -kInfinity, kNaN, 0}, {kInfinity, -1, kNaN, 0});
  exact("special", "Clip", {kInfinity, -kInfinity, kNaN, 0}, {2, -1, kNaN, 0}, {{"min", -1.0f}, {"max", 2.0f}});
  exact("special", "Gelu", {kInfinity, kNaN, 0, 20}, {kInfinity, kNaN, 0, 20});
  exact("special", "Sqrt", {kInfinity, -1, kNaN, -0.0, 4}, {kInfinity, kNaN, kNaN, -0.0, 2});

  for (DType dtype : {DType::int64, DType::int32}) {
    const double lowest = dtype == DType::int64 ? -9223372036854775808.0 : -2147483648.0;
    const std::string type(to_string(dtype));
    cases.push_back({.name = type, .op = "Neg", .inputs = {ints({3}, {5, -7, 0}, dtype)}, .expected = {{-5, 7, 0}}});
    cases.push_back({.name = type + "_lowest", .op = "Neg", .inputs = {ints({1}, {lowest}, dtype)}, .expected = {{lowest}}});
    cases.push_back({.name = type, .op = "Abs", .inputs = {ints({4}, {5, -7, 0, lowest}, dtype)}, .expected = {{5, 7, 0, lowest}}});
    cases.push_back({.name = type, .op = "Sign", .inputs = {ints({3}, {5, -7, 0}, dtype)}, .expected = {{1, -1, 0}}});
    cases.push_back({.name = type, .op = "Relu", .inputs = {ints({3}, {5, -7, 0}, dtype)}, .expected = {{5, 0, 0}}});
  }
}

void gradient_op_cases(std::vector<OpCase>& cases) {
  const auto slope = [&](const char* op, double low, double high, Attributes attributes = {}) {
    cases.push_back({.name = "tails", .op = op, .attributes = attributes, .inputs = {random({7, 29}), random({7, 29}, low, high)}});
    cases.push_back({.name = "tasks", .op = op, .attributes = attributes, .inputs = {random({33001}), random({33001}, low, high)}});
  };
  slope("SqrtGrad", 0.1, 3);
  slope("ReciprocalGrad", 0.1, 3);
  slope("ErfGrad", -3, 3);
  slope("TanhGrad", -1, 1);
  slope("SigmoidGrad", 0, 1);
  slope("ReluGrad", -1, 1);
  slope("LeakyReluGrad", -1, 1, {{"alpha", 0.3f}});
  slope("EluGrad", -3, 3, {{"alpha", 0.7f}});
  slope("SoftplusGrad", -5, 5);
  slope("HardSigmoidGrad", -0.2, 1.2);
  slope("HardSwishGrad", -5, 5);
  slope("SwishGrad", -5, 5, {{"alpha", 1.3f}});
  slope("ClipGrad", -3, 3, {{"min", -1.5f}, {"max", 2.0f}});
  slope("GeluGrad", -5, 5);
  slope("GeluGrad", -5, 5, {{"approximate", std::string("tanh")}});
  cases.back().name = "tanh_tasks";
  cases[cases.size() - 2].name = "tanh_tails";
  cases.push_back({.name = "at_bounds",
                   .op = "ClipGrad",
                   .attributes = {{"min", 0.0f}, {"max", 6.0f}},
                   .inputs = {floats({4}, {1}), floats({4}, {0, 6, -1, 7})},
                   .expected = {{1, 1, 0, 0}}});
  cases.push_back({.name = "at_zero", .op = "ReluGrad", .inputs = {floats({3}, {2}), floats({3}, {0, 1, 3})}, .expected = {{0, 2, 2}}});
  const auto infinite = [&](const char* op, Attributes attributes, std::vector<double> x, std::vector<double> dx) {
    const Shape shape{static_cast<int64_t>(x.size())};
    cases.push_back({.name = "of_infinity",
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = {floats(shape, {kInfinity}), floats(shape, std::move(x))},
                     .expected = {std::move(dx)}});
  };
  infinite("ReluGrad", {}, {0, 1}, {0, kInfinity});
  infinite("ClipGrad", {{"min", -1.0f}, {"max", 2.0f}}, {-2, -1, 2, 3}, {0, kInfinity, kInfinity, 0});
  infinite("HardSigmoidGrad", {}, {0, 0.5, 1}, {0, kInfinity, 0});
  infinite("HardSwishGrad", {}, {-4, 1, 4}, {0, kInfinity, kInfinity});
}

void binary_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape a, b;
  };
  const std::vector<Form> forms{
      {"same_shape", {7, 29}, {7, 29}},
      {"tasks", {3, 22003}, {3, 22003}},
      {"scalar_right", {7, 29}, {}},
      {"scalar_left", {}, {7, 29}},
      {"bias", {37, 41}, {41}},
      {"bias_left", {41}, {37, 41}},
      {"column", {37, 41}, {37, 1}},
      {"outer_product", {5, 1}, {1, 7}},
      {"channels", {2, 3, 5, 7}, {3, 1, 1}},
      {"mask", {2, 3, 5, 7}, {2, 1, 1, 7}},
      {"ranks", {4, 1, 3}, {2, 1, 5, 1}},
      {"long_rows", {2, 33001}, {33001}},
      {"one_element", {1, 1}, {1}},
      {"none", {2, 0, 3}, {3}},
      {"many_rows", {9001, 5}, {5}},
      {"middle", {3, 1, 4}, {3, 50, 4}},
      {"even_bias", {5, 48}, {48}},
      {"even_column", {5, 48}, {5, 1}},
      {"even_mask", {2, 3, 5, 8}, {2, 1, 1, 8}},
  };
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"}) {
    const bool positive = std::string_view(op) == "Pow", apart = std::string_view(op) == "Div";
    for (const Form& form : forms) {
      cases.push_back({.name = form.name,
                       .op = op,
                       .inputs = {random(form.a, positive ? 0.3 : -2, 2), random(form.b, positive || apart ? 0.4 : -2, 2)}});
      // Moving one of these by the step would take some of its many partners across the kink.
      if (std::string_view(op).starts_with("M") && element_count(form.a) > 9000) cases.back().inputs[1].differentiate = form.a == form.b;
    }
  }
  cases.push_back({.name = "one_side", .op = "Mul", .inputs = {random({5, 7}), fixed(random({7}))}});
  for (const char* op : {"MaxSlope", "MulUnlessZero", "PowSlope", "PowExponentSlope"}) {
    cases.push_back({.name = "same_shape", .op = op, .inputs = {random({7, 29}, 0.2, 2), random({7, 29}, 0.2, 2)}});
    cases.push_back({.name = "channels", .op = op, .inputs = {random({2, 3, 5, 7}, 0.2, 2), random({3, 1, 1}, 0.2, 2)}});
  }
  const auto exact = [&](const char* name, const char* op, OpInput a, OpInput b, std::vector<double> y, int ulps = 0) {
    cases.push_back(
        {.name = name, .op = op, .inputs = {std::move(a), std::move(b)}, .gradient = false, .expected = {std::move(y)}, .ulps = ulps});
  };
  exact("ties", "MaxSlope", floats({5}, {1, 2, 3, -0.0, kNaN}), floats({5}, {2, 2, 2, 0, 1}), {0, 0.5, 1, 0.5, 1});
  exact("zero", "MulUnlessZero", floats({4}, {kInfinity, kNaN, 3, kInfinity}), floats({4}, {0, 0, 2, 0.5}), {0, 0, 6, kInfinity});
  exact("nan", "Max", floats({3}, {kNaN, 1, 2}), floats({3}, {1, kNaN, -kInfinity}), {kNaN, kNaN, 2});
  exact("nan", "Min", floats({3}, {kNaN, 1, 2}), floats({3}, {1, kNaN, kInfinity}), {kNaN, kNaN, 2});
  exact("by_zero", "Div", floats({3}, {1, -1, 0}), floats({}, {0}), {kInfinity, -kInfinity, kNaN});

  for (DType dtype : {DType::int64, DType::int32}) {
    const std::string name(to_string(dtype));
    const double lowest = dtype == DType::int64 ? -9223372036854775808.0 : -2147483648.0;
    const auto whole = [&](const char* op, std::vector<double> a, std::vector<double> b, std::vector<double> y, const char* what = "") {
      const int64_t n = static_cast<int64_t>(a.size()), m = static_cast<int64_t>(b.size());
      cases.push_back({.name = name + what,
                       .op = op,
                       .inputs = {ints({n}, std::move(a), dtype), ints({m}, std::move(b), dtype)},
                       .expected = {std::move(y)}});
    };
    whole("Add", {1, -5, 7}, {3}, {4, -2, 10});
    whole("Sub", {1, -5, 7}, {3, 4, 5}, {-2, -9, 2});
    whole("Add", {lowest}, {lowest}, {0}, "_wraps");
    whole("Mul", {1, -5, 7}, {3, 4, 0}, {3, -20, 0});
    whole("Div", {7, -7, 7, -7, 6}, {2, 2, -2, -2, 3}, {3, -3, -3, 3, 2});
    whole("Div", {7, lowest}, {0, -1}, {0, lowest}, "_traps");
    whole("Min", {7, -7}, {2}, {2, -7});
    whole("Max", {7, -7}, {2}, {7, 2});
    whole("Pow", {2, -3, 5, 1, -1, 2}, {10, 3, 0, -2, -3, -1}, {1024, -27, 1, 1, -1, 0});
  }
}

void pow_cases(std::vector<OpCase>& cases) {
  const auto exponent = [&](const char* name, double value, double low, double high) {
    cases.push_back({.name = name, .op = "Pow", .inputs = {random({7, 29}, low, high), fixed(constant(floats({}, {value})))}});
    cases.push_back({.name = name, .op = "PowSlope", .inputs = {random({7, 29}, low, high), fixed(constant(floats({}, {value})))}});
  };
  exponent("square", 2, -3, 3);
  exponent("cube", 3, -3, 3);
  exponent("root", 0.5, 0.1, 9);
  exponent("inverse", -1, 0.2, 5);
  exponent("inverse_root", -0.5, 0.2, 5);
  exponent("identity", 1, -3, 3);
  exponent("one", 0, -3, 3);
  exponent("fourth", 4, 0.1, 3);
  exponent("odd", 1.7, 0.1, 3);
  const auto exact = [&](const char* name, const char* op, std::vector<double> a, double b, std::vector<double> y, int ulps = 0) {
    const int64_t n = static_cast<int64_t>(a.size());
    cases.push_back({.name = name,
                     .op = op,
                     .inputs = {floats({n}, std::move(a)), floats({1}, {b})},
                     .gradient = false,
                     .expected = {std::move(y)},
                     .ulps = ulps});
  };
  exact("square_exact", "Pow", {0, -0.0, 3, -1.5, kInfinity, kNaN, 1e-30, 1e20}, 2, {0, 0, 9, 2.25, kInfinity, kNaN, 0, kInfinity});
  exact("cube_exact", "Pow", {0, 3, -1.5, kInfinity, -kInfinity, 16777215}, 3,
        {0, 27, -3.375, kInfinity, -kInfinity, 16777215.0 * 16777215.0 * 16777215.0});
  exact("root_exact", "Pow", {0, -0.0, 4, 2.25, kInfinity, -kInfinity, -1}, 0.5, {0, 0, 2, 1.5, kInfinity, kInfinity, kNaN});
  exact("zero_exact", "Pow", {0, kNaN, kInfinity, -2}, 0, {1, 1, 1, 1});
  exact("negative_base", "Pow", {-2, -3, -0.5}, 5, {-32, -243, -0.03125});
  // The slope at zero.
  exact("square_at_zero", "PowSlope", {0, -0.0, 1}, 2, {0, -0.0, 2});
  exact("cube_at_zero", "PowSlope", {0, -1}, 3, {0, 3});
  exact("root_at_zero", "PowSlope", {0, 4}, 0.5, {kInfinity, 0.25});
  exact("identity_at_zero", "PowSlope", {0, -4}, 1, {1, 1});
  exact("zero_at_zero", "PowSlope", {0, 4}, 0, {0, 0});
  exact("fourth_at_zero", "PowSlope", {0, 2}, 4, {0, 32});
  exact("exponent_at_zero", "PowExponentSlope", {0}, 2, {0});
}

void fused_cases(std::vector<OpCase>& cases) {
  const auto fused = [&](const char* name, const char* ops, std::vector<int64_t> operands, std::vector<OpInput> inputs,
                         Attributes of_steps = {}, std::vector<std::vector<double>> expected = {}) {
    of_steps.set("ops", text(ops));
    of_steps.set("operands", std::move(operands));
    cases.push_back({.name = name,
                     .op = "FusedElementwise",
                     .attributes = std::move(of_steps),
                     .inputs = std::move(inputs),
                     .expected = std::move(expected)});
  };
  fused("two", "Add Relu", {2, 0, 1, 1, -1}, {random({3, 700, 11}), random({3, 700, 11})});
  fused("numbers", "Sub HardSigmoid Mul", {2, 0, 1, 1, -1, 2, -2, 0}, {floats({3}, {1, 2, -6}), floats({1}, {1})},
        {{"1.alpha", 0.25f}, {"1.beta", 0.5f}}, {{0.5, 1.5, 0}});
  fused("broadcast", "Mul Add Tanh Mul", {2, 0, 1, 2, -1, 2, 1, -2, 2, -3, 3},
        {random({2, 5, 37, 19}), random({5, 1, 1}), random({19}), random({})});
  fused("the_result_of_two_steps", "Exp Neg Mul", {1, 0, 1, 0, 2, -1, -2}, {random({5000})});
  fused("all_is_broadcast", "Add Sub", {2, 0, 1, 2, -1, 0}, {random({40, 1}), random({1, 60})});
  fused("no_elements", "Add Relu", {2, 0, 1, 1, -1}, {random({0, 3}), random({3})});
  fused("slopes", "Add ReluGrad", {2, 0, 1, 2, -1, 2}, {random({4, 1000}), random({4, 1000}), random({4, 1000})});
  // The result has as many bytes as what is broadcast.
  const auto to = [](DType type) {
    return Attributes{{"ops", text("Add Cast")}, {"operands", std::vector<int64_t>{2, 0, 1, 1, -1}}, {"1.to", static_cast<int64_t>(type)}};
  };
  cases.push_back({.name = "broadcast_to_narrower",
                   .op = "FusedElementwise",
                   .attributes = to(DType::float16),
                   .inputs = {random({2, 4096}), random({1, 4096})},
                   .tolerance = 1e-3,
                   .attributes64 = to(DType::float64)});
}

}  // namespace

std::vector<OpCase> elementwise_op_cases() {
  std::vector<OpCase> cases;
  unary_cases(cases);
  gradient_op_cases(cases);
  binary_cases(cases);
  pow_cases(cases);
  fused_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
