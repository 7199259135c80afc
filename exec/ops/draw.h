// What DrawNumbers makes of random bits, for the kernels of every device.

#pragma once

#include <cstdint>

#include "exec/kernel.h"
#include "exec/math.h"
#include "exec/random.h"

ORT_TRAIN_OPS_BEGIN

// Two independent numbers of the standard normal distribution (Box and Muller, 1958). All devices compute the same bits; the largest
// is 6.66.
struct NormalPair {
  float first, second;
};
HOST_DEVICE inline NormalPair normal_pair(uint32_t a, uint32_t b) {
  const float u = math::fma(static_cast<float>(static_cast<int32_t>(a >> 1)), 0x1p-31f, 0x1p-32f);  // in (0, 1]
  const float radius = math::sqrt(-2.0f * math::log(u));
  // The angle: the upper two bits choose a quarter turn, the other 30 say how far it is from that, at most half of one.
  const double rest = static_cast<double>(static_cast<int32_t>(b << 2)) * 0x1p-32;
  const auto sine = static_cast<float>(math::sine_of(rest)), cosine = static_cast<float>(math::cosine_of(rest));
  const uint32_t quarter = b >> 30;
  const float x = quarter & 1 ? -sine : cosine, y = quarter & 1 ? cosine : sine;
  const float sign = quarter & 2 ? -radius : radius;
  return {sign * x, sign * y};
}

// In [0, 1).
HOST_DEVICE inline float uniform_number(uint32_t number) { return static_cast<float>(static_cast<int32_t>(number >> 8)) * 0x1p-24f; }

struct DrawnNumbers : DrawAddress {
  bool normal;
  float offset, factor;

  explicit DrawnNumbers(const Attributes& attributes)
      : DrawAddress(attributes),
        normal(attributes.get("normal", 0) != 0),
        offset(attributes.get("offset", 0.0f)),
        factor(attributes.get("factor", 1.0f)) {}

  // Of numbers of Philox, whole pairs of them: uniform in [0, 1), or normal. `to` may not be `from`.
  HOST_DEVICE void standard(const uint32_t* from, int count, float* to) const {
    if (!normal) {
      for (int i = 0; i < count; ++i) to[i] = uniform_number(from[i]);
      return;
    }
    for (int i = 0; i < count; i += 2) {
      const NormalPair pair = normal_pair(from[i], from[i + 1]);
      to[i] = pair.first;
      to[i + 1] = pair.second;
    }
  }
  template <typename T> HOST_DEVICE T value(float standard) const { return math::fma(T(standard), T(factor), T(offset)); }
};

ORT_TRAIN_OPS_END
