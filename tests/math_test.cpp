// exp, log, tanh, erf and the rest (exec/math.h), through the ops that use them: how far float32 is from the true value over the floats of
// every size, and the same bits for an element wherever it stands in a tensor.

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

INSTANTIATE_TEST_SUITE_P(Math, Functions,
                         ::testing::Values(Function{"Exp", std::exp, 1.01}, Function{"Log", std::log, 0.9},
                                           Function{"Tanh", std::tanh, 2.6}, Function{"Erf", std::erf, 1.01},
                                           Function{"Sigmoid", sigmoid, 2.6}, Function{"Softplus", log1p_exp, 2.0},
                                           Function{"Elu", [](double x) { return x > 0 ? x : std::expm1(x); }, 2.6},
                                           Function{"Sqrt", std::sqrt, 0.5001},
                                           Function{"Reciprocal", [](double x) { return 1 / x; }, 0.5001}),
                         [](const auto& info) { return std::string(info.param.op); });

}  // namespace
}  // namespace ort_train
