// What ArgMax, ArgMin and TopK compare, for the kernels of every device. What the ops mean: arg.cpp.

#pragma once

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

inline int64_t line_axis(const Attributes& attributes, const Shape& shape, int otherwise) {
  return normalize_axis(attributes.get("axis", otherwise), static_cast<int64_t>(shape.size()), "axis");
}

// A tensor as lines along an axis: line (o, i) begins at o * length * inner + i, in steps of inner.
struct Lines {
  int64_t outer, length, inner;
  Lines(const Shape& shape, int64_t axis)
      : outer(element_count(Shape(shape.begin(), shape.begin() + axis))),
        length(shape[axis]),
        inner(element_count(Shape(shape.begin() + axis + 1, shape.end()))) {}
};

// Whether a comes before b: NaN before every number.
template <bool kLargest, typename T> HOST_DEVICE inline bool beats(T a, T b) { return (kLargest ? a > b : a < b) || (a != a && b == b); }

using Ordered = Types<float, double, int64_t, int32_t, int8_t, uint8_t>;

inline Cost arg_cost(const KernelSpec& spec) {
  Cost cost = movement_cost(spec);
  cost.flops = static_cast<double>(element_count(spec.inputs[0].shape));
  return cost;
}

ORT_TRAIN_OPS_END
