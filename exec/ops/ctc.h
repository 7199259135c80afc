// What the kernels of CtcLoss share on all devices: the two recursions, a state at a time.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "exec/element_types.h"
#include "exec/math.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// log(e^a + e^b), for sums of numbers of that type.
template <typename T> HOST_DEVICE inline double log_add(double a, double b) {
  if (a != a || b != b) return a + b;  // NaN
  const double larger = a < b ? b : a, smaller = b < a ? b : a;
  if (larger == kImpossible) return kImpossible;
  if constexpr (std::is_same_v<T, double>) return larger + ::log1p(::exp(smaller - larger));
  return larger + math::log1p(math::exp_for_float(smaller - larger));
}

struct CtcShape {
  int64_t samples, steps, classes, labels;
  explicit CtcShape(const KernelSpec& spec)
      : samples(spec.inputs[0].shape[0]),
        steps(spec.inputs[0].shape[1]),
        classes(spec.inputs[0].shape[2]),
        labels(spec.inputs[1].shape[1]) {}
  HOST_DEVICE int64_t states() const { return 2 * labels + 1; }
  // For all of a sample's forward variables and two time steps of the backward ones.
  HOST_DEVICE int64_t doubles() const { return (steps + 2) * states(); }
};

// One sample: state s stands for label (s - 1) / 2 where s is odd, else for a blank.
template <typename T> struct CtcSample {
  const T* log_p;  // (T, V)
  const int64_t* labels;
  int64_t count, steps, classes, blank;

  HOST_DEVICE int64_t states() const { return 2 * count + 1; }
  HOST_DEVICE int64_t symbol(int64_t s) const { return s % 2 == 0 ? blank : labels[s / 2]; }
  HOST_DEVICE bool may_skip(int64_t s) const { return s % 2 == 1 && s >= 3 && labels[s / 2] != labels[s / 2 - 1]; }  // from s - 2
  HOST_DEVICE double at(int64_t t, int64_t s) const { return static_cast<double>(log_p[t * classes + symbol(s)]); }
  HOST_DEVICE double scale() const { return 1 / static_cast<double>(count > 1 ? count : 1); }

  // Of the paths that are in s at t, up to and with t; before: those of t - 1, all states.
  HOST_DEVICE double forward(const double* before, int64_t t, int64_t s) const {
    if (t == 0) return s < 2 ? at(0, s) : kImpossible;
    double sum = before[s];
    if (s >= 1) sum = log_add<T>(sum, before[s - 1]);
    if (may_skip(s)) sum = log_add<T>(sum, before[s - 2]);
    return sum == kImpossible ? sum : sum + at(t, s);
  }
  // Of the paths that spell the labels, from the forward variables of the last time step.
  HOST_DEVICE double total(const double* last) const {
    const int64_t n = states();
    return n > 1 ? log_add<T>(last[n - 1], last[n - 2]) : last[0];
  }
  // Of the paths that are in s at t, behind t; next: those of t + 1.
  HOST_DEVICE double backward(const double* next, int64_t t, int64_t s) const {
    const int64_t n = states();
    if (t == steps - 1) return s >= n - 2 ? 0 : kImpossible;
    double sum = onwards(next, t, s);
    if (s + 1 < n) sum = log_add<T>(sum, onwards(next, t, s + 1));
    if (s + 2 < n && may_skip(s + 2)) sum = log_add<T>(sum, onwards(next, t, s + 2));
    return sum;
  }
  // What a class has of the paths (T, V) with those of one more state, `path` their logarithm, taken in.
  HOST_DEVICE static T with_path(T so_far, double path, double scale) {
    if (path <= kImpossible) return so_far;
    const double e = std::is_same_v<T, double> ? ::exp(path) : math::exp_for_float(path);
    return static_cast<T>(static_cast<double>(so_far) + e * scale);
  }

 private:
  HOST_DEVICE double onwards(const double* next, int64_t t, int64_t to) const {
    return next[to] == kImpossible ? kImpossible : next[to] + at(t + 1, to);
  }
};

inline Cost ctc_cost(const KernelSpec& spec) {
  const CtcShape shape(spec);
  const auto states = static_cast<double>(shape.samples * shape.steps * shape.states());
  const auto elements = static_cast<double>(element_count(spec.inputs[0].shape));
  return {.flops = 80 * states + elements, .bytes = 8 * elements};
}

ORT_TRAIN_OPS_END
