// Where a thread's element is in each operand, without divisions: those of 32 bits are products here.

#pragma once

#include <array>
#include <cstdint>

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

// n / divisor for 0 <= n < 2^31 as a product (Granlund & Montgomery, "Division by invariant integers using multiplication", 1994): with
// 2^shift the power of two that the divisor doesn't exceed, factor = ceil(2^(31 + shift) / divisor) is less than 2^32, and too large by so
// little that no such quotient changes.
struct Divisor {
  uint32_t divisor = 1, factor = uint32_t{1} << 31;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t by) : divisor(static_cast<uint32_t>(by)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }
  HOST_DEVICE uint32_t quotient(uint32_t n) const { return static_cast<uint32_t>((uint64_t{n << 1} * factor) >> 32) >> shift; }
};

// A number below 2^31 as digits: rest = digits.split(rest, digit).
struct Digit {
  uint32_t above, digit;
};
HOST_DEVICE inline Digit split(uint32_t n, const Divisor& by) {
  const uint32_t above = by.quotient(n);
  return {above, n - above * by.divisor};
}

// The same of any number, for what may have 2^31 elements or more (`small`: it has not).
struct Size {
  int64_t size = 1;
  Divisor divisor;

  Size() = default;
  explicit Size(int64_t of) : size(of), divisor(of > 0 && of <= INT32_MAX ? of : 1) {}

  struct Place {
    int64_t above, place;
  };
  HOST_DEVICE Place split(int64_t n, bool small) const {
    if (small) {
      const Digit at = ort_train::split(static_cast<uint32_t>(n), divisor);
      return {at.above, at.digit};
    }
    return {n / size, n % size};
  }
};

// A StridedLoop for threads that take one iteration each.
template <int K> struct ThreadLoop {
  int rank = 0;
  bool small = false;  // fewer than 2^31 iterations
  int64_t count = 0;
  std::array<Size, kMaxAxes> dims;
  std::array<std::array<int64_t, K>, kMaxAxes> strides{};

  ThreadLoop() = default;
  explicit ThreadLoop(const StridedLoop<K>& loop)
      : rank(loop.rank), small(loop.count <= INT32_MAX), count(loop.count), strides(loop.strides) {
    for (int axis = 0; axis < rank; ++axis) dims[axis] = Size(loop.dims[axis]);
  }

  HOST_DEVICE Offsets<K> offsets(int64_t i) const {
    Offsets<K> at{};
    for (int axis = rank - 1; axis > 0; --axis) {
      const Size::Place place = dims[axis].split(i, small);
      for (int k = 0; k < K; ++k) at.of[k] += place.place * strides[axis][k];
      i = place.above;
    }
    for (int k = 0; k < K; ++k) at.of[k] += i * strides[0][k];
    return at;
  }
};

ORT_TRAIN_OPS_END
