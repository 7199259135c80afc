// What the kernels of pools share.

#pragma once

#include <algorithm>

#include "exec/strided.h"
#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN
namespace pool {

inline int64_t planes_of(const Shape& x) { return x[0] * x[1]; }

template <typename T> HOST_DEVICE inline bool exceeds(T a, T b) { return (a > b) | (a != a); }

// The element of x that a window's gradient belongs to; -1 where it reads padding alone.
template <typename T> HOST_DEVICE inline int64_t largest(const Windows& windows, const T* x, int64_t oh, int64_t ow) {
  const auto& [h, w] = windows;
  int64_t found = -1;
  for (int64_t kh = 0; kh < h.kernel; ++kh) {
    const int64_t row = h.at(oh, kh);
    if (row < 0 || row >= h.in) continue;
    for (int64_t kw = 0; kw < w.kernel; ++kw) {
      const int64_t column = w.at(ow, kw);
      if (column < 0 || column >= w.in) continue;
      const int64_t element = row * w.in + column;
      if (found < 0 || exceeds(load(x[element]), load(x[found]))) found = element;
    }
  }
  return found;
}

// How many elements window o counts along an axis: all in the padding too, or only those of x.
HOST_DEVICE inline int64_t counted(const WindowAxis& axis, int64_t o, bool with_padding) {
  const int64_t first = axis.at(o, 0), end = with_padding ? axis.in + axis.end : axis.in;
  const auto steps_to = [&](int64_t place) {  // taps that read before it
    return place <= first ? 0 : std::min(axis.kernel, (place - first + axis.dilation - 1) / axis.dilation);
  };
  return std::max<int64_t>(1, steps_to(end) - (with_padding ? 0 : steps_to(0)));
}

template <int each> Cost cost_of(const KernelSpec& spec, const Shape& x) {
  const Windows windows = windows_of(spec.attributes, x);
  Cost cost = movement_cost(spec);
  cost.flops = double{each} * static_cast<double>(planes_of(x)) * windows.work();
  return cost;
}

}  // namespace pool
ORT_TRAIN_OPS_END
