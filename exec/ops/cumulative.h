// The lines along the axis of CumSum and CumProd, for the kernels of every device.

#pragma once

#include <type_traits>

#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

using Cumulated = Types<float, double, int64_t, int32_t>;
// What sums and products run in.
template <typename T> using CumulatedIn = std::conditional_t<std::is_same_v<T, float>, double, T>;

// Element k of line i is at base(i) + k * step(), the first of them the one that `reverse` begins with.
struct AxisLines {
  int64_t outer, length, inner;
  bool exclusive, reverse;

  explicit AxisLines(const KernelSpec& spec)
      : exclusive(spec.attributes.get("exclusive", 0) != 0), reverse(spec.attributes.get("reverse", 0) != 0) {
    const Shape& shape = spec.inputs[0].shape;
    const auto axis = static_cast<size_t>(normalize_axis(spec.attributes.get("axis", 0), static_cast<int64_t>(shape.size()), "axis"));
    length = shape[axis];
    inner = element_count(shape.from(axis + 1));
    outer = element_count(shape.before(axis));
  }
  HOST_DEVICE int64_t count() const { return outer * inner; }
  HOST_DEVICE int64_t base(int64_t line) const {
    return line / inner * length * inner + line % inner + (reverse ? (length - 1) * inner : 0);
  }
  HOST_DEVICE int64_t step() const { return reverse ? -inner : inner; }
};

ORT_TRAIN_OPS_END
