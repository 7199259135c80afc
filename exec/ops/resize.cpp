// Resize (ONNX Resize-10, -11, -13, -18, -19) and Upsample (7, 9), axis by axis: nearest, linear and cubic are all separable.
//
// Element o of an axis is a weighted sum of some elements around place(o) of the input's axis; which and how much is known at import:
//
//   nearest          a Gather; where each element is repeated so and so often, an Expand
//   linear, cubic    a product with the matrix (out, in) of the weights
//
// tf_crop_and_resize gives elements whose place is outside of the input extrapolation_value.

#include "exec/ops/resize.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "exec/ops/onnx_type.h"
#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_def.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kMostElements = int64_t{1} << 26;  // of a matrix of weights
constexpr int64_t kMostLength = int64_t{1} << 24;    // of an axis
constexpr const char* kOldNearest = "";              // before opset 11: rounds down, or up along an axis that shrinks

struct Axis {
  int64_t number = 0, in = 0, out = 0;
  double scale = 1;
  double start = 0, end = 1;  // of what is cropped, in parts of the axis
};

// How numbers between elements are made.
struct Method {
  std::string mode = "nearest", place = "half_pixel", nearest = "round_prefer_floor";
  double cubic = -0.75;
  bool antialias = false, exclude_outside = false;
  float outside = 0;  // extrapolation_value

  bool crops() const { return place == "tf_crop_and_resize"; }
};

// In float where the nearest element is taken, as in ONNX Runtime and PyTorch: in double, element 1 of an axis scaled by 0.2f would be at
// 4.9999999, not 5.
template <typename Number> Number place_of(const Method& method, const Axis& axis, int64_t o) {
  const auto x = static_cast<Number>(o), in = static_cast<Number>(axis.in), out = static_cast<Number>(axis.out);
  const auto scale = static_cast<Number>(axis.scale), half = static_cast<Number>(0.5);
  if (method.place == "half_pixel") return (x + half) / scale - half;
  if (method.place == "half_pixel_symmetric") {
    const Number exact = scale * in;
    return in / 2 * (1 - out / exact) + (x + half) / scale - half;
  }
  if (method.place == "tf_half_pixel_for_nn") return (x + half) / scale;
  if (method.place == "pytorch_half_pixel") return axis.out > 1 ? (x + half) / scale - half : 0;
  if (method.place == "align_corners") return axis.out > 1 ? x * (in - 1) / (out - 1) : 0;
  if (method.crops()) {
    const auto start = static_cast<Number>(axis.start), end = static_cast<Number>(axis.end);
    if (axis.out == 1) return (start + end) * (in - 1) / 2;
    return start * (in - 1) + x * (end - start) * (in - 1) / (out - 1);
  }
  return x / scale;  // asymmetric
}

int64_t nearest_to(const Method& method, const Axis& axis, float x) {
  const float below = std::floor(x), rest = x - below;
  bool up = false;
  if (method.nearest == "ceil" || (method.nearest == kOldNearest && axis.scale < 1)) up = rest > 0;
  if (method.nearest == "round_prefer_floor") up = rest > 0.5;
  if (method.nearest == "round_prefer_ceil") up = rest >= 0.5;
  return static_cast<int64_t>(below) + (up ? 1 : 0);
}

double cubic_weight(double a, double x) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// The weights of the elements from `first` on.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights;
};

// Of a place between base and base + 1, at `ratio` in (0, 1] behind base. With `antialias` the window is wider where the axis shrinks.
Taps taps_of(const Method& method, const Axis& axis, double place) {
  const double base = std::ceil(place) - 1, ratio = place - base, shrink = method.antialias ? std::min(axis.scale, 1.0) : 1;
  const double reach = method.mode == "linear" ? 1 : 2;
  const auto start = static_cast<int64_t>(std::floor(-reach / shrink)) + 1;
  Taps taps{.first = static_cast<int64_t>(base) + start, .weights = {}};
  double sum = 0;
  for (int64_t k = start; k <= 1 - start; ++k) {
    const double x = (static_cast<double>(k) - ratio) * shrink;
    taps.weights.push_back(method.mode == "linear" ? std::max(0.0, 1 - std::abs(x)) : cubic_weight(method.cubic, x));
    sum += taps.weights.back();
  }
  for (double& weight : taps.weights) weight /= sum;
  return taps;
}

// Row o has what each element of the input's axis gives to element o. Beyond the ends stand copies of the first and the last element, or
// nothing.
std::vector<double> weights_of(Lowering& l, const Method& method, const Axis& axis) {
  if (checked_product({axis.in, axis.out}) > kMostElements)
    l.fail(fmt::format("an axis of {} elements is too long to be resized to {}", axis.in, axis.out));
  std::vector<double> matrix(static_cast<size_t>(axis.in * axis.out));
  for (int64_t o = 0; o < axis.out; ++o) {
    const Taps taps = taps_of(method, axis, place_of<double>(method, axis, o));
    double* const row = matrix.data() + o * axis.in;
    double sum = 0;
    for (size_t k = 0; k < taps.weights.size(); ++k) {
      const int64_t at = taps.first + static_cast<int64_t>(k);
      if (method.exclude_outside && (at < 0 || at >= axis.in)) continue;
      row[std::clamp<int64_t>(at, 0, axis.in - 1)] += taps.weights[k];
      sum += taps.weights[k];
    }
    for (int64_t i = 0; method.exclude_outside && sum != 0 && i < axis.in; ++i) row[i] /= sum;
  }
  return matrix;
}

ValueId constant_like(Lowering& l, ValueId like, Shape shape, const std::vector<double>& numbers) {
  const ValueId value = l.constant(make_tensor<double>(std::move(shape), numbers));
  return l.cast(value, l.dtype(like));
}

ValueId resize_nearest(Lowering& l, ValueId x, const Method& method, const Axis& axis) {
  std::vector<int64_t> from(static_cast<size_t>(axis.out));
  for (int64_t o = 0; o < axis.out; ++o)
    from[static_cast<size_t>(o)] = std::clamp<int64_t>(nearest_to(method, axis, place_of<float>(method, axis, o)), 0, axis.in - 1);
  const int64_t times = axis.out / axis.in;
  bool repeats = axis.out % axis.in == 0;
  for (int64_t o = 0; repeats && o < axis.out; ++o) repeats = from[static_cast<size_t>(o)] == o / times;
  if (!repeats) return l.emit("Gather", {x, l.constant(make_tensor<int64_t>({axis.out}, from))}, {{"axis", axis.number}});
  Shape result = l.shape(x), apart = result;
  apart.insert(apart.begin() + axis.number + 1, 1);
  Shape repeated = apart;
  repeated[axis.number + 1] = times;
  result[axis.number] = axis.out;
  return l.reshape(l.emit("Expand", {l.reshape(x, apart)}, {{"shape", repeated}}), result);
}

ValueId resize_by_weights(Lowering& l, ValueId x, const Method& method, const Axis& axis) {
  Shape shape = l.shape(x);
  const auto at = static_cast<size_t>(axis.number);
  const int64_t outer = element_count(shape.before(at)), inner = element_count(shape.from(at + 1));
  const ValueId weights = constant_like(l, x, {axis.out, axis.in}, weights_of(l, method, axis));
  Attributes attributes;
  set_runs_in(attributes, Precision::follow);
  if (inner == 1) attributes.set("trans_b", int64_t{1});
  const ValueId y = inner == 1 ? l.emit("MatMul", {l.reshape(x, {outer, axis.in}), weights}, attributes)
                               : l.emit("MatMul", {weights, l.reshape(x, {outer, axis.in, inner})}, attributes);
  shape[axis.number] = axis.out;
  return l.reshape(y, shape);
}

// Where the place of an element is outside along any axis.
ValueId extrapolated(Lowering& l, ValueId y, const Method& method, const std::vector<Axis>& axes) {
  ValueId outside = kNone;
  const size_t rank = l.shape(y).size();
  for (const Axis& axis : axes) {
    std::vector<double> is_outside;
    for (int64_t o = 0; o < axis.out; ++o) {
      const auto place = place_of<double>(method, axis, o);
      is_outside.push_back(place < 0 || place > static_cast<double>(axis.in - 1) ? 1 : 0);
    }
    Shape shape(rank, 1);
    shape[axis.number] = axis.out;
    const ValueId here = l.cast(l.constant(make_tensor<double>(shape, is_outside)), DType::boolean);
    outside = outside == kNone ? here : l.emit("Or", {outside, here});
  }
  return outside == kNone ? y : l.emit("Where", {outside, l.scalar_like(y, method.outside), y});
}

void resize(Lowering& l, const Method& method, const std::vector<Axis>& axes) {
  ValueId y = l.input(0);
  std::vector<Axis> resized;
  for (const Axis& axis : axes) {
    if (axis.in < 1 || axis.out < 1 || axis.out > kMostLength || !std::isfinite(axis.scale) || axis.scale <= 0)
      l.fail(fmt::format("axis {} of {} elements can't be resized to {} ({} times as many)", axis.number, axis.in, axis.out, axis.scale));
    const bool stays = axis.in == axis.out && (method.crops() ? axis.start == 0 && axis.end == 1 : axis.scale == 1);
    if (!stays) resized.push_back(axis);
  }
  for (const Axis& axis : resized)
    y = method.mode == "nearest" ? resize_nearest(l, y, method, axis) : resize_by_weights(l, y, method, axis);
  if (method.crops()) y = extrapolated(l, y, method, resized);
  l.output(0, y);
}

std::string chosen(Lowering& l, const char* attribute, const char* otherwise, const std::vector<std::string>& known) {
  const std::string name = l.node.attributes.get(attribute, otherwise);
  if (std::find(known.begin(), known.end(), name) == known.end()) l.fail(fmt::format("its {} '{}' is unknown", attribute, name));
  return name;
}

Axis scaled(Lowering& l, int64_t number, double scale) {
  const int64_t in = l.shape(l.input(0))[number];
  const double out = std::floor(static_cast<float>(in) * static_cast<float>(scale));  // in float, as ONNX infers it
  if (!(out >= 0 && out <= static_cast<double>(kMostLength))) l.fail(fmt::format("axis {} can't be scaled by {}", number, scale));
  return {.number = number, .in = in, .out = static_cast<int64_t>(out), .scale = scale};
}

std::vector<double> numbers(Lowering& l, size_t input, std::string_view what) {
  return l.has(input) ? l.constant_input(input, what).to_double() : std::vector<double>{};
}

}  // namespace

void lower_upsample(Lowering& l) {
  const auto rank = static_cast<int64_t>(l.shape(l.input(0)).size());
  std::vector<double> scales = numbers(l, 1, "the scales");
  for (const float scale : float_list(l.node.attributes, "scales")) scales.push_back(scale);
  if (static_cast<int64_t>(scales.size()) != rank) l.fail(fmt::format("it has {} scales for {} axes", scales.size(), rank));
  const Method method{.mode = chosen(l, "mode", "nearest", {"nearest", "linear"}), .place = "asymmetric", .nearest = kOldNearest};
  std::vector<Axis> axes;
  for (int64_t i = 0; i < rank; ++i) axes.push_back(scaled(l, i, scales[static_cast<size_t>(i)]));
  resize(l, method, axes);
}

void lower_resize(Lowering& l) {
  if (l.node.opset < 11) return lower_upsample(l);  // Resize-10 is the same
  const Attributes& given = l.node.attributes;
  const Shape shape = l.shape(l.input(0));
  const auto rank = static_cast<int64_t>(shape.size());
  const Method method{
      .mode = chosen(l, "mode", "nearest", {"nearest", "linear", "cubic"}),
      .place = chosen(l, "coordinate_transformation_mode", "half_pixel",
                      {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
                       "tf_crop_and_resize"}),
      .nearest = chosen(l, "nearest_mode", "round_prefer_floor", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      .cubic = given.get("cubic_coeff_a", -0.75f),
      .antialias = given.get("antialias", 0) != 0,
      .exclude_outside = given.get("exclude_outside", 0) != 0,
      .outside = given.get("extrapolation_value", 0.0f)};
  std::vector<int64_t> numbered(static_cast<size_t>(rank));
  std::iota(numbered.begin(), numbered.end(), 0);
  numbered = given.get("axes", numbered);
  for (int64_t& axis : numbered) axis = normalize_axis(axis, rank, "axis");
  const std::vector<double> scales = numbers(l, 2, "the scales");
  const std::vector<int64_t> sizes = l.has(3) ? l.ints(3, "the sizes") : std::vector<int64_t>{};
  const bool by_size = !sizes.empty();
  if ((by_size ? sizes.size() : scales.size()) != numbered.size() || (by_size && !scales.empty()))
    l.fail(fmt::format("it has {} scales and {} sizes for {} axes", scales.size(), sizes.size(), numbered.size()));
  std::vector<double> roi = method.crops() ? numbers(l, 1, "the region") : std::vector<double>{};
  if (method.crops() && roi.size() != 2 * numbered.size())
    l.fail(fmt::format("its region has {} numbers instead of two for each axis", roi.size()));
  constexpr double kFarthest = 1e6;  // of a place outside, in lengths of the axis
  for (const double end : roi) {
    if (!(std::abs(end) <= kFarthest)) l.fail(fmt::format("its region reaches to {}", end));
  }
  std::vector<Axis> axes;
  for (size_t i = 0; i < numbered.size(); ++i) {
    Axis axis;
    if (by_size) {
      const int64_t in = shape[numbered[i]];
      axis = {.number = numbered[i],
              .in = in,
              .out = sizes[i],
              .scale = static_cast<double>(sizes[i]) / static_cast<double>(std::max<int64_t>(in, 1))};
    } else {
      axis = scaled(l, numbered[i], scales[i]);
    }
    if (method.crops()) axis.start = roi[i], axis.end = roi[numbered.size() + i];
    axes.push_back(axis);
  }
  const std::string policy = chosen(l, "keep_aspect_ratio_policy", "stretch", {"stretch", "not_larger", "not_smaller"});
  if (by_size && policy != "stretch" && !axes.empty()) {
    double scale = axes[0].scale;
    for (const Axis& axis : axes) scale = policy == "not_larger" ? std::min(scale, axis.scale) : std::max(scale, axis.scale);
    for (Axis& axis : axes) {
      axis.scale = scale;
      axis.out = static_cast<int64_t>(std::floor(std::min(scale * static_cast<double>(axis.in), 1e9) + 0.5));
    }
  }
  resize(l, method, axes);
}

ORT_TRAIN_OPS_END
