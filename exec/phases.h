// Rows whose elements are divided by the phases of a stride: element j is the (j / stride)-th of phase j % stride.

#pragma once

#include <algorithm>

#include "exec/even_odd.h"

ORT_TRAIN_OPS_BEGIN

// A row of n elements from its phases, which lie `phase` elements apart.
inline void join_phases(const float* from, int64_t phase, int64_t stride, int64_t n, float* to) {
  if (stride == 1) {
    std::copy_n(from, n, to);
  } else if (stride == 2) {
    gemm::join_even_odd(from, from + phase, n, to);
  } else {
    for (int64_t p = 0; p < std::min(stride, n); ++p, from += phase) {
      for (int64_t i = 0, j = p; j < n; ++i, j += stride) to[j] = from[i];
    }
  }
}

// The phases of a row, `phase` elements each.
inline void divide_phases(const float* from, int64_t phase, int64_t stride, float* to) {
  if (stride == 1) {
    std::copy_n(from, phase, to);
  } else if (stride == 2) {
    gemm::divide_even_odd(from, 2 * phase, to, to + phase);
  } else {
    for (int64_t p = 0; p < stride; ++p, to += phase) {
      for (int64_t i = 0; i < phase; ++i) to[i] = from[i * stride + p];
    }
  }
}

ORT_TRAIN_OPS_END
