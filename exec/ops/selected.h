// What FindSelected, KeepFirst and RepeatLast have in common on every device.

#pragma once

#include <vector>

#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

using Selectable = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;

// x as (outer, n rows, bytes of a row), n the axis.
struct SelectedRows {
  int64_t outer = 1, n = 1, bytes = 1;
  explicit SelectedRows(const KernelSpec& spec) {
    const TensorType& x = spec.inputs[0];
    const int64_t axis = spec.attributes.get("axis", 0);
    outer = element_count(x.shape.before(static_cast<size_t>(axis)));
    n = x.shape[static_cast<size_t>(axis)];
    bytes = element_count(x.shape.from(static_cast<size_t>(axis) + 1)) * size_of(x.dtype);
  }
};

// The element that KeepFirst writes behind those it keeps.
inline std::vector<std::byte> value_behind(const KernelSpec& spec) {
  const DType dtype = spec.inputs[0].dtype;
  std::vector<std::byte> value(static_cast<size_t>(size_of(dtype)));
  fill_elements(value, dtype, static_cast<double>(spec.attributes.get("value", 0.0f)));
  return value;
}

// The row that RepeatLast copies to the row at `place` of its axis; where none is selected it is the first.
HOST_DEVICE inline int64_t repeated_row(int64_t row, int64_t place, int64_t count) {
  return place < count ? row : row - place + (count > 0 ? count - 1 : 0);
}

ORT_TRAIN_OPS_END
