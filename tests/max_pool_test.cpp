// MaxPool and its gradient of random shapes in all types: of small whole numbers, with ties, infinities and NaN, the results are those in
// float64, whose kernel is a plain loop over windows.

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <limits>
#include <random>

#include "exec/kernel.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

Tensor as(const Tensor& tensor, DType to, Workers& workers) {
  return evaluate(op_named("Cast"), {{"to", static_cast<int64_t>(to)}}, {&tensor}, 1, workers)[0];
}

// NaN is equal to NaN.
bool same(const Tensor& a, const Tensor& b) {
  const std::vector<double> of_a = a.to_double(), of_b = b.to_double();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

TEST(MaxPool, OfRandomShapesAndTypesIsThatOfAPlainLoop) {
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 4);
  Workers one(1), three(3);
  std::mt19937 random(11);
  const auto some = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int i = 0; i < 150; ++i) {
    Shape x{some(1, 2), some(1, 3)}, y = x;
    std::vector<int64_t> kernel, strides, dilations, begins, ends;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t k = some(1, 5), d = some(0, 3) == 0 ? 2 : 1, s = some(1, 4), reach = (k - 1) * d + 1;
      const int64_t begin = some(0, reach), end = some(0, reach), size = std::max<int64_t>(some(1, 45), reach - begin - end);
      kernel.push_back(k), strides.push_back(s), dilations.push_back(d), begins.push_back(begin), ends.push_back(end);
      x.push_back(size), y.push_back((size + begin + end - reach) / s + 1);
    }
    begins.insert(begins.end(), ends.begin(), ends.end());
    const Attributes attributes{{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", begins}};
    Tensor of_x(DType::float64, x), of_y(DType::float64, y);
    for (double& element : of_y.data<double>()) element = static_cast<double>(some(-2, 2));
    for (double& element : of_x.data<double>()) {
      element = static_cast<double>(some(-3, 3));
      if (i % 3 == 0 && some(0, 4) == 0) element = -std::numeric_limits<double>::infinity();
      if (i % 5 == 0 && some(0, 30) == 0) element = std::numeric_limits<double>::quiet_NaN();
    }
    const Tensor best = evaluate(op_named("MaxPool"), attributes, {&of_x}, 1, one)[0];
    const Tensor gradient = evaluate(op_named("MaxPoolGrad"), attributes, {&of_y, &of_x}, 1, one)[0];
    for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
      const Tensor narrow_x = as(of_x, type, one), narrow_y = as(of_y, type, one);
      const auto what = fmt::format("{}, windows of {} in steps of {}, padding {}", to_string(narrow_x.type()), to_string(kernel),
                                    to_string(strides), to_string(begins));
      for (Workers* workers : {&one, &three}) {
        EXPECT_TRUE(same(evaluate(op_named("MaxPool"), attributes, {&narrow_x}, 1, *workers)[0], best)) << what;
        EXPECT_TRUE(same(evaluate(op_named("MaxPoolGrad"), attributes, {&narrow_y, &narrow_x}, 1, *workers)[0], gradient)) << what;
      }
    }
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace ort_train
