// The arithmetic of Adafactor's ops (exec/ops/adafactor.cpp), on every device.

#pragma once

#include <algorithm>

#include "exec/math.h"
#include "exec/ops/adafactor.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN

struct Matrices {
  int64_t batch = 1, rows = 1, columns = 1;
  HOST_DEVICE int64_t all_rows() const { return batch * rows; }
};
inline Matrices matrices_of(const Shape& shape) {
  if (shape.size() < 2) throw error(ErrorCode::unsupported, "a tensor of shape {} has no rows and columns", to_string(shape));
  return {.batch = element_count(shape.before(shape.size() - 2)), .rows = shape[shape.size() - 2], .columns = shape.back()};
}

inline float floor_of(const KernelSpec& spec) { return spec.attributes.get("floor", 0.0f); }

// u of an element of a matrix: what is the same along its row, 1 / sqrt(row / mean(row)), times that of its column, times the gradient.
template <typename T> struct Factored {
  T clip, floor, most;
  HOST_DEVICE Factored(float clip_, float floor_) : clip(clip_), floor(floor_), most(T(1) / floor) {}  // without a floor, infinity

  HOST_DEVICE T of_row(T row, double row_sum, int64_t rows) const {
    return T(1) / math::sqrt(row / std::max(static_cast<T>(row_sum / static_cast<double>(rows)), floor));
  }
  HOST_DEVICE T update(T of_row, T of_column, T g) const { return std::min(of_row * of_column, most) * (g * clip); }
};

// What becomes of a parameter by its update u, and of their mean.
template <typename T, bool has_mean> struct Step {
  T keep, step, beta1, gain1;
  HOST_DEVICE Step(const float* scalars, const float* rates, double weight_decay)
      : keep(static_cast<T>(1 - double{rates[0]} * weight_decay)),
        step(rates[1]),
        beta1(scalars[kAdafactorBeta1]),
        gain1(scalars[kAdafactorOneMinusBeta1]) {}

  HOST_DEVICE void operator()(T u, T* p, T* m, int64_t i) const {
    T change = step * u;
    if constexpr (has_mean) change = m[i] = beta1 * m[i] + gain1 * change;
    p[i] = p[i] * keep - change;
  }
};

template <typename T> struct MomentNumbers { T clip, beta2, gain, epsilon, floor; };
template <typename T> HOST_DEVICE inline MomentNumbers<T> moment_numbers(float clip, const float* scalars, float floor) {
  return {.clip = clip,
          .beta2 = scalars[kAdafactorBeta2],
          .gain = scalars[kAdafactorOneMinusBeta2],
          .epsilon = scalars[kAdafactorEpsilon],
          .floor = floor};
}
// v of an element whose gradient, clipped, is g.
template <typename T> HOST_DEVICE inline T moment_of(const MomentNumbers<T>& c, T g, T v) {
  return c.beta2 * v + c.gain * (g * g + c.epsilon);
}
template <typename T> HOST_DEVICE inline T plain_update(T g, T v, T floor) { return g / std::max(math::sqrt(v), floor); }

// AdafactorScale's numbers.
struct AdafactorScaling {
  double threshold, elements, scale_epsilon;
  bool decay_by_rate;

  explicit AdafactorScaling(const Attributes& attributes)
      : threshold(attributes.get("clip_threshold", 1.0f)),
        elements(static_cast<double>(attributes.get("elements", int64_t{1}))),
        scale_epsilon(attributes.get("scale_epsilon", 0.0f)),
        decay_by_rate(attributes.get("decay_by_rate", 0) != 0) {}

  HOST_DEVICE bool is_scaled() const { return scale_epsilon > 0; }
  // Of so many inputs, where the squares of p begin.
  size_t second_of(size_t inputs) const { return 1 + (inputs - 1) / (is_scaled() ? 2 : 1); }
  // From the sums of the squares.
  HOST_DEVICE void put_rates(const float* scalars, double of_update, double of_parameter, float* rates) const {
    const double rate = double{scalars[kAdafactorRate]} * (is_scaled() ? std::max(scale_epsilon, math::sqrt(of_parameter / elements)) : 1);
    rates[0] = decay_by_rate ? scalars[kAdafactorDecayRate] : static_cast<float>(rate);
    rates[1] = static_cast<float>(rate / std::max(math::sqrt(of_update / elements) / threshold, 1.0));
  }
};

ORT_TRAIN_OPS_END
