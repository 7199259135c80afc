// What Slice and Pad, and their gradients, move where, for the kernels of every device.

#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

// --- Slice ----------------------------------------------------------------------------------------------------------------------------

// Element i of the slice's axis is element start + i * step of the input's.
struct AxisSlice {
  int64_t start = 0, step = 1, count = 0;
};

inline std::vector<AxisSlice> slices_of(const Attributes& attributes, const Shape& shape) {
  std::vector<AxisSlice> slices;
  for (int64_t dim : shape) slices.push_back({0, 1, dim});
  const std::vector<int64_t> starts = attributes.get("starts", std::vector<int64_t>{}),
                             ends = attributes.get("ends", std::vector<int64_t>{});
  const std::vector<int64_t> steps = attributes.get("steps", std::vector<int64_t>(starts.size(), 1));
  std::vector<int64_t> all(starts.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> axes = attributes.get("axes", all);
  bool valid = ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size();
  std::vector<bool> seen(shape.size());
  for (size_t i = 0; valid && i < starts.size(); ++i) {
    valid = axes[i] >= 0 && axes[i] < static_cast<int64_t>(shape.size()) && steps[i] != 0 && !seen[axes[i]];
    if (!valid) break;
    seen[axes[i]] = true;
    const int64_t dim = shape[axes[i]], span = steps[i] > 0 ? ends[i] - starts[i] : starts[i] - ends[i];
    valid = starts[i] >= 0 && starts[i] <= dim && ends[i] >= -1 && ends[i] <= dim &&
            (steps[i] > 0 ? ends[i] >= 0 : starts[i] < dim || span <= 0);
    const int64_t stride = steps[i] > 0 ? steps[i] : -std::max(steps[i], -INT64_MAX);
    slices[axes[i]] = {starts[i], steps[i], span <= 0 ? 0 : (span - 1) / stride + 1};
  }
  if (!valid) {
    throw error(ErrorCode::unsupported, "the slice starts {}, ends {}, axes {}, steps {} doesn't fit {}", to_string(starts),
                to_string(ends), to_string(axes), to_string(steps), to_string(shape));
  }
  return slices;
}

// The part of a tensor of `shape` that a slice means: its strides and its first element.
struct SlicedView {
  Shape dims;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  SlicedView(const std::vector<AxisSlice>& slices, const Shape& shape) : strides(strides_of(shape)) {
    for (size_t i = 0; i < slices.size(); ++i) {
      offset += slices[i].start * strides[i];
      strides[i] = slices[i].count <= 1 ? strides[i] : strides[i] * slices[i].step;
      dims.push_back(slices[i].count);
    }
  }
};

inline CopyLayout slice_layout(const KernelSpec& spec) {
  const Shape& from = spec.inputs[0].shape;
  const SlicedView view(slices_of(spec.attributes, from), from);
  return {.element_bytes = size_of(spec.inputs[0].dtype),
          .dims = view.dims,
          .out_strides = strides_of(view.dims),
          .in_strides = view.strides,
          .in_offset = view.offset};
}

// Of the slice's gradient, into zeros.
inline CopyLayout slice_grad_layout(const KernelSpec& spec) {
  const Shape& to = spec.outputs[0].shape;
  const SlicedView view(slices_of(spec.attributes, to), to);
  return {.element_bytes = size_of(spec.outputs[0].dtype),
          .dims = view.dims,
          .out_strides = view.strides,
          .in_strides = strides_of(view.dims),
          .out_offset = view.offset};
}

// How many elements an output has more than its input at the two ends of each axis; negative where it has fewer.
struct Margins {
  std::vector<int64_t> before, after;
};

// Those of a SliceGrad whose steps are all 1; nothing where there are others, or where the slice is empty.
inline std::optional<Margins> slice_margins(const KernelSpec& spec) {
  const Shape& to = spec.outputs[0].shape;
  const std::vector<AxisSlice> slices = slices_of(spec.attributes, to);
  Margins margins;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].step != 1 || slices[i].count <= 0) return std::nullopt;
    margins.before.push_back(slices[i].start);
    margins.after.push_back(to[i] - slices[i].start - slices[i].count);
  }
  return margins;
}

// --- Pad ------------------------------------------------------------------------------------------------------------------------------

inline Margins pad_margins(const KernelSpec& spec) {
  const std::vector<int64_t> pads = spec.attributes.get("pads", std::vector<int64_t>{});
  const auto middle = pads.begin() + static_cast<int64_t>(pads.size() / 2);
  return {{pads.begin(), middle}, {middle, pads.end()}};
}

inline Shape padded_shape(const Attributes& attributes, const Shape& from) {
  const std::vector<int64_t> pads = attributes.get("pads", std::vector<int64_t>{});
  const std::string mode = attributes.get("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    throw error(ErrorCode::unsupported, "the mode '{}' is unknown", mode);
  const size_t rank = from.size();
  Shape shape = from;
  bool valid = pads.size() == 2 * rank;
  for (size_t i = 0; valid && i < rank; ++i) {
    // What is left when both ends are cropped must be there.
    const int64_t kept = from[i] + std::min<int64_t>(pads[i], 0) + std::min<int64_t>(pads[rank + i], 0);
    valid = pads[i] > -(int64_t{1} << 48) && pads[rank + i] > -(int64_t{1} << 48) && kept >= 0 &&
            !__builtin_add_overflow(shape[i], pads[i], &shape[i]) && !__builtin_add_overflow(shape[i], pads[rank + i], &shape[i]) &&
            (kept > 0 || shape[i] == 0 || mode == "constant");
  }
  if (!valid) throw error(ErrorCode::unsupported, "the pads {} don't fit {}", to_string(pads), to_string(from));
  return shape;
}

// One axis of a Pad in a mode other than constant. Of the input's `in` elements, `kept` from `base` on are padded: the first of them is
// element `lead` of the output's `out`.
struct PadAxis {
  enum Mode : int { edge, reflect, wrap };
  Mode mode = edge;
  int64_t base = 0, kept = 0, lead = 0, in = 0, out = 0;

  HOST_DEVICE static int64_t modulo(int64_t a, int64_t b) { return (a % b + b) % b; }
  HOST_DEVICE int64_t period() const { return mode == wrap ? kept : 2 * (kept - 1); }  // not of edge, nor of one element's reflection

  // Which element of the input element i of the output is a copy of.
  HOST_DEVICE int64_t source(int64_t i) const {
    const int64_t at = i - lead;
    if (mode == wrap) return base + modulo(at, kept);
    if (mode == reflect && kept > 1) {
      const int64_t turn = modulo(at, period());
      return base + (turn < period() - turn ? turn : period() - turn);
    }
    return base + (at < 0 ? 0 : at > kept - 1 ? kept - 1 : at);
  }

  // The elements of the output that are copies of one element of the input, upwards: element first + k * period() for k = 0, 1 ..., and,
  // where an element is met on the way back, too, those from `second` on between them.
  struct Copies {
    int64_t count, first, second, step;
    HOST_DEVICE int64_t operator[](int64_t k) const { return second < 0 ? first + k * step : (k % 2 ? second : first) + k / 2 * step; }
  };
  HOST_DEVICE Copies copies_of(int64_t element) const {
    const int64_t s = element - base;
    if (s < 0 || s >= kept) return {0, 0, -1, 0};
    if (mode == edge || (mode == reflect && kept == 1)) {
      const int64_t first = s == 0 ? 0 : lead + s, end = s == kept - 1 ? out : lead + s + 1;
      return {end - first, first, -1, 1};
    }
    const int64_t there = modulo(lead + s, period());
    if (mode == wrap || s == 0 || s == kept - 1) return {up_to_end(there), there, -1, period()};
    const int64_t back = modulo(lead - s, period());
    return {up_to_end(there) + up_to_end(back), there < back ? there : back, there < back ? back : there, period()};
  }

 private:
  HOST_DEVICE int64_t up_to_end(int64_t first) const { return first < out ? (out - 1 - first) / period() + 1 : 0; }
};

inline std::vector<PadAxis> pad_axes(const Attributes& attributes, const Shape& from) {
  const std::vector<int64_t> pads = attributes.get("pads", std::vector<int64_t>{});
  const std::string mode = attributes.get("mode", "constant");
  const Shape to = padded_shape(attributes, from);
  const size_t rank = from.size();
  std::vector<PadAxis> axes;
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t base = std::max<int64_t>(-pads[axis], 0);
    axes.push_back({.mode = mode == "wrap"      ? PadAxis::wrap
                            : mode == "reflect" ? PadAxis::reflect
                                                : PadAxis::edge,
                    .base = base,
                    .kept = from[axis] - base + std::min<int64_t>(pads[rank + axis], 0),
                    .lead = std::max<int64_t>(pads[axis], 0),
                    .in = from[axis],
                    .out = to[axis]});
  }
  return axes;
}

ORT_TRAIN_OPS_END
