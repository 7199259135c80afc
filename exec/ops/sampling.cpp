// What reads pictures between their elements: GridSample (ONNX 16, 20), RoiAlign (10, 16), DeformConv (19).
//
// The picture becomes a table of its elements, a row of channels for each. For every place a Gather takes the elements around it, and their
// sum is weighted by how far they are; the weights follow from the place, so gradients reach it through them.

#include "exec/ops/sampling.h"

#include <string>
#include <vector>

#include "exec/window.h"
#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_def.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// An element that counts along one axis: where it is, and how much; kNone: one.
struct SampleTap {
  ValueId index = kNone, weight = kNone;
};

ValueId add(Lowering& l, ValueId x, double number) { return number == 0 ? x : l.emit("Add", {x, l.scalar_like(x, number)}); }
ValueId multiply(Lowering& l, ValueId x, double number) { return number == 1 ? x : l.emit("Mul", {x, l.scalar_like(x, number)}); }
ValueId clip(Lowering& l, ValueId x, double low, double high) {
  return l.emit("Clip", {x}, {{"min", static_cast<float>(low)}, {"max", static_cast<float>(high)}});
}
ValueId within(Lowering& l, ValueId x, double low, double high) {
  return l.emit("And", {l.emit("GreaterOrEqual", {x, l.scalar_like(x, low)}), l.emit("LessOrEqual", {x, l.scalar_like(x, high)})});
}
ValueId product(Lowering& l, ValueId a, ValueId b) { return a == kNone ? b : b == kNone ? a : l.emit("Mul", {a, b}); }

// The largest whole number that is not larger, as int64; no gradient goes through it. x lies within [-2^31, 2^31].
ValueId floor_of(Lowering& l, ValueId x) { return l.cast(l.emit("Floor", {x}), DType::int64); }

// An index that is one even where x was no number.
ValueId index_of(Lowering& l, ValueId whole, int64_t size) {
  const ValueId index = l.cast(whole, DType::int64);
  return l.emit("Min", {l.emit("Max", {index, l.scalar_like(index, 0)}), l.scalar_like(index, static_cast<double>(size - 1))});
}

// The same numbers; no gradient goes through them.
ValueId detached(Lowering& l, ValueId x) {
  const DType type = l.dtype(x), bits = type == DType::float64 ? DType::int64 : type == DType::float32 ? DType::int32 : DType::int16;
  return l.emit("BitCast", {l.emit("BitCast", {x}, {{"to", static_cast<int64_t>(bits)}})}, {{"to", static_cast<int64_t>(type)}});
}

// x (batch, channels, axes...) as (batch * elements, channels).
class Picture {
 public:
  Picture(Lowering& l, ValueId x) : l_(l), batch_(l.shape(x)[0]), sizes_(l.shape(x).begin() + 2, l.shape(x).end()) {
    const int64_t channels = l.shape(x)[1];
    elements_ = element_count(Shape(sizes_));
    if (elements_ == 0 || channels == 0) l.fail(fmt::format("{} has no elements to read between", to_string(l.shape(x))));
    rows_ = l.reshape(l.transpose(l.reshape(x, {batch_, channels, elements_}), {0, 2, 1}), {batch_ * elements_, channels});
  }

  const std::vector<int64_t>& sizes() const { return sizes_; }
  // (batch, 1): where each sample's rows begin.
  ValueId begins() {
    std::vector<int64_t> begins;
    for (int64_t n = 0; n < batch_; ++n) begins.push_back(n * elements_);
    return l_.constant(make_tensor({batch_, 1}, begins));
  }
  ValueId begins(ValueId samples) {
    const ValueId n = l_.reshape(index_of(l_, samples, batch_), {l_.shape(samples)[0], 1});
    return l_.emit("Mul", {n, l_.scalar_like(n, static_cast<double>(elements_))});
  }
  // Taps of each axis at places (samples, places). Gives (samples, places, channels) for each combination of taps, weighted.
  std::vector<ValueId> terms(const std::vector<std::vector<SampleTap>>& axes, ValueId begins) {
    std::vector<ValueId> found;
    combine(axes, 0, begins, kNone, found);
    return found;
  }

 private:
  void combine(const std::vector<std::vector<SampleTap>>& axes, size_t axis, ValueId index, ValueId weight, std::vector<ValueId>& found) {
    if (axis == axes.size()) {
      ValueId term = l_.emit("Gather", {rows_, index}, {{"axis", int64_t{0}}});
      if (weight != kNone) {
        const Shape shape = l_.shape(weight);
        term = l_.emit("Mul", {term, l_.reshape(l_.cast(weight, l_.dtype(term)), {shape[0], shape[1], 1})});
      }
      found.push_back(term);
      return;
    }
    int64_t stride = 1;
    for (size_t inner = axis + 1; inner < sizes_.size(); ++inner) stride *= sizes_[inner];
    for (const SampleTap& tap : axes[axis]) {
      const ValueId step = l_.emit("Mul", {tap.index, l_.scalar_like(tap.index, static_cast<double>(stride))});
      combine(axes, axis + 1, l_.emit("Add", {index, step}), product(l_, weight, tap.weight), found);
    }
  }

  Lowering& l_;
  int64_t batch_ = 0, elements_ = 0;
  std::vector<int64_t> sizes_;
  ValueId rows_ = kNone;
};

ValueId joined(Lowering& l, const char* op, const std::vector<ValueId>& values) {
  ValueId result = values[0];
  for (size_t i = 1; i < values.size(); ++i) result = l.emit(op, {result, values[i]});
  return result;
}

// --- GridSample -----------------------------------------------------------------------------------------------------------------------

enum class Mode { nearest, linear, cubic };

// One axis of the picture. Numbers of the grid from -1 to 1 are places from `low` to `high`.
struct GridAxis {
  Lowering& l;
  int64_t size = 1;
  Mode mode = Mode::linear;
  std::string padding;
  bool corners = false;
  double last = static_cast<double>(size) - 1, low = corners ? 0 : -0.5, high = corners ? last : last + 0.5;

  // In float32 from here on: of the places of a large picture 16 bits have few.
  ValueId place_of(ValueId g) const {
    Attributes in_float32;
    set_runs_in(in_float32, Precision::float32);
    const ValueId from_zero = l.emit("Add", {g, l.scalar_like(g, 1)}, in_float32);
    return corners ? multiply(l, from_zero, last / 2) : multiply(l, add(l, multiply(l, from_zero, static_cast<double>(size)), -1), 0.5);
  }

  // Thrown back at low and at high until it is between.
  ValueId reflected(ValueId v) const {
    const double range = high - low;
    if (range == 0) return multiply(l, v, 0);
    const ValueId far = l.emit("Abs", {clip(l, add(l, v, -low), -1e9, 1e9)});
    const ValueId turns = l.cast(floor_of(l, multiply(l, far, 0.5 / range)), l.dtype(v));
    const ValueId rest = l.emit("Sub", {far, multiply(l, turns, 2 * range)});
    return add(l, multiply(l, l.emit("Abs", {add(l, rest, -range)}), -1), low + range);
  }

  // At the border and beyond, the place has no gradient, as in PyTorch.
  ValueId at_border(ValueId v) const {
    const ValueId zero = l.scalar_like(v, 0), end = l.scalar_like(v, last);
    const ValueId below = l.emit("Where", {l.emit("GreaterOrEqual", {v, end}), end, v});
    return l.emit("Where", {l.emit("LessOrEqual", {v, zero}), zero, below});
  }

  // The place that is read; with zeros or copies around it, one is as good as another a little farther outside.
  ValueId restricted(ValueId v) const {
    if (padding == "border" && mode != Mode::cubic) return at_border(v);
    // Of a cubic each element is at the border, not the place, as PyTorch and ONNX Runtime have it.
    if (padding != "reflection") return clip(l, v, -4, last + 4);
    return l.emit("Where", {within(l, v, low, high), v, reflected(v)});
  }

  // The element at a whole number, which may be outside.
  SampleTap tap(ValueId whole, ValueId weight) const {
    if (padding == "zeros") weight = product(l, weight, l.cast(within(l, whole, 0, last), l.dtype(whole)));
    if (padding == "reflection" && mode == Mode::cubic) whole = l.emit("Round", {reflected(whole)});
    return {.index = index_of(l, clip(l, whole, 0, last), size), .weight = weight};
  }

  std::vector<SampleTap> taps(ValueId g) const {
    ValueId v = place_of(g);
    if (mode == Mode::nearest) return {tap(l.emit("Round", {restricted(l.emit("Round", {v}))}), kNone)};
    v = restricted(v);
    const ValueId base = l.cast(floor_of(l, v), l.dtype(v)), t = l.emit("Sub", {v, base});
    const ValueId rest = add(l, multiply(l, t, -1), 1);
    if (mode == Mode::linear) return {tap(base, rest), tap(add(l, base, 1), t)};
    constexpr double a = -0.75;
    const auto polynomial = [&](ValueId x, const std::vector<double>& coefficients) {
      ValueId y = multiply(l, x, coefficients[0]);
      for (size_t i = 1; i + 1 < coefficients.size(); ++i) y = l.emit("Mul", {add(l, y, coefficients[i]), x});
      return add(l, y, coefficients.back());
    };
    const auto near = [&](ValueId x) { return polynomial(x, {a + 2, -(a + 3), 0, 1}); };
    const auto far = [&](ValueId x) { return polynomial(add(l, x, 1), {a, -5 * a, 8 * a, -4 * a}); };
    return {tap(add(l, base, -1), far(t)), tap(base, near(t)), tap(add(l, base, 1), near(rest)), tap(add(l, base, 2), far(rest))};
  }
};

}  // namespace

// GridSample(x (N, C, axes...), grid (N, places..., number of axes)): the last axis of x is the first number of a place.
void lower_grid_sample(Lowering& l) {
  const ValueId x = l.input(0), grid = l.input(1);
  const Shape shape = l.shape(x), places = l.shape(grid);
  const size_t axes = shape.size() < 3 ? 0 : shape.size() - 2;
  if (axes == 0 || axes > 3 || places.size() != shape.size() || places[0] != shape[0] || places.back() != static_cast<int64_t>(axes))
    l.fail(fmt::format("a grid of {} does not fit {}", to_string(places), to_string(shape)));
  const std::string name = l.node.attributes.get("mode", "linear"), padding = l.node.attributes.get("padding_mode", "zeros");
  const bool is_cubic = name == "cubic" || name == "bicubic";
  if (!is_cubic && name != "linear" && name != "bilinear" && name != "nearest") l.fail(fmt::format("its mode '{}' is not known", name));
  if (padding != "zeros" && padding != "border" && padding != "reflection")
    l.fail(fmt::format("its padding_mode '{}' is not known", padding));
  const Mode mode = is_cubic ? Mode::cubic : name == "nearest" ? Mode::nearest : Mode::linear;
  Picture picture(l, x);
  const int64_t count = element_count(places) / std::max<int64_t>(1, checked_product({places[0], places.back()}));
  const ValueId numbers = l.reshape(l.cast(grid, compute_type(l.dtype(grid))), {places[0], count, places.back()});
  std::vector<std::vector<SampleTap>> taps;
  for (size_t axis = 0; axis < axes; ++axis) {
    const ValueId g = l.emit("Gather", {numbers, l.constant(scalar_tensor(static_cast<int64_t>(axes - 1 - axis)))}, {{"axis", int64_t{2}}});
    const GridAxis of{
        .l = l, .size = picture.sizes()[axis], .mode = mode, .padding = padding, .corners = l.node.attributes.get("align_corners", 0) != 0};
    taps.push_back(of.taps(g));
  }
  const ValueId samples = joined(l, "Add", picture.terms(taps, picture.begins()));
  Shape y{shape[0], shape[1]};
  for (size_t i = 1; i + 1 < places.size(); ++i) y.push_back(places[i]);
  l.output(0, l.reshape(l.transpose(samples, {0, 2, 1}), y));
}

// --- RoiAlign -------------------------------------------------------------------------------------------------------------------------

namespace {

// Between two elements; a place less than one element outside reads the outermost one, those farther away nothing.
std::vector<SampleTap> edged_taps(Lowering& l, ValueId place, int64_t size) {
  const auto last = static_cast<double>(size) - 1;
  const ValueId inside = l.cast(within(l, place, -1, last + 1), l.dtype(place)), v = clip(l, place, 0, last);
  const ValueId low = l.cast(floor_of(l, v), l.dtype(v)), t = l.emit("Sub", {v, low});
  const ValueId rest = add(l, multiply(l, t, -1), 1);
  return {{index_of(l, low, size), product(l, inside, rest)}, {index_of(l, add(l, low, 1), size), product(l, inside, t)}};
}

}  // namespace

// RoiAlign(x (N, C, H, W), regions (R, 4), samples (R)): each region's bins are means, or maxima, of sampling_ratio^2 places. Regions have
// no gradient.
void lower_roi_align(Lowering& l) {
  constexpr int kHalfPixel = 16;  // the opset from which on there is a choice
  const ValueId x = l.input(0);
  const Shape shape = l.shape(x), regions = l.shape(l.input(1));
  if (shape.size() != 4 || regions.size() != 2 || regions[1] != 4 || l.shape(l.input(2)) != Shape{regions[0]})
    l.fail(
        fmt::format("regions of {} for samples of {} do not fit {}", to_string(regions), to_string(l.shape(l.input(2))), to_string(shape)));
  const Attributes& given = l.node.attributes;
  const std::string mode = given.get("mode", "avg"), place = given.get("coordinate_transformation_mode", "half_pixel");
  if (mode != "avg" && mode != "max") l.fail(fmt::format("its mode '{}' is not known", mode));
  const bool half = l.node.opset >= kHalfPixel && place == "half_pixel";
  const int64_t ratio = given.get("sampling_ratio", int64_t{0}), count = regions[0];
  const int64_t bins[] = {given.get("output_height", int64_t{1}), given.get("output_width", int64_t{1})};
  constexpr int64_t kMost = 4096;
  if (ratio == 0) l.fail("its sampling_ratio is 0, so that how many places are read depends on the regions: export it with a number");
  if (ratio < 1 || ratio > kMost || bins[0] < 1 || bins[0] > kMost || bins[1] < 1 || bins[1] > kMost)
    l.fail(fmt::format("{} times {} bins of {} samples can't be", bins[0], bins[1], ratio));
  const ValueId scaled = add(l,
                             multiply(l, detached(l, l.cast(l.input(1), compute_type(l.dtype(l.input(1))))),
                                      static_cast<double>(given.get("spatial_scale", 1.0f))),
                             half ? -0.5 : 0);
  const auto corner = [&](int64_t i) {
    return l.emit("Gather", {scaled, l.constant(make_tensor<int64_t>({1}, {i}))}, {{"axis", int64_t{1}}});
  };
  Picture picture(l, x);
  std::vector<std::vector<SampleTap>> taps;
  for (int64_t axis = 0; axis < 2; ++axis) {  // regions are x1, y1, x2, y2
    const ValueId start = corner(1 - axis);
    ValueId size = l.emit("Sub", {corner(3 - axis), start});
    if (!half) size = l.emit("Max", {size, l.scalar_like(size, 1)});
    const int64_t places = bins[axis] * ratio;
    std::vector<double> parts;  // of the region
    for (int64_t p = 0; p < places; ++p) parts.push_back((static_cast<double>(p) + 0.5) / static_cast<double>(places));
    const ValueId at = l.emit("Add", {start, l.emit("Mul", {size, l.cast(l.constant(make_tensor({1, places}, parts)), l.dtype(size))})});
    taps.push_back(edged_taps(l, at, picture.sizes()[static_cast<size_t>(axis)]));
    // Each row of places with each column.
    for (SampleTap& tap : taps.back()) {
      for (ValueId* value : {&tap.index, &tap.weight}) {
        const int64_t rows = bins[0] * ratio, columns = bins[1] * ratio;
        const ValueId spread = l.reshape(*value, axis == 0 ? Shape{count, rows, 1} : Shape{count, 1, columns});
        *value = l.reshape(l.emit("Expand", {spread}, {{"shape", std::vector<int64_t>{count, rows, columns}}}), {count, rows * columns});
      }
    }
  }
  const std::vector<ValueId> terms = picture.terms(taps, picture.begins(l.input(2)));
  // A maximum is over the weighted elements, as the standard has it.
  ValueId y = l.reshape(joined(l, mode == "avg" ? "Add" : "Max", terms), {count, bins[0], ratio, bins[1], ratio, shape[1]});
  y = l.emit(mode == "avg" ? "ReduceMean" : "ReduceMax", {y}, {{"axes", std::vector<int64_t>{2, 4}}, {"keepdims", int64_t{0}}});
  l.output(0, l.transpose(y, {0, 3, 1, 2}));
}

// --- DeformConv -----------------------------------------------------------------------------------------------------------------------

// DeformConv(x, w, offsets (N, groups * taps * 2, H, W), bias?, mask (N, groups * taps, H, W)?): each tap of each window reads x at a place
// of its own, with zeros around the picture. What is read goes through a convolution of 1 x 1.
void lower_deform_conv(Lowering& l) {
  const ValueId x = l.input(0), w = l.input(1), offset = l.input(2);
  const Shape shape = l.shape(x), weight = l.shape(w), offsets = l.shape(offset);
  if (shape.size() != 4 || weight.size() != 4 || offsets.size() != 4)
    l.fail(fmt::format("x {}, weight {} and offsets {} must have four axes", to_string(shape), to_string(weight), to_string(offsets)));
  const Attributes& given = l.node.attributes;
  const std::vector<int64_t> strides = window_list(given, "strides", 1, 2), dilations = window_list(given, "dilations", 1, 2),
                             pads = window_list(given, "pads", 0, 4);
  const int64_t groups = given.get("group", int64_t{1}), parts = given.get("offset_group", int64_t{1});
  const int64_t taps = checked_product({weight[2], weight[3]}), out = checked_product({offsets[2], offsets[3]}), n = shape[0];
  if (groups < 1 || parts < 1 || shape[1] % parts != 0 || weight[1] * groups != shape[1] || offsets[0] != n ||
      offsets[1] != checked_product({parts, taps, 2}))
    l.fail(fmt::format("x {}, weight {}, offsets {}, {} groups and {} offset groups don't go together", to_string(shape), to_string(weight),
                       to_string(offsets), groups, parts));
  const int64_t channels = shape[1] / parts;
  Picture picture(l, l.reshape(x, {n * parts, channels, shape[2], shape[3]}));
  const ValueId given_offsets = l.reshape(l.cast(offset, compute_type(l.dtype(offset))), {n, parts, taps, 2, out});
  std::vector<std::vector<SampleTap>> along;
  for (int64_t axis = 0; axis < 2; ++axis) {
    std::vector<double> places;  // of a convolution's taps
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t o = 0; o < out; ++o) {
        const int64_t k = axis == 0 ? tap / weight[3] : tap % weight[3], window = axis == 0 ? o / offsets[3] : o % offsets[3];
        const auto i = static_cast<size_t>(axis);
        places.push_back(static_cast<double>(window * strides[i] - pads[i] + k * dilations[i]));
      }
    }
    const ValueId moved = l.emit("Gather", {given_offsets, l.constant(scalar_tensor(axis))}, {{"axis", int64_t{3}}});
    const ValueId place = l.emit("Add", {moved, l.cast(l.constant(make_tensor({1, 1, taps, out}, places)), l.dtype(moved))});
    const GridAxis of{.l = l, .size = shape[static_cast<size_t>(2 + axis)], .mode = Mode::linear, .padding = "zeros"};
    const ValueId v = of.restricted(l.reshape(place, {n * parts, taps * out}));
    const ValueId base = l.cast(floor_of(l, v), l.dtype(v)), t = l.emit("Sub", {v, base});
    along.push_back({of.tap(base, add(l, multiply(l, t, -1), 1)), of.tap(add(l, base, 1), t)});
  }
  ValueId columns = joined(l, "Add", picture.terms(along, picture.begins()));  // (n * parts, taps * out, channels)
  if (l.has(4)) columns = l.emit("Mul", {columns, l.reshape(l.input(4), {n * parts, taps * out, 1})});
  columns = l.transpose(l.reshape(columns, {n, parts, taps, out, channels}), {0, 1, 4, 2, 3});
  std::vector<ValueId> inputs{l.reshape(columns, {n, shape[1] * taps, offsets[2], offsets[3]}),
                              l.reshape(w, {weight[0], weight[1] * taps, 1, 1})};
  if (l.has(3)) inputs.push_back(l.input(3));
  l.pass_on("Conv", inputs,
            {{"kernel_shape", std::vector<int64_t>{1, 1}},
             {"strides", std::vector<int64_t>{1, 1}},
             {"dilations", std::vector<int64_t>{1, 1}},
             {"pads", std::vector<int64_t>(4, 0)},
             {"group", groups}});
}

ORT_TRAIN_OPS_END
