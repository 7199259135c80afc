// Convolutions and their gradients of random shapes, in every mixture of types: of small whole numbers, whose sums are exact in any order,
// the results are those in float64. And of numbers that aren't finite: padding isn't multiplied with them in the gradient of x, and no
// window has a part in what others read, whatever way they are made.

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "exec/kernel.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

int64_t number_of(DType type) { return static_cast<int64_t>(type); }

Tensor cast(const Tensor& tensor, DType to, Workers& workers) {
  return evaluate(op_named("Cast"), {{"to", number_of(to)}}, {&tensor}, 1, workers)[0];
}

// A convolution of random shape.
struct Form {
  Shape x, w, y;
  Attributes attributes;

  explicit Form(std::mt19937& random) {
    const auto some = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
    const bool is_depthwise = some(0, 3) == 0;
    const bool is_usual = !is_depthwise && some(0, 3) == 0;               // windows of 3 x 3 in steps of one, many channels
    const bool has_many = !is_depthwise && !is_usual && some(0, 2) == 0;  // channels, in any windows
    const int64_t groups = is_usual ? 1 : is_depthwise ? some(1, 37) : some(0, 2) == 0 ? some(2, 3) : 1;
    const auto channels = [&](int64_t least) { return is_usual || has_many || some(0, 3) == 0 ? some(least, 150) : some(1, 40); };
    const int64_t inputs = is_depthwise ? 1 : channels(is_usual ? 16 : 32), outputs = is_depthwise ? 1 : channels(is_usual ? 16 : 32);
    const bool is_even = !is_usual && some(0, 3) == 0;  // in steps of one size, of windows that don't overlap, or are of one element
    x = {some(1, 5), groups * inputs};
    w = {groups * outputs, inputs};
    y = {x[0], w[0]};
    std::vector<int64_t> kernel, strides, dilations, begins, ends;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t k = is_even                       ? some(1, 2)
                        : is_usual || some(0, 1) == 0 ? 3
                                                      : some(1, 7),
                    d = is_usual || is_even || some(0, 4) != 0 ? 1 : some(2, 3),
                    s = is_even                        ? 2
                        : !is_usual && some(0, 2) == 0 ? some(2, 5)
                                                       : 1,
                    reach = (k - 1) * d + 1;
      const int64_t begin = is_even ? 0 : some(0, reach), end = is_even ? 0 : some(0, reach),
                    size = std::max<int64_t>(some(is_usual ? 8 : 1, 34), reach - begin - end);
      kernel.push_back(k), strides.push_back(s), dilations.push_back(d), begins.push_back(begin), ends.push_back(end);
      x.push_back(size), w.push_back(k), y.push_back((size + begin + end - reach) / s + 1);
    }
    begins.insert(begins.end(), ends.begin(), ends.end());
    attributes = {{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", begins}, {"group", groups}};
  }
};

TEST(Convolution, OfRandomShapesAndTypesIsExactForSmallNumbers) {
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 4);
  Workers one(1), three(3);
  std::mt19937 random(7);
  constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::bfloat16, DType::float16};
  for (int i = 0; i < 250; ++i) {
    const Form form(random);
    const auto numbers = [&](const Shape& shape) {
      Tensor tensor(DType::float64, shape);
      for (double& x : tensor.data<double>()) x = static_cast<double>(random() % 5) - 2;
      return tensor;
    };
    const auto type = [&] { return kTypes[random() % std::size(kTypes)]; };
    const DType types[] = {type(), type()}, to = type(), compute = random() % 2 ? DType::bfloat16 : DType::float32;
    const Tensor x = numbers(form.x), w = numbers(form.w), y = numbers(form.y), bias = numbers({form.w[0]});
    const auto check = [&](const char* op, const Shape& shape, const std::vector<const Tensor*>& inputs) {
      Attributes attributes = form.attributes;
      if (!shape.empty()) attributes.set("shape", shape);
      const Tensor wide = evaluate(op_named(op), attributes, inputs, 1, one)[0];
      std::vector<Tensor> narrow;
      for (size_t input = 0; input < inputs.size(); ++input) narrow.push_back(cast(*inputs[input], input < 2 ? types[input] : to, one));
      std::vector<const Tensor*> views;
      for (const Tensor& tensor : narrow) views.push_back(&tensor);
      attributes.set("to", number_of(to));
      if (compute != DType::float32) attributes.set("compute", number_of(compute));
      const Tensor result = evaluate(op_named(op), attributes, views, 1, one)[0];
      const auto what = fmt::format("{} of {} and {} with {}, {} to {}", op, to_string(narrow[0].type()), to_string(narrow[1].type()),
                                    to_string(form.w), form.attributes.get("group", int64_t{0}), to_string(to));
      EXPECT_TRUE(result == cast(wide, to, one)) << what;
      EXPECT_TRUE(result == evaluate(op_named(op), attributes, views, 1, three)[0]) << what << ", with 3 threads";
    };
    check("Conv", {}, i % 2 ? std::vector{&x, &w, &bias} : std::vector{&x, &w});
    check("ConvInputGrad", form.x, {&y, &w});
    check("ConvWeightGrad", form.w, {&y, &x});
    if (testing::Test::HasFailure()) break;
  }
}

// dx of `groups` groups, from a dy of ones and weights of ones but for the first, which is infinite: in float32 and in 16 bits, which have
// ways of their own for planes with padding, and in float64, which hasn't.
std::vector<double> gradient_with_infinity(DType dtype, int64_t channels, int64_t groups, int64_t stride) {
  const int64_t samples = 3, size = 16, out = (size + 2 - 3) / stride + 1, in_group = channels / groups;
  const Shape x{samples, channels, size, size}, y{samples, channels, out, out}, w{channels, in_group, 3, 3};
  std::vector<double> ones(static_cast<size_t>(element_count(y)), 1), weights(static_cast<size_t>(element_count(w)), 1);
  weights[0] = std::numeric_limits<double>::infinity();
  Workers workers(2);
  const Tensor dy = cast(make_tensor<double>(y, ones), dtype, workers), of_w = cast(make_tensor<double>(w, weights), dtype, workers);
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
  for (const auto& [channels, groups] : {std::pair{4, 1}, {4, 2}, {4, 4}, {64, 1}, {64, 2}, {160, 1}}) {
    for (const int64_t stride : {1, 2}) {
      const std::vector<double> doubles = gradient_with_infinity(DType::float64, channels, groups, stride);
      for (const double element : doubles)
        ASSERT_FALSE(std::isnan(element)) << channels << ", " << groups << " groups, steps of " << stride;
      for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
        EXPECT_EQ(gradient_with_infinity(dtype, channels, groups, stride), doubles)
            << to_string(dtype) << ", " << channels << ", " << groups << ", " << stride;
    }
  }
}

// Of one tap, far more padding than elements.
TEST(Convolution, WidePaddingTakesNoMoreThanItsRoom) {
  Workers workers(2);
  for (const auto& [size, stride, pad] : {std::array<int64_t, 3>{1, 1, 90}, {8, 2, 3000}, {5, 3, 70}}) {
    const int64_t out = (size + 2 * pad - 1) / stride + 1;
    const Shape x{3, 32, size}, w{40, 32, 1}, y{3, 40, out};
    const Attributes attributes{{"kernel_shape", std::vector<int64_t>{1}},
                                {"pads", std::vector<int64_t>{pad, pad}},
                                {"strides", std::vector<int64_t>{stride}},
                                {"shape", x}};
    const auto numbers = [](const Shape& shape) {
      Tensor tensor(DType::float64, shape);
      for (size_t i = 0; double& number : tensor.data<double>()) number = static_cast<double>(i++ % 5) - 2;
      return tensor;
    };
    const Tensor dy = numbers(y), of_w = numbers(w), wide = evaluate(op_named("ConvInputGrad"), attributes, {&dy, &of_w}, 1, workers)[0];
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Tensor narrow_dy = cast(dy, dtype, workers), narrow_w = cast(of_w, dtype, workers);
      EXPECT_TRUE(evaluate(op_named("ConvInputGrad"), attributes, {&narrow_dy, &narrow_w}, 1, workers)[0] == cast(wide, dtype, workers))
          << to_string(dtype) << ", " << pad;
    }
  }
}

// Windows of 3 x 3 in steps of one, with many channels, are made by tiles of 2 x 2: an element that isn't finite shows in the windows that
// read it alone, as it does in float64. In 16 bits, too.
TEST(Convolution, AnInfiniteElementShowsWhereItIsRead) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Workers workers(2);
  const Shape x{2, 16, 13, 12}, w{20, 16, 3, 3}, y{2, 20, 13, 12};
  const auto of_ones = [&](const Shape& shape, size_t at) {
    std::vector<double> ones(static_cast<size_t>(element_count(shape)), 1);
    if (at < ones.size()) ones[at] = at % 2 ? kInfinity : -kInfinity;
    return make_tensor<double>(shape, ones);
  };
  for (const auto& [op, inputs] : {std::pair{"Conv", std::array{x, w}}, {"ConvInputGrad", {y, w}}, {"ConvTranspose", {y, w}}}) {
    for (const size_t which : {0, 1}) {
      if (which == 1 && std::string_view(op) == "Conv") continue;  // where padding may be multiplied with an infinite weight
      for (const size_t at : {0, 11, 160, 401, 2879}) {
        Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 3}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
        if (std::string_view(op) != "Conv") attributes.set("shape", x);
        const Tensor a = of_ones(inputs[0], which == 0 ? at : SIZE_MAX), b = of_ones(inputs[1], which == 1 ? at : SIZE_MAX);
        const std::vector<double> wanted = evaluate(op_named(op), attributes, {&a, &b}, 1, workers)[0].to_double();
        EXPECT_EQ(std::count_if(wanted.begin(), wanted.end(), [](double v) { return std::isnan(v); }), 0);
        EXPECT_GT(std::count_if(wanted.begin(), wanted.end(), [](double v) { return std::isinf(v); }), 0);
        for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
          const Tensor narrow_a = cast(a, dtype, workers), narrow_b = cast(b, dtype, workers);
          EXPECT_EQ(evaluate(op_named(op), attributes, {&narrow_a, &narrow_b}, 1, workers)[0].to_double(), wanted)
              << op << " in " << to_string(dtype) << ", input " << which << ", element " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ort_train
