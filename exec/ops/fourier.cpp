// DFT{inverse, onesided}(x, dft_length?, axis?) (ONNX DFT-17 and -20), STFT{onesided}(signal, frame_step, window?, frame_length?) (ONNX
// STFT-17) and MelWeightMatrix (ONNX MelWeightMatrix-17).
//
// A transform of N points is a product with its matrix, whose gradient is MatMul's:
//
//   X_k = sum_t x_t e^(-2 pi i k t / N), its inverse with the sign turned round and 1 / N before the sum
//
// x (..., n, ..., c), c = 1: real, 2: real and imaginary parts side by side. Points behind the N-th are cut off, missing ones are zeros.
// The inverse of a one-sided spectrum is real: X_k and X_(N - k) are conjugates, so each pair is twice the real part of one. STFT's frames
// are a Gather. A matrix of N points has 4 N^2 elements, so N has an end (kMaxMatrix).

#include "exec/ops/fourier.h"

#include <cmath>
#include <numbers>

#include "exec/ops/onnx_type.h"
#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_def.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kMaxMatrix = int64_t{1} << 24;  // elements

struct Transform {
  int64_t points = 0;  // N
  bool inverse = false, onesided = false;
};

// (rows of `parts` parts each) x (columns of `made` parts each). The angle 2 pi k t / N is computed from (k t) mod N: exact where k t is
// large.
Tensor matrix_of(const Transform& transform, int64_t rows, int64_t parts, int64_t columns, int64_t made) {
  Tensor matrix(DType::float64, {rows * parts, columns * made});
  double* const out = matrix.data<double>().data();
  const auto n = static_cast<double>(transform.points);
  const bool real = made == 1;
  for (int64_t row = 0; row < rows; ++row) {
    const bool paired = real && row > 0 && 2 * row != transform.points;  // stands for its conjugate, too
    const double scale = (transform.inverse ? 1 / n : 1) * (paired ? 2 : 1);
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t turn = row * column % transform.points;
      const double angle = 2 * std::numbers::pi * static_cast<double>(transform.inverse ? turn : -turn) / n;
      const double cosine = scale * std::cos(angle), sine = scale * (2 * turn == transform.points ? 0 : std::sin(angle));
      for (int64_t part = 0; part < parts; ++part) {
        double* const to = out + (row * parts + part) * columns * made + column * made;
        to[0] = part == 0 ? cosine : -sine;
        if (!real) to[1] = part == 0 ? sine : cosine;
      }
    }
  }
  return matrix;
}

// Along `axis` of x, whose last axis holds the parts.
ValueId transformed(Lowering& l, ValueId x, int64_t axis, const Transform& transform) {
  const Shape from = l.shape(x);
  const int64_t rank = static_cast<int64_t>(from.size()), parts = from.back(), n = transform.points;
  if (parts != 1 && parts != 2)
    l.fail(fmt::format("its input is {}; the last axis holds a real part, or a real and an imaginary one", to_string(from)));
  if (axis == rank - 1) l.fail("its axis is that of the real and imaginary parts");
  if (n < 1 || n > kMaxMatrix || from[axis] < 1) l.fail(fmt::format("it transforms {} points of {}", n, from[axis]));
  const bool to_real = transform.inverse && transform.onesided;
  const int64_t half = n / 2 + 1, columns = transform.onesided && !transform.inverse ? half : n, made = to_real ? 1 : 2;
  const int64_t rows = std::min(from[axis], to_real ? half : n);
  if (checked_product({rows, parts, columns, made}) > kMaxMatrix)
    l.fail(fmt::format("a transform of {} points is a product with a matrix of {} elements, which is more than is supported", n,
                       rows * parts * columns * made));
  if (from[axis] > rows) {
    x = l.emit("Slice", {x},
               {{"starts", std::vector<int64_t>{0}},
                {"ends", std::vector<int64_t>{rows}},
                {"axes", std::vector<int64_t>{axis}},
                {"steps", std::vector<int64_t>{1}}});
  }
  // (..., rows, ..., parts) -> (others, rows * parts)
  std::vector<int64_t> order, back;
  Shape others;
  for (int64_t i = 0; i + 1 < rank; ++i) {
    if (i == axis) continue;
    order.push_back(i);
    others.push_back(from[i]);
  }
  order.push_back(axis);
  order.push_back(rank - 1);
  const bool moves = axis != rank - 2;
  if (moves) x = l.transpose(x, order);
  const ValueId matrix = l.cast(l.constant(matrix_of(transform, rows, parts, columns, made)), l.dtype(x));
  // As in PyTorch: the largest and the smallest frequencies are far apart.
  Attributes in_float32;
  set_runs_in(in_float32, Precision::float32);
  ValueId y = l.emit("MatMul", {l.reshape(x, {element_count(others), rows * parts}), matrix}, in_float32);
  Shape to = others;
  to.push_back(columns);
  to.push_back(made);
  y = l.reshape(y, to);
  if (!moves) return y;
  back.assign(order.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return l.transpose(y, back);
}

}  // namespace

void lower_dft(Lowering& l) {
  constexpr int kAxisIsInput = 20;  // the opset from which on it is one
  const ValueId x = l.input(0);
  const int64_t rank = static_cast<int64_t>(l.shape(x).size());
  if (rank < 2) l.fail(fmt::format("its input has the shape {}, but needs an axis to transform and one of parts", to_string(l.shape(x))));
  int64_t axis = l.node.opset >= kAxisIsInput ? (l.has(2) ? l.integer(2, "the axis") : -2) : l.node.attributes.get("axis", 1);
  axis = normalize_axis(axis, rank, "axis");
  Transform transform{.inverse = l.node.attributes.get("inverse", 0) != 0, .onesided = l.node.attributes.get("onesided", 0) != 0};
  const int64_t length = l.shape(x)[axis];
  transform.points = l.has(1) ? l.integer(1, "the number of points") : transform.inverse && transform.onesided ? 2 * (length - 1) : length;
  l.output(0, transformed(l, x, axis, transform));
}

void lower_stft(Lowering& l) {
  ValueId signal = l.input(0);
  Shape shape = l.shape(signal);
  if (shape.size() == 2) shape.push_back(1);
  if (shape.size() != 3) l.fail(fmt::format("its signal has the shape {} instead of (batch, length, 1 or 2)", to_string(shape)));
  signal = l.reshape(signal, shape);
  const int64_t step = l.integer(1, "the step between frames"), length = shape[1];
  const Shape window = l.has(2) ? l.shape(l.input(2)) : Shape{};
  if (l.has(2) && window.size() != 1) l.fail(fmt::format("its window has the shape {}", to_string(window)));
  const int64_t frame = l.has(3) ? l.integer(3, "the length of a frame") : l.has(2) ? window[0] : length;
  if (step < 1 || frame < 1 || frame > length)
    l.fail(fmt::format("frames of {} in steps of {} don't fit a signal of {}", frame, step, length));
  if (l.has(2) && window[0] != frame) l.fail(fmt::format("its window has {} elements, its frames {}", window[0], frame));
  const int64_t frames = 1 + (length - frame) / step;
  if (checked_product({frames, frame}) > kMaxMatrix) l.fail(fmt::format("{} frames of {} are more than is supported", frames, frame));
  Tensor positions(DType::int64, {frames, frame});
  for (int64_t i = 0; i < frames * frame; ++i) positions.data<int64_t>()[static_cast<size_t>(i)] = i / frame * step + i % frame;
  ValueId x = l.emit("Gather", {signal, l.constant(std::move(positions))}, {{"axis", int64_t{1}}});  // (batch, frames, frame, parts)
  if (l.has(2)) x = l.emit("Mul", {x, l.reshape(l.input(2), {frame, 1})});
  l.output(0, transformed(l, x, 2, {.points = frame, .onesided = l.node.attributes.get("onesided", 1) != 0}));
}

// Overlapping triangles, evenly spaced on the mel scale, 2595 log10(1 + f / 700): column i rises from edge i to i + 1 and falls to i + 2.
void lower_mel_weight_matrix(Lowering& l) {
  const int64_t bands = l.integer(0, "the number of bands"), points = l.integer(1, "the number of points"),
                rate = l.integer(2, "the sample rate");
  const double low = l.number(3, "the lower edge"), high = l.number(4, "the upper edge");
  const DType type = onnx_type(l, l.node.attributes.get("output_datatype", 1), "its result is of");
  if (bands < 1 || points < 1 || rate < 1 || points > kMaxMatrix || !(low >= 0) || !(high >= low) || !std::isfinite(high))
    l.fail(fmt::format("there are no {} bands from {} to {} Hz of {} points at {} Hz", bands, low, high, points, rate));
  const int64_t bins = points / 2 + 1;
  if (checked_product({bands, bins}) > kMaxMatrix) l.fail(fmt::format("{} bands of {} bins are more than is supported", bands, bins));
  const auto mel = [](double hertz) { return 2595 * std::log1p(hertz / 700) / std::log(10.0); };
  const double first = mel(low), step = (mel(high) - first) / static_cast<double>(bands + 2);
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double hertz = 700 * std::expm1((first + static_cast<double>(i) * step) / 2595 * std::log(10.0));
    const double edge = std::floor(static_cast<double>(points + 1) * hertz / static_cast<double>(rate));
    if (!(edge >= 0 && edge < static_cast<double>(bins)))
      l.fail(fmt::format("{} Hz lie beyond a spectrum of {} bins at {} Hz", hertz, bins, rate));
    edges.push_back(static_cast<int64_t>(edge));
  }
  Tensor matrix(DType::float64, {bins, bands});
  double* const out = matrix.data<double>().data();
  for (int64_t i = 0; i < bands; ++i) {
    const int64_t left = edges[static_cast<size_t>(i)], middle = edges[static_cast<size_t>(i + 1)],
                  right = edges[static_cast<size_t>(i + 2)];
    if (left == middle) out[middle * bands + i] = 1;
    for (int64_t j = left; j <= middle && left < middle; ++j)
      out[j * bands + i] = static_cast<double>(j - left) / static_cast<double>(middle - left);
    for (int64_t j = middle; j < right; ++j) out[j * bands + i] = static_cast<double>(right - j) / static_cast<double>(right - middle);
  }
  l.output(0, l.cast(l.constant(std::move(matrix)), type));
}

ORT_TRAIN_OPS_END
