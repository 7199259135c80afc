// Sums over a row in a fixed order: each element goes to one of a number of lanes (32, unless said otherwise) by its number, each lane adds
// upwards, the lanes are added as a tree. So a sum's bits depend on neither alignment, vector width nor threads.
//
//   elements of 4 bytes and more   lane i mod 32: the compiler keeps the lanes in vector registers
//   float16, bfloat16              lane (i / 8) mod 32: a lane takes 8 neighbours, the 16 bytes that a GPU's thread loads at once
//
// T is the type in which the row is stored.

#pragma once

#include <cstdint>
#include <type_traits>

#include "exec/kernel.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int kLanes = 32;

struct FetchNothing {
  void operator()(int64_t) const {}
};

// visit(lane, i) for each element of a row, in the order in which each lane takes them. fetch(i) before those from i on that all lanes take
// once (of 16 bits: eight times).
template <typename T, int lanes = kLanes, typename Visit, typename Fetch = FetchNothing>
__attribute__((always_inline)) inline void each_in_lanes(int64_t n, const Visit& visit, const Fetch& fetch = {}) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    int64_t begin = 0;
    for (; begin + 8 * lanes <= n; begin += 8 * lanes) {  // a vector of lanes at a time
      fetch(begin);
      for (int i = 0; i < 8; ++i) {
        for (int l = 0; l < lanes; ++l) visit(l, begin + 8 * l + i);
      }
    }
    for (int64_t i = begin; i < n; ++i) visit(static_cast<int>(i / 8 % lanes), i);
  } else {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      fetch(i);
      for (int l = 0; l < lanes; ++l) visit(l, i + l);
    }
    for (int l = 0; i + l < n; ++l) visit(l, i + l);
  }
}

// The lanes joined as a tree: what stands half as far on is taken in, down to one.
template <typename V, int lanes, typename Join> __attribute__((always_inline)) inline V join_lanes(V (&values)[lanes], const Join& join) {
#pragma GCC unroll 8  // so that each half is a vector in registers
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) values[l] = join(values[l], values[l + half]);
  }
  return values[0];
}

// step(lane, i) returns the lane with element i of a row of T taken in; join(a, b) that of two lanes. Each lane begins as `start`.
template <typename T, int lanes = kLanes, typename V, typename Step, typename Join, typename Fetch = FetchNothing>
__attribute__((always_inline)) inline V fold_row(int64_t n, V start, const Step& step, const Join& join, const Fetch& fetch = {}) {
  V values[lanes];
  for (int l = 0; l < lanes; ++l) values[l] = start;
  each_in_lanes<T, lanes>(
      n, [&](int l, int64_t i) __attribute__((always_inline)) { values[l] = step(values[l], i); }, fetch);
  return join_lanes(values, join);
}

// step(sum, i) returns the sum with element i added.
template <typename T, typename Step> __attribute__((always_inline)) inline Compute<T> sum_row(int64_t n, const Step& step) {
  return fold_row<T>(n, Compute<T>(0), step, [](Compute<T> a, Compute<T> b) { return a + b; });
}

// of(i), of element i, summed in double.
template <typename T, typename Of> __attribute__((always_inline)) inline double sum_row_in_double(int64_t n, const Of& of) {
  return fold_row<T>(
      n, 0.0, [&](double lane, int64_t i) { return lane + of(i); }, [](double a, double b) { return a + b; });
}

template <typename T> __attribute__((always_inline)) inline Compute<T> max_row(const T* x, int64_t n) {
  const auto larger = [](Compute<T> a, Compute<T> b) { return a > b ? a : b; };
  return fold_row<T>(
      n, load(x[0]), [&](Compute<T> lane, int64_t i) { return larger(lane, load(x[i])); }, larger);
}

ORT_TRAIN_OPS_END
