// What Range, ConstantOfShape, OneHot and Trilu make of sizes and positions, for the kernels of every device.

#pragma once

#include <algorithm>
#include <type_traits>
#include <variant>

#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

// --- Range ----------------------------------------------------------------------------------------------------------------------------

using Counted = Types<float, double, int64_t, int32_t, int16_t>;

// Integers are computed without sign: the last may lie beyond the type, as its number of elements is a double's.
template <typename T> HOST_DEVICE inline T in_steps(T start, T delta, int64_t i) {
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  return static_cast<T>(static_cast<Sum>(start) + static_cast<Sum>(i) * static_cast<Sum>(delta));
}

// --- ConstantOfShape ------------------------------------------------------------------------------------------------------------------

inline Tensor constant_of(const Attributes& attributes) {
  const Attribute* value = attributes.find("value");
  if (!value) return Tensor(DType::float32, {1});
  const Tensor* tensor = std::get_if<Tensor>(value);
  if (!tensor || tensor->size() != 1) throw error(ErrorCode::unsupported, "the value is not a tensor of one element");
  return *tensor;
}

// --- OneHot ---------------------------------------------------------------------------------------------------------------------------

struct OneHotShape {
  int64_t outer, depth, inner;
  explicit OneHotShape(const KernelSpec& spec) {
    const Shape& shape = spec.outputs[0].shape;
    const auto axis = static_cast<size_t>(normalize_axis(spec.attributes.get("axis", -1), static_cast<int64_t>(shape.size()), "axis"));
    outer = element_count(shape.before(axis));
    depth = shape[axis];
    inner = element_count(shape.from(axis + 1));
  }
};

// --- Trilu ----------------------------------------------------------------------------------------------------------------------------

struct Triangle {
  int64_t rows, columns, all, k;  // all: rows of all matrices
  bool upper;
  explicit Triangle(const KernelSpec& spec) : upper(spec.attributes.get("upper", 1) != 0) {
    const Shape& shape = spec.inputs[0].shape;
    columns = shape.back();
    rows = shape[shape.size() - 2];
    all = element_count(shape.before(shape.size() - 1));
    k = std::clamp(spec.attributes.get("k", 0), -rows, columns);
  }
  // The column where a row of all matrices changes: `upper` keeps from it on, lower what is before.
  HOST_DEVICE int64_t edge(int64_t r) const {
    const int64_t at = r % rows + k + (upper ? 0 : 1);
    return at < 0 ? 0 : at > columns ? columns : at;
  }
};

ORT_TRAIN_OPS_END
