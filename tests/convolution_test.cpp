// Convolutions whose weights aren't finite: padding isn't multiplied with them in the gradient of x, whatever way that is made.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "exec/kernel.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

// dx of `groups` groups, from a dy of ones and weights of ones but for the first, which is infinite: in float32, which has ways of its own
// for planes with padding, and in float64, which hasn't.
template <typename T> std::vector<double> gradient_with_infinity(DType dtype, int64_t samples, int64_t groups, int64_t stride) {
  const int64_t channels = 4, size = 16, out = (size + 2 - 3) / stride + 1, in_group = channels / groups;
  const Shape x{samples, channels, size, size}, y{samples, channels, out, out}, w{channels, in_group, 3, 3};
  std::vector<T> ones(static_cast<size_t>(element_count(y)), T(1)), weights(static_cast<size_t>(element_count(w)), T(1));
  weights[0] = std::numeric_limits<T>::infinity();
  const Tensor dy = make_tensor<T>(y, ones), of_w = make_tensor<T>(w, weights);
  Workers workers(2);
  const OpDef* const op = find_op("ConvInputGrad");
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 3}},
                              {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                              {"strides", std::vector<int64_t>{stride, stride}},
                              {"group", groups},
                              {"shape", x}};
  const Tensor dx = evaluate(*op, attributes, {&dy, &of_w}, 1, workers)[0];
  EXPECT_EQ(dx.dtype, dtype);
  return dx.to_double();
}

TEST(Convolution, PaddingIsNotMultipliedWithAnInfiniteWeight) {
  for (const int64_t groups : {1, 2, 4}) {
    for (const int64_t stride : {1, 2}) {
      const std::vector<double> floats = gradient_with_infinity<float>(DType::float32, 3, groups, stride),
                                doubles = gradient_with_infinity<double>(DType::float64, 3, groups, stride);
      EXPECT_EQ(floats, doubles) << groups << " groups, steps of " << stride;
      for (const double element : floats) ASSERT_FALSE(std::isnan(element)) << groups << " groups, steps of " << stride;
    }
  }
}

}  // namespace
}  // namespace ort_train
