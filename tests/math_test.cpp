// exp, log, tanh, erf, sin, pow and the rest (exec/math.h), through the ops that use them: how far float32 is from the true value over the
// floats of every size, and the same bits for an element wherever it stands in a tensor.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "exec/kernel.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

Workers& worker() {
  static Workers one(1);
  return one;
}

Tensor apply(const char* op, const Tensor& x) { return evaluate(op_named(op), {}, {&x}, 1, worker())[0]; }

// Distance in units in the last place of the float that the truth is nearest to; denormals have the smallest float's.
double units_off(float y, double truth) {
  if (std::isnan(truth) || std::isnan(y)) return std::isnan(truth) && std::isnan(y) ? 0 : HUGE_VAL;
  if (std::isinf(y) || std::isinf(static_cast<float>(truth))) {
    if (static_cast<float>(truth) == y) return 0;
    return std::abs(truth) > 3.4028234e38 ? 1 : HUGE_VAL;  // one of them rounded over the edge
  }
  int exponent;
  std::frexp(truth, &exponent);
  return std::abs(y - truth) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Function {
  const char* op;
  double (*truth)(double);
  double bound;
};

class Functions : public ::testing::TestWithParam<Function> {};

double log1p_exp(double x) { return std::isnan(x) ? x : std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

// Each 509th float: 8.4 million of them, denormals, infinities and NaN included.
TEST_P(Functions, AccurateOverAllFloats) {
  const Function& f = GetParam();
  constexpr uint64_t kStep = 509, kBlock = 1 << 20;
  double worst = 0;
  float where = 0;
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += kStep * kBlock) {
    Tensor x(DType::float32, {static_cast<int64_t>(kBlock)});
    for (uint64_t i = 0; i < kBlock; ++i) {
      const uint32_t bits = static_cast<uint32_t>(first + i * kStep);
      std::memcpy(&x.data<float>()[i], &bits, sizeof bits);
    }
    const Tensor y = apply(f.op, x);
    for (uint64_t i = 0; i < kBlock; ++i) {
      const double off = units_off(y.data<float>()[i], f.truth(x.data<float>()[i]));
      if (off > worst) worst = off, where = x.data<float>()[i];
    }
  }
  EXPECT_LE(worst, f.bound) << "at " << where;
  EXPECT_GT(worst, 0.49);  // it looked
}

TEST_P(Functions, SameBitsInEveryPosition) {
  const Function& f = GetParam();
  constexpr int64_t kLongest = 131;
  std::vector<float> numbers;
  for (int64_t i = 0; i < kLongest; ++i) numbers.push_back(std::ldexp(static_cast<float>(i % 17) - 7.3f, static_cast<int>(i % 5) - 2));
  std::vector<float> alone;
  for (float x : numbers) alone.push_back(apply(f.op, make_tensor<float>({1}, {x})).data<float>()[0]);
  for (int64_t length = 1; length <= kLongest; ++length) {
    for (int64_t first : {int64_t{0}, kLongest - length}) {
      const Tensor y =
          apply(f.op, make_tensor<float>({length}, std::vector<float>(numbers.begin() + first, numbers.begin() + first + length)));
      ASSERT_EQ(std::memcmp(y.bytes.data(), alone.data() + first, y.bytes.size()), 0) << length << " elements from " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Math, Functions,
    ::testing::Values(Function{"Exp", std::exp, 1.01}, Function{"Log", std::log, 0.9}, Function{"Tanh", std::tanh, 2.6},
                      Function{"Erf", std::erf, 1.01}, Function{"Sigmoid", sigmoid, 2.6}, Function{"Softplus", log1p_exp, 2.0},
                      Function{"Elu", [](double x) { return x > 0 ? x : std::expm1(x); }, 2.6}, Function{"Sin", std::sin, 0.51},
                      Function{"Cos", std::cos, 0.51}, Function{"Tan", std::tan, 0.51}, Function{"Asin", std::asin, 0.51},
                      Function{"Acos", std::acos, 0.51}, Function{"Atan", std::atan, 0.51}, Function{"Sinh", std::sinh, 0.51},
                      Function{"Cosh", std::cosh, 0.51}, Function{"Asinh", std::asinh, 0.51}, Function{"Acosh", std::acosh, 0.51},
                      Function{"Atanh", std::atanh, 0.51}, Function{"Sqrt", std::sqrt, 0.5001},
                      Function{"Reciprocal", [](double x) { return 1 / x; }, 0.5001}),
    [](const auto& info) { return std::string(info.param.op); });

// Near multiples of pi/2 nothing is left of the bits of an argument; these are the nearest of all floats, and the ends of the ranges in
// which arguments are reduced.
TEST(Math, SineOfLargeArguments) {
  std::vector<float> numbers{0x1.921fb6p+0f, 0x1.921fb4p+1f, 0x1.f37c8ap+95f, 0x1.f37f4ap+95f, 0x1.fffffep+127f};
  for (const int exponent : {39, 40, 45, 46, 68, 69, 91, 92, 114, 115, 127}) {
    for (const float m : {1.0f, 1.25f, 1.9999999f}) numbers.push_back(std::ldexp(m, exponent));
  }
  for (size_t i = numbers.size(); i-- > 0;) numbers.push_back(-numbers[i]);
  const Tensor x = make_tensor<float>({static_cast<int64_t>(numbers.size())}, numbers);
  const Tensor sines = apply("Sin", x), cosines = apply("Cos", x), tangents = apply("Tan", x);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_LE(units_off(sines.data<float>()[i], std::sin(static_cast<double>(numbers[i]))), 0.51) << numbers[i];
    EXPECT_LE(units_off(cosines.data<float>()[i], std::cos(static_cast<double>(numbers[i]))), 0.51) << numbers[i];
    EXPECT_LE(units_off(tangents.data<float>()[i], std::tan(static_cast<double>(numbers[i]))), 0.51) << numbers[i];
  }
}

// The worst, over the pairs; a zero must have the sign of the true one.
void check_powers(const std::vector<float>& a, const std::vector<float>& b) {
  const int64_t n = static_cast<int64_t>(a.size());
  const Tensor x = make_tensor<float>({n}, a), y = make_tensor<float>({n}, b);
  const Tensor powers = evaluate(op_named("Pow"), {}, {&x, &y}, 1, worker())[0];
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float power = powers.data<float>()[i];
    const double truth = std::pow(static_cast<double>(a[i]), static_cast<double>(b[i]));
    const bool other_zero = power == 0 && !std::isnan(truth) && std::signbit(power) != std::signbit(truth);
    const double off = other_zero ? HUGE_VAL : units_off(power, truth);
    if (off > worst) worst = off, where = i;
  }
  EXPECT_LE(worst, 0.51) << a[where] << " to the power of " << b[where] << " is " << powers.data<float>()[where];
}

TEST(Math, PowersOfSpecialNumbers) {
  constexpr float kInfinity = HUGE_VALF;
  std::vector<float> numbers{0,      0.5,       0.99999994f, 1,          1.0000001f,   1.5,      2,        3,        127,
                             128,    149,       150,         4194305.5f, 8388609,      16777215, 16777216, 33554432, 1e-45f,
                             1e-40f, 0x1p-126f, 3e38f,       kInfinity,  std::nanf("")};
  for (size_t i = numbers.size(); i-- > 0;) numbers.push_back(-numbers[i]);
  std::vector<float> a, b;
  for (const float x : numbers) {
    for (const float y : numbers) a.push_back(x), b.push_back(y);
  }
  check_powers(a, b);
}

TEST(Math, PowersAreAccurate) {
  std::vector<float> a, b;
  uint64_t state = 1;
  const auto random = [&] { return static_cast<uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); };
  const auto any_float = [&] {
    const uint32_t bits = random();
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  };
  for (int i = 0; i < 200000; ++i) {
    a.push_back(any_float()), b.push_back(any_float());
    // Results of every size, and bases near 1.
    const float base = std::abs(any_float()), size = static_cast<float>(random()) * 0x1p-32f * 300 - 150;
    a.push_back(base), b.push_back(size / std::log2(base));
    const float near_one = 1 + (static_cast<float>(random()) * 0x1p-32f - 0.5f) * 0.01f;
    a.push_back(near_one), b.push_back(size / std::log2(near_one));
  }
  check_powers(a, b);
}

// x * P(x) and its slope P(x) + x * P'(x): to 2^-22, and y in the left tail, where 1 + erf(x) would be 0, to 2^-16 of itself.
void check_gelu(const char* approximate, double (*probability)(double), double (*density)(double)) {
  std::vector<float> numbers;
  for (float x = -12; x < 12; x += 0x1p-13f) numbers.push_back(x);
  const int64_t n = static_cast<int64_t>(numbers.size());
  const Tensor x = make_tensor<float>({n}, numbers), ones = make_tensor<float>({n}, std::vector<float>(numbers.size(), 1));
  const Attributes attributes{{"approximate", approximate}};
  const Tensor y = evaluate(op_named("Gelu"), attributes, {&x}, 1, worker())[0];
  const Tensor slopes = evaluate(op_named("GeluGrad"), attributes, {&ones, &x}, 1, worker())[0];
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double at = numbers[i], p = probability(at), slope = p + at * density(at);
    const double value = at * p, size = std::max(1.0, std::abs(at));
    ASSERT_NEAR(y.data<float>()[i], value, 4 * size * 0x1p-24) << at;
    ASSERT_NEAR(slopes.data<float>()[i], slope, 4 * 0x1p-24) << at;
    if (value < -1e-37) {
      ASSERT_NEAR(y.data<float>()[i] / value, 1, 0x1p-16) << at;
    }
  }

  const Tensor edges = make_tensor<float>({6}, {-HUGE_VALF, -1e30f, -15, 1e30f, HUGE_VALF, std::nanf("")});
  const Tensor six = make_tensor<float>({6}, std::vector<float>(6, 1));
  const Tensor limits = evaluate(op_named("Gelu"), attributes, {&edges}, 1, worker())[0];
  const Tensor limit_slopes = evaluate(op_named("GeluGrad"), attributes, {&six, &edges}, 1, worker())[0];
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(limits.data<float>()[i], 0);
    EXPECT_EQ(limit_slopes.data<float>()[i], 0);
  }
  for (size_t i = 3; i < 5; ++i) {
    EXPECT_EQ(limits.data<float>()[i], edges.data<float>()[i]);
    EXPECT_EQ(limit_slopes.data<float>()[i], 1);
  }
  EXPECT_TRUE(std::isnan(limits.data<float>()[5]));
  EXPECT_TRUE(std::isnan(limit_slopes.data<float>()[5]));
}

TEST(Math, GeluIsAccurateInBothTails) {
  check_gelu(
      "none", [](double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); },
      [](double x) { return std::exp(-0.5 * x * x) * 0.3989422804014327; });
  static constexpr auto kW = [](double x) { return 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x); };
  check_gelu(
      "tanh", [](double x) { return 1 / (1 + std::exp(-kW(x))); },
      [](double x) { return 2 * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x) / (2 + std::exp(kW(x)) + std::exp(-kW(x))); });
}

}  // namespace
}  // namespace ort_train
