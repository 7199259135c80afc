// Windows that slide over planes, for kernels whose threads have an element each.

#pragma once

#include "exec/cuda/indexing.h"
#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN

// Elements of planes as plane, row and column.
struct Planes {
  Size h, w;
  bool small = false;

  Planes() = default;
  Planes(int64_t planes, int64_t rows, int64_t columns) : h(rows), w(columns), small(planes * rows * columns <= INT32_MAX) {}

  struct Place {
    int64_t plane, row, column;
  };
  HOST_DEVICE Place at(int64_t i) const {
    const Size::Place column = w.split(i, small), row = h.split(column.above, small);
    return {row.above, row.place, column.place};
  }
};
inline Planes planes_of_x(const Windows& windows, int64_t planes) { return {planes, windows.h.in, windows.w.in}; }
inline Planes planes_of_y(const Windows& windows, int64_t planes) { return {planes, windows.h.out, windows.w.out}; }

// The window whose tap k reads element i of an axis; -1 where there is none.
HOST_DEVICE inline int64_t window_at(const WindowAxis& axis, int64_t i, int64_t k) {
  const int64_t from = i + axis.begin - k * axis.dilation;
  if (from < 0) return -1;
  const auto steps = static_cast<uint32_t>(axis.stride);  // windows are at most 2^20 apart (window_list)
  const int64_t o = from <= UINT32_MAX ? static_cast<uint32_t>(from) / steps : from / axis.stride;
  return o * axis.stride == from && o < axis.out ? o : -1;
}

ORT_TRAIN_OPS_END
