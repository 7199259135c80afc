// Planes of neighbouring channels with the channels side by side, one in each lane of a vector: element i of all of them is vector i.

#pragma once

#include <algorithm>
#include <cstring>

#include "exec/gemm_micro.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int64_t kLanesOfVector = gemm::kWidth;
inline constexpr int64_t kVectorBytes = kLanesOfVector * int64_t{sizeof(float)};

// A square of kLanesOfVector x kLanesOfVector of which only some rows are there: to[j * to_row + i] = from[i * from_row + j], zero where
// row i is not there.
inline void transpose_rows(const float* from, int64_t from_row, int64_t rows, float* to, int64_t to_row) {
  gemm::Vector words[kLanesOfVector];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanesOfVector; ++i) words[i] = i < rows ? gemm::load(from + i * from_row) : gemm::zero();
  transpose_square(words, to, to_row);
}

// n elements of some channels, whose planes are `row` elements apart, as n vectors; lanes without a channel are zero.
inline void to_lanes(const float* from, int64_t row, int64_t channels, int64_t n, float* to) {
  if (n < kLanesOfVector) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t lane = 0; lane < kLanesOfVector; ++lane) *to++ = lane < channels ? from[lane * row + i] : 0.0f;
    }
    return;
  }
  for (int64_t i = 0; i < n; i += kLanesOfVector) {  // the last square begins earlier
    const int64_t at = std::min(i, n - kLanesOfVector);
    transpose_rows(from + at, row, channels, to + at * kLanesOfVector, kLanesOfVector);
  }
}

// And back.
inline void from_lanes(const float* from, int64_t channels, int64_t n, float* to, int64_t row) {
  if (n < kLanesOfVector) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t i = 0; i < n; ++i) to[channel * row + i] = from[i * kLanesOfVector + channel];
    }
    return;
  }
  for (int64_t i = 0; i < n; i += kLanesOfVector) {
    const int64_t at = std::min(i, n - kLanesOfVector);
    if (channels == kLanesOfVector) {
      transpose_rows(from + at * kLanesOfVector, kLanesOfVector, kLanesOfVector, to + at, row);
      continue;
    }
    float square[kLanesOfVector * kLanesOfVector];
    transpose_rows(from + at * kLanesOfVector, kLanesOfVector, kLanesOfVector, square, kLanesOfVector);
    for (int64_t channel = 0; channel < channels; ++channel)
      std::memcpy(to + channel * row + at, square + channel * kLanesOfVector, static_cast<size_t>(kVectorBytes));
  }
}

}  // namespace convolution
ORT_TRAIN_OPS_END
