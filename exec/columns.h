// im2col and col2im: each window's elements as one column, so that a convolution is a matrix product.

#pragma once

#include <algorithm>
#include <type_traits>

#include "exec/even_odd.h"
#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kShortRun = 16;  // elements of a row of windows

// Rows: channel, tap; columns: the windows [first, first + count). Rows are `stride` apart.
template <typename T>
void gather_columns(const Windows& windows, const T* x, int64_t channels, int64_t first, int64_t count, T* columns, int64_t stride) {
  const auto& [h, w] = windows;
  if (windows.plain()) {
    for (int64_t channel = 0; channel < channels; ++channel)
      std::copy_n(x + channel * windows.in_size() + first, count, columns + channel * stride);
    return;
  }
  const int64_t short_run = std::is_same_v<T, float> && w.stride == 2 ? kShortRun / 2 : kShortRun;  // those of floats are vectors
  for (int64_t channel = 0; channel < channels; ++channel, x += windows.in_size()) {
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      for (int64_t kw = 0; kw < w.kernel; ++kw, columns += stride) {
        T* to = columns;
        const int64_t inside_from = w.first(kw), inside_to = w.last(kw);
        for (int64_t at = first, end = first + count; at < end;) {
          const int64_t oh = at / w.out, ow = at % w.out, run = std::min(w.out - ow, end - at), row = h.at(oh, kh);
          at += run;
          if (run <= short_run) {  // calls would take longer than the copy
            const T* const source = x + (row < 0 || row >= h.in ? 0 : row) * w.in;
            const uint64_t width = row < 0 || row >= h.in ? 0 : static_cast<uint64_t>(w.in);
            int64_t column = w.at(ow, kw);
            for (int64_t i = 0; i < run; ++i, column += w.stride) to[i] = static_cast<uint64_t>(column) < width ? source[column] : T(0);
            to += run;
            continue;
          }
          int64_t from = std::clamp(inside_from, ow, ow + run), until = std::clamp(inside_to, from, ow + run);
          if (row < 0 || row >= h.in) from = until = ow + run;
          std::fill(to, to + (from - ow), T(0));
          if (from < until) gemm::copy_in_steps(x + row * w.in + w.at(from, kw), w.stride, until - from, to + (from - ow));
          std::fill(to + (until - ow), to + run, T(0));
          to += run;
        }
      }
    }
  }
}

// The reverse for all windows: x becomes the sum of what the columns hold.
template <typename T> void spread_columns(const Windows& windows, const T* from, int64_t stride, int64_t channels, T* x) {
  const auto& [h, w] = windows;
  for (int64_t channel = 0; channel < channels; ++channel, x += windows.in_size()) {
    std::fill(x, x + windows.in_size(), T(0));
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      for (int64_t kw = 0; kw < w.kernel; ++kw, from += stride) {
        const int64_t begin = w.first(kw), end = w.last(kw), shift = kw * w.dilation - w.begin;
        for (int64_t oh = h.first(kh); oh < h.last(kh); ++oh) {
          const T* source = from + oh * w.out;
          T* target = x + h.at(oh, kh) * w.in;
          if (w.stride == 1) {
            for (int64_t ow = begin; ow < end; ++ow) target[ow + shift] += source[ow];
          } else {
            for (int64_t ow = begin; ow < end; ++ow) target[ow * w.stride + shift] += source[ow];
          }
        }
      }
    }
  }
}

// Copies `rows` planes of y, or dy, between one sample and the columns of a tile.
template <typename T> void copy_planes(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, size, to + r * to_stride);
}

ORT_TRAIN_OPS_END
