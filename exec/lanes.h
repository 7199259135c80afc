// Sums over a row in a fixed order: element i goes to lane i mod 32, each lane adds upwards, the lanes are added as a tree. So a sum's bits
// depend on neither alignment, vector width nor threads, and the compiler keeps the lanes in vector registers.

#pragma once

#include <cstdint>

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int kLanes = 32;

// step(lane, i) returns the lane with element i taken in; join(a, b) that of two lanes. Each lane begins as `start`.
template <typename T, typename Step, typename Join>
__attribute__((always_inline)) inline T fold_row(int64_t n, T start, const Step& step, const Join& join) {
  T lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = start;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = step(lanes[l], i + l);
  }
  for (int l = 0; i + l < n; ++l) lanes[l] = step(lanes[l], i + l);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = join(lanes[l], lanes[l + half]);
  }
  return lanes[0];
}

// step(sum, i) returns the sum with element i added.
template <typename T, typename Step> __attribute__((always_inline)) inline T sum_row(int64_t n, const Step& step) {
  return fold_row(n, T(0), step, [](T a, T b) { return a + b; });
}

template <typename T> struct TwoSums { T first, second; };
// Two sums in one reading: step(first, second, i) adds element i to both.
template <typename T, typename Step> __attribute__((always_inline)) inline TwoSums<T> sum_row_twice(int64_t n, const Step& step) {
  T first[kLanes] = {}, second[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) step(first[l], second[l], i + l);
  }
  for (int l = 0; i + l < n; ++l) step(first[l], second[l], i + l);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) first[l] += first[l + half], second[l] += second[l + half];
  }
  return {first[0], second[0]};
}

template <typename T> __attribute__((always_inline)) inline T max_row(const T* x, int64_t n) {
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  return fold_row(
      n, x[0], [&](T lane, int64_t i) { return larger(lane, x[i]); }, larger);
}

ORT_TRAIN_OPS_END
